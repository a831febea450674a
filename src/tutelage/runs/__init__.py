"""Parts of every kind of run: folder, loggers, callbacks, results, report."""
