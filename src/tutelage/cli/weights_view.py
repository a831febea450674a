"""View of a run that trains weights: resume, metrics and result.

`outcome.py` has the tables of a result.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from tutelage.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from tutelage.runs.folder import RunFolder
    from tutelage.runs.progress import Progress

_COLUMNS: dict[str, tuple[str, ...]] = {
    "reward": ("reward/mean",),
    "loss": ("loss/policy", "loss/sft"),
    "max |Δlogp|": ("max_dlogp",),
}
"""Columns of the table of phases, each with the metrics that may fill it."""


def resume(folder: RunFolder, allow_changes: bool) -> None:
    """Resume a training run and show its result."""
    from tutelage.cli.job import run_job
    from tutelage.trainer.agent_file import resume_agent
    from tutelage.weights import jobs
    from tutelage.weights.process_group import get_group

    resumed = jobs.resume if folder.own_agent()[0] is None else resume_agent

    def job(progress: Progress) -> dict[str, Any]:
        return resumed(folder, progress, allow_changes=allow_changes)

    run_job(folder, job, get_group().rank)


def show(console: Console, folder: RunFolder) -> None:
    """Print the settings, the phases, the outcome, and a few rollouts."""
    from tutelage.cli.console import echo, echo_pairs
    from tutelage.cli.outcome import show_outcome
    from tutelage.cli.rollout_view import show_stored_rollouts
    from tutelage.cli.runs import print_state
    from tutelage.config import Resolved

    result = folder.read_result()
    echo(console, ("Run ", "bold"), (folder.name, "bold"))
    try:
        resolved = Resolved.from_json(folder.config.read_text(encoding="utf-8"))
        config = resolved.config
        rule = config.algorithm.adv_estimator if config.algorithm.name == "rl" else "sft"
        prefixes = ("default", "preset", "train ", "derived")
        table = resolved.to_table()
        changed = [
            f"{key}={value}" for key, value, origin, _ in table if not origin.startswith(prefixes)
        ]
        pairs = [("recipe", f"{config.recipe}, {rule}, seed {config.seed}")]
        echo_pairs(console, [*pairs, *(("set", text) for text in changed)], indent=2)
    except ConfigError as error:
        echo(console, (f"  the configuration cannot be read: {error}", "yellow"))
    _show_phases(console, folder.read_metrics())
    echo(console)
    if result is None:
        print_state(console, folder)
    else:
        show_outcome(console, folder, result)
    show_stored_rollouts(console, folder)


def _show_phases(console: Console, lines: list[dict[str, Any]]) -> None:
    """Print a table of phases with the number of steps and the first and last metric values."""
    from tutelage.cli.console import number, plain_table

    lines = [line for line in lines if line.get("step")]  # a measurement is no step
    if not lines:
        return
    names = ("steps", *_COLUMNS)
    table = plain_table("phase", *names, right=names)
    for phase, group in itertools.groupby(lines, key=lambda line: str(line.get("phase", ""))):
        rows, cells = list(group), list[str]()
        for keys in _COLUMNS.values():
            items = (row[key] for row in rows for key in keys if key in row)
            values = [float(value) for value in items if isinstance(value, (int, float))]
            course = f"{number(values[0])} -> {number(values[-1])}" if values else ""
            cells.append(number(max(values)) if values and keys == ("max_dlogp",) else course)
        table.add_row(phase, str(len(rows)), *cells)
    console.print()
    console.print(table)
