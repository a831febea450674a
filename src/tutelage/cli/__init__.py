"""The command line: `tutelage VERB ...`, one module per verb.

A verb reads its options, calls the layer that does the work, and shows what came back; it decides
nothing itself. Heavy modules are imported inside the verbs, so that help is quick and needs no
torch. Start at `app.py`; `failures.py` is the one place that turns errors into words and exit
codes, `display.py` what is seen while a job runs.
"""

from __future__ import annotations

from tutelage.cli.app import build_app, main

__all__ = ["build_app", "main"]
