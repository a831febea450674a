"""`tutelage eval TARGET --test FILE`: success on tasks, with interval, cost and failures.

`evaluate` plays the tasks and computes the statistics; this module shows them as text or JSON. Two
targets are compared on the tasks that both played. With `--output` the evaluation is a run, which
`resume` continues and `show` shows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tutelage.cli import plain_view
from tutelage.cli.options import AsJson, Traces, Trust
from tutelage.errors import ConfigError
from tutelage.evaluate.config import EvaluationConfig
from tutelage.types import StopReason

if TYPE_CHECKING:
    from rich.console import Console

    from tutelage.evaluate import Evaluation
    from tutelage.evaluate.compare import Comparison
    from tutelage.evaluate.kind import PolicyEvaluation
    from tutelage.runs.folder import RunFolder
    from tutelage.types import Rollout

resume = plain_view.resume
_FAILURES_SHOWN = 3


def evaluate(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET [TARGET]",
            help="What to evaluate: AGENT.py, a custom agent; the URL of an OpenAI-compatible "
            "server; a run; or a model, by folder or OWNER/NAME on huggingface.co. Two targets are "
            "compared.",
        ),
    ],
    options: EvaluationConfig,
    traces: Traces,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate agents, servers, runs or models on tasks."""
    from tutelage.cli.console import fetch, show_status
    from tutelage.evaluate.compare import RunFacts, compare
    from tutelage.evaluate.compared import read_facts
    from tutelage.evaluate.kind import PolicyEvaluation, evaluation_folder
    from tutelage.evaluate.preparation import prepare_evaluation
    from tutelage.tools.registry import close_tools

    _check_targets(targets, options)
    configs = [options] if len(targets) == 1 else [options.select_target(i) for i in range(2)]
    runs = [
        PolicyEvaluation(_resolve(target), config, trust, traces.otlp, config.output is not None)
        for target, config in zip(targets, configs, strict=True)
    ]
    for target in targets:
        fetch(target)
    with show_status("loading ..."), ExitStack() as failed:
        # An error in the second is raised before the first one runs. Evaluations in a folder are
        # prepared as runs.
        for run in (run for run in runs if not run.kept):
            run.given = prepare_evaluation(run.target, run.asked, trust=run.trust)
            failed.callback(close_tools, run.given.evaluated_agent.tools)
        failed.pop_all()
    names = _name_evaluations(runs) if len(runs) == 2 else targets
    evaluations: list[Evaluation] = []
    facts: list[RunFacts] = []
    with ExitStack() as stack:
        for run, name in zip(runs, names, strict=True):
            folder = stack.enter_context(evaluation_folder(run.asked.output))
            evaluations.append(_play_evaluation(run, folder, as_json))
            facts.append(replace(read_facts(folder, PolicyEvaluation), name=name))
    paired = compare(facts) if len(facts) == 2 else None
    if as_json:
        pairs = zip(targets, evaluations, strict=True)
        records = [_to_json(target, options, result) for target, result in pairs]
        whole: Any = records[0]
        if paired is not None:
            whole = {"targets": records, "pair": asdict(paired.pairs[0])}
        typer.echo(json.dumps(whole, indent=2, allow_nan=False))
    else:
        _show_evaluations(names if paired else [""], runs, evaluations, paired)


def _check_targets(targets: Sequence[str], options: EvaluationConfig) -> None:
    """Raise `ConfigError` for more than two targets, or more endpoints or models than targets."""
    if len(targets) > 2:
        raise ConfigError(
            f"at most two targets can be compared, got {len(targets)}; evaluate each with "
            "--output, then run: tutelage compare RUN RUN RUN"
        )
    for name, values in (("endpoint", options.endpoint), ("model", options.model)):
        if len(values) > len(targets):
            raise ConfigError(
                f"--{name} is set {len(values)} times for {len(targets)} "
                f"target{'s' * (len(targets) > 1)}; pass it once, or once per target"
            )


def _resolve(target: str) -> str:
    """Return a target; the path of an agent file is made absolute, so that `resume` works from any
    directory."""
    file, _, name = target.rpartition(".py")
    is_file = Path(f"{file}.py").is_file() and name[:1] in ("", ":")
    return f"{Path(file).resolve()}.py{name}" if is_file else target


def _play_evaluation(evaluation: PolicyEvaluation, folder: RunFolder, as_json: bool) -> Evaluation:
    """Run an evaluation in its run folder. After an interruption, show the results of the finished
    rollouts."""
    from tutelage.cli.console import echo, output
    from tutelage.cli.display import LiveDisplay
    from tutelage.cli.job import report_stop
    from tutelage.evaluate.kind import load_evaluation
    from tutelage.runs import lifecycle
    from tutelage.runs.progress import Progress

    try:
        with LiveDisplay() as view, report_stop(folder, view) if evaluation.kept else nullcontext():
            lifecycle.start(evaluation, folder, view)
        return load_evaluation(folder)
    except (KeyboardInterrupt, typer.Exit):
        if evaluation.played and not as_json:
            total = len(evaluation.ready.tasks) * evaluation.asked.samples
            echo(output(), f"Stopped after {len(evaluation.played)} of {total} rollouts:")
            result = evaluation.summarise_rollouts([*evaluation.played.values()], Progress())
            _show_evaluation(output(), result, evaluation.asked.samples)
        raise


def _name_evaluations(evaluations: Sequence[PolicyEvaluation]) -> list[str]:
    """Return display names of two evaluations: the names of the folders, or the targets, with
    models appended to equal targets."""
    if evaluations[0].asked.output is not None:
        return [Path(str(evaluation.asked.output)).name for evaluation in evaluations]
    names = [Path(evaluation.target).name or evaluation.target for evaluation in evaluations]
    if names[0] == names[1]:
        models = [" with ".join(("", *evaluation.asked.model)) for evaluation in evaluations]
        names = [name + model for name, model in zip(names, models, strict=True)]
    return names if names[0] != names[1] else [f"{names[0]} (1)", f"{names[1]} (2)"]


def _show_evaluations(
    names: Sequence[str],
    runs: Sequence[PolicyEvaluation],
    results: Sequence[Evaluation],
    comparison: Comparison | None,
) -> None:
    """Print each evaluation, then the comparison if there are two."""
    from tutelage.cli.compare import show_pairs
    from tutelage.cli.console import echo, format_path, output, print_steps

    console = output()
    for name, one in zip(names, results, strict=True):
        if name:
            echo(console, (name, "bold"))
        _show_evaluation(console, one, runs[0].asked.samples)
        if name:
            echo(console)
    if comparison is not None:
        show_pairs(console, comparison)
    kept = [format_path(Path(one.asked.output)) for one in runs if one.asked.output is not None]
    steps = ["the same command with --output runs/NAME keeps the rollouts for tutelage show"]
    if kept:
        others = " ".join(kept) if len(kept) > 1 else f"{kept[0]} OTHER_RUN"
        steps = [f"tutelage show {path} --rollouts 20" for path in kept]
        steps += [f"tutelage compare {others}", "tutelage runs"]
    echo(console)
    print_steps(console, *steps)


def show(console: Console, folder: RunFolder) -> None:
    """Print the settings of an evaluation and its result."""
    from tutelage.cli.console import echo, echo_pairs
    from tutelage.cli.rollout_view import show_stored_rollouts
    from tutelage.cli.runs import print_state
    from tutelage.evaluate.kind import load_evaluation
    from tutelage.runs.figures import read_object

    fields = read_object(folder.config)
    config = fields["config"]
    echo(console, ("Evaluation ", "bold"), (folder.name, "bold"))
    pairs = [("target", fields["target"])]
    pairs += [("environment", config["environment"])] * bool(config["environment"])
    pairs += [("tests", ", ".join(config["test"]))] * bool(config["test"])
    pairs[1:1] = [("model", fields["base"])] * (fields["base"] != fields["target"])
    echo_pairs(console, pairs, indent=2)
    if folder.read_result() is None:
        print_state(console, folder)
        return
    echo(console)
    _show_evaluation(console, load_evaluation(folder), config["samples"])
    echo(console)
    show_stored_rollouts(console, folder)


def _to_json(target: str, options: EvaluationConfig, result: Evaluation) -> dict[str, Any]:
    """Return the evaluation as JSON data; rates are from 0 to 1."""
    failures = [rollout.last.failure for rollout in result.played]
    return {
        "target": target,
        "samples": options.samples,
        "temperature": options.sampling_temperature,
        "seed": options.seed,
        **result.record(),
        "graded": result.kind.graded,
        "test_in_train": result.in_training,
        "test_repeated": result.repeated,
        "by_family": {name: family.record() for name, family in result.by_family.items()},
        "failures": dict(Counter(failure.cause.value for failure in failures if failure)),
        "cost": asdict(result.cost),
    }


def _show_evaluation(console: Console, result: Evaluation, samples: int) -> None:
    """Print results by task family and in total, counts of judged rollouts, and failures."""
    from tutelage.cli.console import echo, echo_pairs, number, percent, plain_table
    from tutelage.runs.stored_evaluation import (
        REWARD,
        SUCCESS,
        TOO_MANY_LOST,
        format_judged,
        parse_evaluation,
    )
    from tutelage.tasks.overlap import format_shared

    graded = result.kind.graded
    heads = ["success"] if result.kind.has_success else []
    heads.insert(0 if graded else 1, "reward")
    if len(result.by_family) > 1 and not result.ungraded:
        names = ("rollouts", *heads)
        table = plain_table("family", *names, right=names)
        for name, family in result.by_family.items():
            data = parse_evaluation(family.record())
            cells = {"reward": REWARD.text(data, number), "success": SUCCESS.text(data, percent)}
            judged = "" if data.judged == data.rollouts else f"{data.judged} of "
            rollouts = f"{judged}{data.rollouts}" + (" judged" if judged else "")
            table.add_row(name, rollouts, *(cells[head] for head in heads))
        console.print(table)
        echo(console)
    data = parse_evaluation(result.record())
    suffix = "" if samples == 1 else f" x {samples} samples"
    reward, success = REWARD.text(data, number, ends=True), SUCCESS.text(data, percent, ends=True)
    texts = {"reward": reward, "success": success}
    pairs = [] if data.is_withheld or result.ungraded else [(name, texts[name]) for name in heads]
    pairs += [("rollouts", format_judged(data)), ("tasks", f"{result.tasks}{suffix}")]
    if result.no_calls:
        pairs.append(("no calls", f"{result.no_calls} of {result.rollouts} rollouts made none"))
    if result.in_training:
        pairs.append(("seen", format_shared(result.in_training, result.tasks)))
    if result.repeated:
        pairs.append(("repeated", f"{result.repeated} of {result.tasks} tasks repeat another one"))
    replies = [call.sampled for rollout in result.played for call in rollout.last.calls]
    if cut := sum(reply.stop_reason is StopReason.LENGTH for reply in replies):
        cause = "by a limit of tokens (--max-tokens, or the context)"
        pairs.append(("cut off", f"{cut:,} of {len(replies):,} replies, {cause}"))
    if result.cost.calls:
        pairs.append(("cost", str(result.cost)))
    echo_pairs(console, pairs)
    if data.is_withheld:
        echo(console, (TOO_MANY_LOST, "yellow"))
    _show_worst(console, result.played)


def _show_worst(console: Console, rollouts: Sequence[Rollout]) -> None:
    """Print a few rollouts with the lowest rewards."""
    from tutelage.cli.console import echo, shorten
    from tutelage.cli.rollout_view import format_reward

    graded = [r for r in rollouts if r.reward is not None]
    # Where every rollout has the same reward, that may be the worst one.
    best = max((1.0, *(r.reward.value for r in graded if r.reward is not None)))
    worst = [r for r in graded if r.reward is not None and r.reward.value < best]
    worst.sort(key=lambda r: r.reward.value if r.reward is not None else 0.0)
    by_task = {rollout.task.id: rollout for rollout in reversed(worst)}
    for rollout in [r for r in worst if by_task[r.task.id] is r][:_FAILURES_SHOWN]:
        echo(console, (f"\n{shorten(rollout.task.title, 60)}", "bold"))
        answer = rollout.task.fields.get("answer")
        last = rollout.last
        note = "none" if last.final_text is None else shorten(last.final_text, 60)
        done = "answered" if last.failure is None else "failed:"
        note = note if last.failure is None else shorten(last.failure.message, 160)
        text = f"  {done} {note}" + ("" if answer is None else f", wanted {shorten(answer, 40)}")
        echo(console, text, (f"   reward {format_reward(rollout.reward)}", "dim"))
