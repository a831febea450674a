"""`tutelage resume RUN`: go on with a run that was stopped or killed.

The configuration is the one that the run folder holds; nothing of it can be changed, which is what
makes the result equal to that of a run that was never stopped.
"""

from __future__ import annotations

from typing import Annotated

import typer


def resume(
    run: Annotated[str, typer.Argument(help="Run folder, or the beginning of its name in runs/.")],
) -> None:
    """Go on with a run that was stopped or killed."""
    from tutelage.cli.job import run_job
    from tutelage.config import Resolved
    from tutelage.train import jobs
    from tutelage.train.folder import find

    folder = find(run)
    config = Resolved.from_json(folder.config.read_text(encoding="utf-8")).config
    live = "console" in config.trainer.logger
    run_job(folder, lambda progress: jobs.resume(folder, progress), live=live)
