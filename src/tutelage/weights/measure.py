"""Measurements: held-out tasks played once each, within a phase or as a phase of their own.

A phase of measurement plays the test tasks, sampled and greedy, with samples that do not depend on
the other tasks; a glance within a phase plays validation tasks, faster. `statistics/outcome.py`
sums up; `run.py` has the shared parts of all phases.
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
    work: TrainingRun,
    tasks: Sequence[Task],
    label: str,
    *,
    temperature: float,
    mode: Mode,
    with_tools: bool = True,
) -> Evaluation:
    """Play held-out tasks once each. In `Mode.TEST` a task's samples do not depend on the other
    tasks, bit for bit, at some cost."""
    tick = work.state.tick
    seeds = work.setting.seeds.child("evaluation", label, tick)
    specs = [
        RolloutSpec(task, mode, task.id, 0, seeds.child(i), tick, label)
        for i, task in enumerate(tasks)
    ]
    done = count(1)
    played = work.play(
        specs,
        temperature,
        with_tools=with_tools,
        invariant=mode is Mode.TEST,
        on_done=lambda _: work.run.progress.evaluation(label, next(done), len(specs)),
    )
    return summarise(played, work.success, work.kind)


def quick_eval(
    work: TrainingRun,
    tasks: Sequence[Task],
    label: str,
    temperature: float,
    values: dict[str, float],
) -> Evaluation:
    """A quick measurement on validation tasks, within a phase, whose `values` get its metrics.

    They are `val/success_sampled` and so on, with how many were judged of how many; a rate that
    there is not has no key.
    """
    evaluation = measure(work, tasks, label, temperature=temperature, mode=Mode.VAL)
    values |= _metrics(evaluation.record(), "val", label.rpartition("/")[2])
    return evaluation


def _metrics(record: JSON, split: str, name: str) -> dict[str, float]:
    """The metrics of a measurement, from its record."""
    words = ("judged", "rollouts", "success", "mean_reward")
    values = {f"{split}/{word.removeprefix('mean_')}_{name}": record[word] for word in words}
    return {key: value for key, value in values.items() if value is not None}


def ways_to_measure(setting: TrainingInputs, name: str) -> list[tuple[str, float, bool]]:
    """How the phase `name` plays the test tasks: decoding, temperature, and with tools or not."""
    ways = [("sampled", setting.config.rollout.temperature, True), ("greedy", 0.0, True)]
    if name == "after" and setting.tools and setting.given is None and setting.sft_dataset is None:
        ways.append(("no_tools", 0.0, False))
    skipped = setting.config.trainer.skip_measurements
    return [way for way in ways if f"{name}/{way[0]}" not in skipped]


def run_measurement(work: TrainingRun, name: str, run: Run) -> None:
    """The phase that measures test tasks, sampled and greedy, and keeps the evaluations: in the
    result, and as metrics (`test/success_sampled`; `val/...` where validation has the same tasks).
    """
    tasks, results = work.setting.tasks, work.state.results
    split = "val" if list(tasks.val) == list(tasks.test) else "test"
    values: dict[str, float] = {}
    run.progress.phase(f"measure {name}")
    for way, temperature, with_tools in ways_to_measure(work.setting, name):
        label = f"{name}/{way}"
        if label not in results:
            work.state.tick += 1
            evaluation = measure(
                work,
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
            work.save()
            work.check_stop()
        values |= _metrics(results[label], split, way)
    work.log(work.state.phase, 0, values)
