"""Rollouts: run an agent on many tasks at once (`runner.py`), and make training rows of the calls
that it made (`rows.py`)."""
