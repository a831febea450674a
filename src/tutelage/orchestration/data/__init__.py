"""Data: workflows and outcomes, read from files, collected, prepared or synthetic."""
