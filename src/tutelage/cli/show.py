"""`tutelage show RUN|ROLLOUT`: a run, or one rollout turn by turn.

A name is the name of a run folder, or the beginning of a rollout ID. A run is shown by the view of
its kind (`kinds.py`), a rollout by `rollout_view.py`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tutelage.config.fields import Count, CountOrZero, Section
from tutelage.errors import RunError

ROLLOUT_PREFIX = "roll"


class _ShowOptions(Section):
    """Options of `show`."""

    run: str | None = None
    """Search for the rollout only in this run."""
    tokens: bool = False
    """For a rollout: show token ids and log-probabilities."""
    content: bool = False
    """For a rollout: show all attributes of its spans."""
    rollouts: Count | None = None
    """For a run: list N rollouts."""
    step: CountOrZero | None = None
    """For a run: list rollouts of this step, counted over all phases."""
    failed: bool = False
    """For a run: list failed rollouts."""


def show(
    name: Annotated[
        str, typer.Argument(metavar="RUN|ROLLOUT", help="Run, or the beginning of a rollout's id.")
    ],
    options: _ShowOptions,
) -> None:
    """Show what a run did, or one rollout turn by turn."""
    from tutelage.cli.console import echo, format_path, output
    from tutelage.cli.kinds import find_view
    from tutelage.cli.rollout_view import print_rollouts, show_by_id
    from tutelage.errors import pluralize
    from tutelage.runs.folder import find
    from tutelage.runs.stored import open_run
    from tutelage.types import RolloutStatus

    console = output()
    folder, run, step = None, options.run, options.step
    if run is None:
        try:
            folder = find(name)
        except RunError as error:
            if "several" in str(error) or not name.startswith(ROLLOUT_PREFIX):
                raise
    if folder is None:
        show_by_id(console, name, run, options.tokens, options.content)
    elif options.rollouts is not None or step is not None or options.failed:
        status = RolloutStatus.FAILED if options.failed else None
        with open_run(folder) as (store, run_id):
            limit = options.rollouts or 20
            chosen = list(store.rollouts(run_id, step=step, status=status, limit=limit))
            print_rollouts(console, chosen)
            count = store.count(run_id, step=step, status=status)
        matches = f"{pluralize(count, 'rollout')} {'matches' if count == 1 else 'match'}"
        echo(console, (matches, "dim"))
        if chosen:
            command = f"tutelage show {chosen[-1].id} --run {format_path(folder.path)}"
            echo(console, ("One turn by turn:", "bold"), f" {command}")
    else:
        find_view(folder).show(console, folder)
