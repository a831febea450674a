"""Execution: a plan is run by workers, verified, budgeted, journalled and traced."""
