"""Measurements: held-out tasks played once each, within a phase or as a separate phase.

A phase of measurement plays the test tasks, sampled and greedy, with samples that do not depend on
other tasks. Within a phase validation tasks are played, which is faster. `statistics/outcome.py`
computes the results; `run.py` has the shared parts of all phases.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from tutelage.rollouts.runner import RolloutSpec
from tutelage.runs.lifecycle import Run
from tutelage.statistics.outcome import Evaluation, summarise
from tutelage.types import JSON, Mode, Task
from tutelage.weights.inputs import TrainingInputs
from tutelage.weights.run import TrainingRun


def measure(
    ctx: TrainingRun,
    tasks: Sequence[Task],
    label: str,
    *,
    temperature: float,
    mode: Mode,
    with_tools: bool = True,
) -> Evaluation:
    """Play each held-out task once, and return the evaluation.

    In `Mode.TEST` the samples of a task do not depend on other tasks, which is somewhat slower.
    """
    tick = ctx.state.tick
    seeds = ctx.setting.seeds.child("evaluation", label, tick)
    specs = [
        RolloutSpec(task, mode, task.id, 0, seeds.child(i), tick, label)
        for i, task in enumerate(tasks)
    ]
    done = count(1)
    played = ctx.play(
        specs,
        temperature,
        with_tools=with_tools,
        invariant=mode is Mode.TEST,
        on_done=lambda _: ctx.run.progress.evaluation(label, next(done), len(specs)),
    )
    return summarise(played, ctx.success, ctx.kind)


def quick_eval(
    ctx: TrainingRun,
    tasks: Sequence[Task],
    label: str,
    temperature: float,
    values: dict[str, float],
) -> Evaluation:
    """Measure validation tasks within a phase, and add the metrics to `values`.

    They are `val/success_sampled` and so on, with the numbers of judged and of all rollouts. A rate
    that cannot be computed has no key.
    """
    evaluation = measure(ctx, tasks, label, temperature=temperature, mode=Mode.VAL)
    values |= _evaluation_metrics(evaluation.record(), "val", label.rpartition("/")[2])
    return evaluation


def _evaluation_metrics(record: JSON, split: str, name: str) -> dict[str, float]:
    """Return the metrics of an evaluation record."""
    words = ("judged", "rollouts", "success", "mean_reward")
    values = {f"{split}/{word.removeprefix('mean_')}_{name}": record[word] for word in words}
    return {key: value for key, value in values.items() if value is not None}


def list_measurements(inputs: TrainingInputs, name: str) -> list[tuple[str, float, bool]]:
    """Return name, temperature and use of tools for each measurement in a phase."""
    ways = [("sampled", inputs.config.rollout.temperature, True), ("greedy", 0.0, True)]
    if name == "after" and inputs.tools and inputs.given is None and inputs.sft_dataset is None:
        ways.append(("no_tools", 0.0, False))
    skipped = inputs.config.trainer.skip_measurements
    return [way for way in ways if f"{name}/{way[0]}" not in skipped]


def run_measurement(ctx: TrainingRun, name: str, run: Run) -> None:
    """Measure the test tasks, sampled and greedy, and record the evaluations.

    They are added to the result and to the metrics (`test/success_sampled`; also `val/...` if
    validation has the same tasks).
    """
    tasks, results = ctx.setting.tasks, ctx.state.results
    split = "val" if list(tasks.val) == list(tasks.test) else "test"
    values: dict[str, float] = {}
    run.progress.phase(f"measure {name}")
    for way, temperature, with_tools in list_measurements(ctx.setting, name):
        label = f"{name}/{way}"
        if label not in results:
            ctx.state.tick += 1
            evaluation = measure(
                ctx,
                tasks.test,
                label,
                temperature=temperature,
                mode=Mode.TEST,
                with_tools=with_tools,
            )
            results[label] = record = evaluation.record()
            if any(task.fields.get("template") == "unseen" for task in tasks.test):
                families = evaluation.by_family.items()
                record["by_family"] = {n: family.record() for n, family in families}
            ctx.save()
            ctx.check_stop()
        values |= _evaluation_metrics(results[label], split, way)
    ctx.log(ctx.state.phase, 0, values)
