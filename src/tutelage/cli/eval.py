"""`tutelage eval RUN_OR_MODEL --test FILE`: success on tasks, with its interval and its failures.

`evaluate` plays the tasks and does the statistics; this file shows them, as text or as JSON. With
`--output` it is a run, which `resume` goes on with, and `show` shows again.
"""

from __future__ import annotations

import importlib
import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tutelage.cli import plain_view
from tutelage.cli.options import AsJson, Trust
from tutelage.evaluate.config import EvaluationConfig

if TYPE_CHECKING:
    from rich.console import Console

    from tutelage.evaluate import Evaluation
    from tutelage.evaluate.kind import PolicyEvaluation
    from tutelage.runs.folder import RunFolder
    from tutelage.types import Rollout

resume = plain_view.resume
_FAILURES_SHOWN = 3


def evaluate(
    target: Annotated[
        str, typer.Argument(metavar="RUN_OR_MODEL", help="Run, or a model folder or hub name.")
    ],
    options: EvaluationConfig,
    otlp: Annotated[
        str | None, typer.Option(metavar="URL", help="Collector that traces are sent to.")
    ] = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Measure a run's policy, or any model, on tasks."""
    from tutelage.cli import console
    from tutelage.tracing.export import endpoint

    collector = endpoint(otlp)
    with console.waiting("loading torch ..."):
        importlib.import_module("tutelage.evaluate.targets")
    if options.output is None:
        found = _played(target, options, collector, trust)
    else:
        from tutelage.evaluate.kind import PolicyEvaluation

        found = _kept(Path(options.output), PolicyEvaluation(target, options, trust, otlp))
    if as_json:
        asked = {"target": target, "samples": options.samples}
        asked |= {"temperature": options.sampled_at, "seed": options.seed}
        typer.echo(json.dumps(_as_record(found, asked), indent=2, allow_nan=False))
    else:
        _show_evaluation(console.output(), found, options.samples)
    _end_unjudged(found.played)


def _played(
    target: str, options: EvaluationConfig, collector: str | None, trust: bool
) -> Evaluation:
    """An evaluation of which nothing is kept."""
    from tutelage.cli.console import messages
    from tutelage.cli.display import LiveDisplay
    from tutelage.evaluate import targets as evaluation

    display = LiveDisplay(messages()).open()
    try:
        found = evaluation.evaluate(target, options, progress=display, trust=trust)
    finally:
        display.finish()
    if collector is not None:
        _send(collector, found.played)
    return found


def _kept(place: Path, asked: PolicyEvaluation) -> Evaluation:
    """An evaluation as a run in a folder of its own."""
    from tutelage.cli.job import displayed
    from tutelage.evaluate.kind import recorded
    from tutelage.runs import lifecycle
    from tutelage.runs.folder import create

    folder = create(place)
    displayed(folder, lambda display: lifecycle.start(asked, folder, display))
    return recorded(folder)


def show(console: Console, folder: RunFolder) -> None:
    """What was evaluated, and what it came to."""
    from tutelage.cli.console import facts, say
    from tutelage.cli.runs import say_state
    from tutelage.evaluate.kind import recorded
    from tutelage.runs.figures import read_object

    told = read_object(folder.config)
    asked = told["config"]
    say(console, ("Evaluation ", "bold"), (folder.name, "bold"))
    pairs = [("policy", told["target"]), ("tests", ", ".join(asked["test"]))]
    facts(console, pairs, indent=2)
    if folder.read_result() is None:
        say_state(console, folder)
        return
    say(console)
    _show_evaluation(console, recorded(folder), asked["samples"])


def _end_unjudged(rollouts: Sequence[Rollout]) -> None:
    """Exit 1 with the first reason where infrastructure, such as a judge, lost every rollout."""
    lost = [f for r in rollouts if (f := r.last.failure) is not None and f.cause.infrastructure]
    if lost and len(lost) == len(rollouts):
        from tutelage.cli.failures import tell

        tell(f"Error: no rollout could be judged: {lost[0].message}")
        raise typer.Exit(1)


def _send(collector: str, rollouts: Sequence[Rollout]) -> None:
    """The traces of all rollouts to a collector; what cannot be sent is a warning."""
    from tutelage.tracing.export import OtlpExporter

    warn = partial(typer.echo, err=True)
    with OtlpExporter(collector, warn=warn, max_queue=len(rollouts)) as exporter:
        exporter.submit(rollouts)


def _as_record(found: Evaluation, asked: dict[str, Any]) -> dict[str, Any]:
    """The evaluation as JSON data; shares are from 0 to 1."""
    return {
        **asked,
        **found.record(),
        "graded": found.kind.graded,
        "test_in_train": found.in_training,
        "test_repeated": found.repeated,
        "by_family": {name: family.record() for name, family in found.by_family.items()},
        "failures": dict(_causes(found.played)),
    }


def _causes(rollouts: Sequence[Rollout]) -> Counter[str]:
    """How often each cause of failure occurs."""
    return Counter(r.last.failure.cause.value for r in rollouts if r.last.failure is not None)


def _show_evaluation(console: Console, found: Evaluation, samples: int) -> None:
    """The headline by family and in all, how many were judged, then what failed."""
    from tutelage.cli.console import facts, number, percent, plain_table, say
    from tutelage.runs.measured import REWARD, SUCCESS, TOO_MANY_LOST, judged_words, measured
    from tutelage.tasks.overlap import shared_words

    graded = found.kind.graded
    heads = ["reward"] if graded else []
    heads += ["success"] if found.kind.has_success else []
    if len(found.by_family) > 1:
        names = ("rollouts", *heads)
        table = plain_table("family", *names, right=names)
        for name, family in found.by_family.items():
            told = measured(family.record())
            cells = {"reward": REWARD.cell(told, number), "success": SUCCESS.cell(told, percent)}
            judged = "" if told.judged == told.rollouts else f"{told.judged} of "
            rollouts = f"{judged}{told.rollouts}" + (" judged" if judged else "")
            table.add_row(name, rollouts, *(cells[head] for head in heads))
        console.print(table)
        say(console)
    told = measured(found.record())
    each = "" if samples == 1 else f" x {samples} samples"
    words = {
        "reward": REWARD.cell(told, number, ends=True),
        "success": SUCCESS.cell(told, percent, ends=True),
    }
    order = heads if graded else [*heads, "reward"]
    pairs = [] if told.withheld else [(name, words[name]) for name in order]
    pairs += [("rollouts", judged_words(told)), ("tasks", f"{found.tasks}{each}")]
    if found.in_training:
        pairs.append(("seen", shared_words(found.in_training, found.tasks)))
    if found.repeated:
        pairs.append(("repeated", f"{found.repeated} of {found.tasks} tasks repeat another one"))
    facts(console, pairs)
    if told.withheld:
        say(console, (TOO_MANY_LOST, "yellow"))
    _show_wrong(console, found.played)


def _show_wrong(console: Console, rollouts: Sequence[Rollout]) -> None:
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
