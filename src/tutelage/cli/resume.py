"""`tutelage resume RUN`: resume a run that was stopped or killed.

The configuration is that of the run folder and cannot be changed, so that the result equals that of
an uninterrupted run.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tutelage.cli.options import Trust


def resume(
    run: Annotated[str, typer.Argument(help="Run folder, or the beginning of its name in runs/.")],
    allow_changes: Annotated[
        bool,
        typer.Option(
            "--allow-changes",
            help="Resume although agent, reward, tools, model or tasks have changed.",
        ),
    ] = False,
    trust: Trust = False,
) -> None:
    """Resume a run that was stopped or killed."""
    from tutelage.cli.kinds import find_view
    from tutelage.runs.folder import RunFolder, find
    from tutelage.runs.launched import world_size
    from tutelage.runs.trust import check_trusted, find_code

    def find_folder() -> RunFolder:
        folder = find(run)
        find_view(folder)
        check_trusted(folder, find_code(folder), trust=trust)
        return folder

    if world_size() == "1":
        folder = find_folder()
    else:
        from tutelage.weights.process_group import get_group, run_on_all

        folder = run_on_all(get_group(), find_folder)
    find_view(folder).resume(folder, allow_changes)
