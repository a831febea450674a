"""Rollouts: run an agent on many tasks concurrently (`runner.py`), and build training rows of its
calls (`rows.py`)."""
