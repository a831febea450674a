"""`Trainer` and the algorithms that it is given: training from Python."""
