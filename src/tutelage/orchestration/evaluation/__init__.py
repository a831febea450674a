"""Evaluation of orchestration: rewards of executed workflows and quality of plans."""
