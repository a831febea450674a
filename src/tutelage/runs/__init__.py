"""Runs: what each has, whatever it trains: folder, loggers, callbacks, results, report."""
