"""`tutelage resume RUN`: go on with a run that was stopped or killed.

The configuration is the one that the run folder holds; nothing of it can be changed, which is what
makes the result equal to that of a run that was never stopped.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tutelage.cli.options import Trust
from tutelage.errors import ConfigError


def resume(
    run: Annotated[str, typer.Argument(help="Run folder, or the beginning of its name in runs/.")],
    allow_changes: Annotated[
        bool,
        typer.Option(
            "--allow-changes",
            help="Prompt searches: go on although agent, grader, model or tasks have changed.",
        ),
    ] = False,
    trust: Trust = False,
) -> None:
    """Go on with a run that was stopped or killed."""
    from tutelage.cli.job import run_job
    from tutelage.cli.orchestrate_run import go_on, is_orchestration
    from tutelage.cli.planner import resume_planner
    from tutelage.cli.prompt_train import resume_prompts
    from tutelage.config import Resolved
    from tutelage.orchestration.setup import is_planner_run
    from tutelage.prompts.record import is_prompt_run
    from tutelage.runs.folder import find
    from tutelage.runs.trust import check_trusted, code_of
    from tutelage.weights import jobs

    folder = find(run)
    check_trusted(folder, code_of(folder), trust=trust)
    if is_prompt_run(folder):
        resume_prompts(folder, allow_changes)
        return
    if is_orchestration(folder):
        go_on(folder)
        return
    if is_planner_run(folder):
        resume_planner(folder)
        return
    if allow_changes:
        raise ConfigError("--allow-changes is for prompt searches; leave it out")
    config = Resolved.from_json(folder.config.read_text(encoding="utf-8")).config
    live = "console" in config.trainer.logger
    run_job(folder, lambda progress: jobs.resume(folder, progress), live=live)
