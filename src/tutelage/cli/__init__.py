"""Command line `tutelage COMMAND ...`, with one module per command.

A command reads its options, calls the library, and shows the result. Heavy modules are imported
inside the functions of the commands, so that help is quick and needs no torch. `app.py` is the
entry point, `failures.py` converts errors into messages and exit codes, and `display.py` shows the
progress of a job.
"""

from __future__ import annotations

from tutelage.cli.app import build_app, main

__all__ = ["build_app", "main"]
