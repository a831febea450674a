"""`tutelage eval RUN_OR_MODEL --test FILE`: success on tasks, with its interval and its failures.

`evaluate` plays the tasks and does the statistics; this file shows them, as text or as JSON.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from tutelage.evaluate import Evaluation
    from tutelage.types import Rollout

_FAILURES_SHOWN = 3


def evaluate(
    target: Annotated[
        str, typer.Argument(metavar="RUN_OR_MODEL", help="Run, or a model folder or hub name.")
    ],
    test: Annotated[
        list[Path],
        typer.Option(metavar="FILE", help="Tasks: JSON, JSONL, CSV or Parquet; may be repeated."),
    ],
    samples: Annotated[int, typer.Option(min=1, help="Rollouts of each task.")] = 1,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, help="0 is greedy; without it 0 for one sample, else 1."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first tasks.")] = None,
    tools: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Tools by name or FILE.py:function; else the run's."),
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Reward by name or FILE.py:function; else the run's."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the samples.")] = 0,
    otlp: Annotated[
        str | None, typer.Option(metavar="URL", help="Collector that traces are sent to.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure a run's policy, or any model, on tasks."""
    from tutelage.cli.console import messages, output, waiting
    from tutelage.cli.display import LiveDisplay
    from tutelage.cli.options import names

    if temperature is None:
        temperature = 0.0 if samples == 1 else 1.0
    from tutelage.tracing.export import endpoint

    collector = endpoint(otlp)
    with waiting("loading torch ..."):
        from tutelage.train import targets as evaluation
    display = LiveDisplay(messages()).open()
    try:
        found = evaluation.evaluate(
            target,
            tests=test,
            tools=names(tools),
            reward=reward,
            samples=samples,
            temperature=temperature,
            limit=limit,
            seed=seed,
            progress=display,
        )
    finally:
        display.finish()
    if collector is not None:
        _send(collector, found.rollouts)
    asked = {"target": target, "samples": samples, "temperature": temperature, "seed": seed}
    if as_json:
        typer.echo(json.dumps(as_record(found, asked), indent=2, allow_nan=False))
    else:
        show_evaluation(output(), found, samples)


def _send(collector: str, rollouts: list[Rollout]) -> None:
    """The traces of all rollouts to a collector; what cannot be sent is a warning."""
    from tutelage.tracing.export import OtlpExporter

    warn = partial(typer.echo, err=True)
    with OtlpExporter(collector, warn=warn, max_queue=len(rollouts)) as exporter:
        exporter.submit(rollouts)


def as_record(found: Evaluation, asked: dict[str, Any]) -> dict[str, Any]:
    """The evaluation as JSON data; shares are from 0 to 1."""
    families = {
        name: {"rollouts": count, "success": share}
        for name, (count, share) in found.by_family.items()
    }
    return {
        **asked,
        "tasks": found.tasks,
        "rollouts": len(found.rollouts),
        "success": found.success,
        "interval": list(found.interval),
        "mean_reward": found.mean_reward,
        "by_family": families,
        "failures": dict(causes(found.rollouts)),
    }


def causes(rollouts: list[Rollout]) -> Counter[str]:
    """How often each cause of failure occurs."""
    return Counter(r.last.failure.cause.value for r in rollouts if r.last.failure is not None)


def show_evaluation(console: Console, found: Evaluation, samples: int) -> None:
    """Success by family and in all, then what failed."""
    from tutelage.cli.console import facts, number, percent, plain_table, say

    if len(found.by_family) > 1:
        table = plain_table("family", "rollouts", "success", right=("rollouts", "success"))
        for name, (count, share) in found.by_family.items():
            table.add_row(name, str(count), percent(share))
        console.print(table)
        say(console)
    low, high = found.interval
    each = "" if samples == 1 else f" x {samples} samples"
    pairs = [
        ("success", f"{percent(found.success)} (95 % interval {percent(low)} to {percent(high)})"),
        ("reward", f"{number(found.mean_reward)} in the mean"),
        ("tasks", f"{found.tasks}{each}"),
    ]
    pairs += [("failed", f"{count} {cause}") for cause, count in causes(found.rollouts).items()]
    facts(console, pairs)
    _show_wrong(console, found.rollouts)


def _show_wrong(console: Console, rollouts: list[Rollout]) -> None:
    """A few rollouts with the lowest rewards, so that a bad number can be understood."""
    from tutelage.cli.console import one_line, say
    from tutelage.cli.rollout_view import reward_words

    graded = [r for r in rollouts if r.reward is not None]
    best = max((r.reward.value for r in graded if r.reward is not None), default=0.0)
    wrong = [r for r in graded if r.reward is not None and r.reward.value < best]
    wrong.sort(key=lambda r: r.reward.value if r.reward is not None else 0.0)
    for rollout in wrong[:_FAILURES_SHOWN]:
        question = one_line(rollout.task.fields.get("question", rollout.task.id), 60)
        say(console, (f"\n{question}", "bold"))
        wanted = rollout.task.fields.get("answer")
        said = one_line(rollout.last.answer if rollout.last.answer is not None else "nothing", 60)
        told = f"  answered {said}" + ("" if wanted is None else f", wanted {one_line(wanted, 40)}")
        say(console, told, (f"   reward {reward_words(rollout.reward)}", "dim"))
