"""`tutelage train AGENT.py`: the weights of a custom agent.

`trainer/agent_file.py` makes a `Trainer` of the command; this file shows what it does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer


def train_agent(
    reference: str,
    overrides: Sequence[str],
    flags: Mapping[str, Any],
    file: Path | None,
    show_table: Any,
    *,
    dry: bool,
) -> None:
    """Train the agent in a file, or with `dry` show the configuration and play one task."""
    from tutelage.agents.loading import load_agent
    from tutelage.cli.console import waiting
    from tutelage.cli.job import run_job
    from tutelage.runs.folder import RunFolder, place_of
    from tutelage.runs.progress import Progress

    agent, _ = load_agent(reference)
    with waiting("loading torch ..."):
        from tutelage.trainer.agent_file import keys_of, trainer_of
    keys = keys_of(overrides, flags, file)
    if dry:
        trainer = trainer_of(keys, flags, None, Progress())
        with waiting("playing one task ..."):
            (rollout,) = trainer.dev(reference, n=1).rollouts
        _show_dry_run(rollout, keys.resolved, show_table)
        return
    place = place_of(flags.get("output"), agent.name)

    def job(progress: Progress) -> dict[str, Any]:
        return trainer_of(keys, flags, place, progress).fit(reference).details

    run_job(RunFolder(place), job)


def _show_dry_run(rollout: Any, resolved: Any, show_table: Any) -> None:
    from tutelage.cli.console import output, say
    from tutelage.cli.rollout_view import show_head, show_rollout

    console = output()
    show_table(console, resolved)
    say(console)
    show_head(console, rollout)
    show_rollout(console, rollout)
    say(console, "\nDry run: one task was played and nothing was trained or written.")
    if rollout.last.failure is not None:
        raise typer.Exit(1)
