"""`tutelage validate TASKS --reward R`: test a reward function before training.

`rewards/validation.py` has the checks; this module prints them as a table or as JSON, and exits
with 1 if one failed.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tutelage.cli.options import AsJson
from tutelage.config.fields import Count, Section

if TYPE_CHECKING:
    from rich.console import Console

    from tutelage.rewards.validation import Probe

_SHOWN = 2


class _ValidateOptions(Section):
    """Options of `validate`."""

    reward: str
    """Reward by name or FILE.py:function."""
    gold: str | None = None
    """Field with the right answer; default: solution or answer."""
    limit: Count = 20
    """Number of tasks to test, from the first."""
    judge_base_url: str | None = None
    """Server of the reward llm_judge."""
    judge_model: str | None = None
    """Model of the reward llm_judge."""
    allow_unsandboxed: bool = False
    """Run code even if no sandbox works."""


def validate(
    tasks: Annotated[
        list[Path],
        typer.Argument(metavar="TASKS...", help="Tasks: JSON, JSONL, CSV or Parquet."),
    ],
    options: _ValidateOptions,
    as_json: AsJson = False,
) -> None:
    """Test a reward on right, empty, constant and hacked answers."""
    from tutelage.cli.console import output
    from tutelage.rewards import resolve_reward
    from tutelage.rewards.validation import validate_reward
    from tutelage.tasks.dataset import Dataset
    from tutelage.tools import ToolOptions

    reward, limit = options.reward, options.limit
    loaded = Dataset([task for path in tasks for task in Dataset.load(path)])
    names = ("judge_base_url", "judge_model", "allow_unsandboxed")
    function = resolve_reward(reward, ToolOptions(**options.model_dump(include={*names})))
    probes = asyncio.run(validate_reward(function, list(loaded)[:limit], options.gold))
    good = all(probe.passed for probe in probes)
    if as_json:
        checks = [probe.record() for probe in probes]
        typer.echo(json.dumps({"passed": good, "checks": checks}, indent=2))
    else:
        _show_probes(output(), probes, reward, min(limit, len(loaded)))
    if not good:
        raise typer.Exit(1)


def _show_probes(console: Console, probes: list[Probe], reward: str, tasks: int) -> None:
    """Print a table of the checks, then the failed checks with examples and advice."""
    from tutelage.cli.console import echo, number, plain_table, shorten
    from tutelage.errors import pluralize

    table = plain_table("check", "tried", "verdict", right=("tried",))
    for probe in probes:
        verdict = "not tried" if not probe.trials else "ok" if probe.passed else "FAILED"
        table.add_row(probe.name, str(len(probe.trials)), verdict)
    console.print(table)
    failed = [probe for probe in probes if not probe.passed]
    for probe in failed:
        echo(console, (f"\n{probe.name}", "bold"), f": {probe.expected}")
        for trial in probe.broken[:_SHOWN]:
            earned = "failed" if trial.reward is None else f"earned {number(trial.reward)}"
            if trial.problem is not None:
                earned += f" ({shorten(trial.problem, 100)})"
            echo(console, f"  {shorten(trial.text, 60)!r} {earned}", (f"  {trial.task.id}", "dim"))
        echo(console, f"  To fix: {probe.advice}.")
    fails = f"fails {len(failed)} of {len(probes)} checks."
    passes = f"passes all checks on {pluralize(tasks, 'task')}."
    echo(console, f"\nThe reward {reward!r} {fails if failed else passes}")
