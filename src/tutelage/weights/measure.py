"""Measurements: held-out tasks played once each, within a phase or as a phase of their own.

A phase of measurement plays the test tasks, sampled and greedy, with samples that do not depend on
the other tasks; a glance within a phase plays validation tasks, faster. `statistics/outcome.py`
sums up; `phases.py` has the shared parts of all phases.
"""

from __future__ import annotations

from collections.abc import Sequence

from tutelage.rollouts.runner import RolloutSpec
from tutelage.statistics.outcome import Evaluation, summarise
from tutelage.types import JSON, Mode, Rollout, Task
from tutelage.weights.context import TrainingContext
from tutelage.weights.inputs import TrainingInputs


def measure(
    ctx: TrainingContext,
    tasks: Sequence[Task],
    label: str,
    *,
    temperature: float,
    mode: Mode,
    with_tools: bool = True,
    invariant: bool = True,
) -> Evaluation:
    """Play held-out tasks once each. With `invariant` a task's samples do not depend on the other
    tasks, bit for bit, at some cost."""
    state = ctx.state
    seeds = ctx.setting.seeds.child("evaluation", label, state.tick)
    specs = [
        RolloutSpec(task, mode, task.id, 0, seeds.child(i), state.tick, label)
        for i, task in enumerate(tasks)
    ]
    done = 0

    def count(_: Rollout) -> None:
        nonlocal done
        done += 1
        ctx.run.progress.evaluation(label, done, len(specs))

    played = ctx.play(specs, temperature, with_tools=with_tools, invariant=invariant, on_done=count)
    return summarise(played, ctx.success, ctx.kind)


def quick_eval(
    ctx: TrainingContext,
    tasks: Sequence[Task],
    label: str,
    temperature: float,
    values: dict[str, float],
) -> Evaluation:
    """A quick measurement on validation tasks, within a phase, whose `values` get its metrics.

    They are `val/success_sampled` and so on, with how many were judged of how many; a rate that
    there is not has no key.
    """
    evaluation = measure(ctx, tasks, label, temperature=temperature, mode=Mode.VAL, invariant=False)
    values |= _metrics(evaluation.record(), "val", label.rpartition("/")[2])
    return evaluation


def _metrics(found: JSON, split: str, name: str) -> dict[str, float]:
    """The metrics of a measurement, from its record."""
    known = {"judged": "judged", "rollouts": "rollouts"}
    known |= {"success": "success", "mean_reward": "reward"}
    fields = {f"{split}/{word}_{name}": found[key] for key, word in known.items()}
    return {key: value for key, value in fields.items() if value is not None}


def ways_to_measure(setting: TrainingInputs, name: str) -> list[tuple[str, float, bool]]:
    """How the phase `name` plays the test tasks: decoding, temperature, and with tools or not."""
    ways = [("sampled", setting.config.rollout.temperature, True), ("greedy", 0.0, True)]
    if name == "after" and setting.tools and setting.given is None and setting.sft_dataset is None:
        ways.append(("no_tools", 0.0, False))
    skipped = setting.config.trainer.skip_measurements
    return [way for way in ways if f"{name}/{way[0]}" not in skipped]


def measure_before_or_after(ctx: TrainingContext, name: str) -> None:
    """The phase that measures test tasks, sampled and greedy, and keeps what it found: in the
    result, and as metrics (`test/success_sampled`; `val/...` where validation has the same tasks).
    """
    kinds = ways_to_measure(ctx.setting, name)
    ctx.run.progress.phase(f"measure {name}")
    for kind, temperature, with_tools in kinds:
        label = f"{name}/{kind}"
        if label in ctx.state.results:
            continue
        ctx.state.tick += 1
        evaluation = measure(
            ctx,
            ctx.setting.tasks.test,
            label,
            temperature=temperature,
            mode=Mode.TEST,
            with_tools=with_tools,
        )
        found = ctx.state.results[label] = evaluation.record()
        if any(task.fields.get("template") == "unseen" for task in ctx.setting.tasks.test):
            found["by_family"] = {n: some.record() for n, some in evaluation.by_family.items()}
        right = found["success"]
        if name == "demonstrations" and right is not None:
            advice = "; train longer on them (sft.max_steps=...), or add more, before using rewards"
            ctx.run.progress.note(f"{label}: {right:.1%} succeed{advice * (right < 0.05)}")
        ctx.save()
        ctx.check_stop()
    tasks = ctx.setting.tasks
    split = "val" if list(tasks.val) == list(tasks.test) else "test"
    values: dict[str, float] = {}
    for kind, _, _ in kinds:
        values |= _metrics(ctx.state.results[f"{name}/{kind}"], split, kind)
    # It is no step, so nothing is told of one.
    ctx.run.log({"phase": ctx.state.phase, "step": 0, "tick": ctx.state.tick, **values})
    ctx.state.metrics_lines += 1
