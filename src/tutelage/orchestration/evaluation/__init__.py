"""Evaluation: what an executed workflow earns, and how good plans are."""
