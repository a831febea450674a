"""Data of orchestration: workflows and outcomes, read from files, collected or generated."""
