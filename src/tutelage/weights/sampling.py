"""Play the rollouts of a step: tasks, groups, refills and greedy baselines.

A step draws tasks in epochs and plays `agent.num_chains` rollouts of each. If configured, it
replaces groups whose rewards are all equal by new ones. For an estimator with baselines it also
plays each task once greedily, with the same agent and tools. All draws are addressed by step and
position in the seed tree. `asynchronous.py` plays the same rollouts ahead of their steps. Rollouts
of refills, of baselines and of the control have separate labels in the store.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from tutelage.algorithms.extensions import ESTIMATORS
from tutelage.config import RunConfig
from tutelage.rollouts.runner import RolloutSpec
from tutelage.runs.metrics import check_equal_failures
from tutelage.seeds import SeedTree
from tutelage.types import FailureCause, Mode, Rollout, Task
from tutelage.weights.checkpoint import RL
from tutelage.weights.inputs import count_drawn
from tutelage.weights.run import TrainingRun

BASELINE, REFILL = "baseline", "refill"
"""Labels of greedy baseline rollouts, and of rollouts that replace groups with equal rewards."""


@dataclass(frozen=True, slots=True)
class RolloutGroups:
    """The rollouts of one step, with baselines and metrics."""

    rollouts: list[Rollout]
    """The rollouts of the batch, group by group."""
    played: list[Rollout]
    """All rollouts that were sampled for the step, including the batch."""
    baselines: dict[str, float] | None
    """Reward of the greedy rollout of each group, for an estimator with baselines."""
    metrics: dict[str, float]

    @property
    def policies(self) -> set[str | None]:
        """Return the names of all called policies."""
        return {call.policy for r in self.rollouts for call in r.last.calls}


def play_groups(ctx: TrainingRun, phase: str, config: RunConfig, step: int) -> RolloutGroups:
    """Play the rollouts of one step of reinforcement learning."""
    start = time.perf_counter()
    size = count_drawn(ctx.setting, step + 1) - count_drawn(ctx.setting, step)
    rule = config.algorithm.filter_groups
    chains, warm = ctx.setting.config.agent.num_chains, ctx.setting.config.rollout.temperature
    apart = "" if phase == RL else phase
    placed: list[tuple[int, Task]] = []
    every: list[list[Rollout]] = []
    missing = size
    for fill in range(rule.max_num_gen_batches if rule.enable else 1):
        here = list(enumerate(draw_tasks(ctx, step, missing), start=len(placed)))
        placed += here
        label = "/".join(filter(None, (apart, f"{REFILL}/{fill}" if fill else "")))
        played = ctx.play(make_specs(ctx, phase, step, here, label), warm)
        check_grading(ctx, played)
        every += [played[i : i + chains] for i in range(0, len(played), chains)]
        missing = size - sum(is_informative(group) for group in every)
        if missing <= 0:
            break
    # Groups that can teach come before the others; all stay in the order played.
    ranked = sorted(range(len(every)), key=lambda i: (not is_informative(every[i]), i))
    chosen = [every[i] for i in sorted(ranked[:size])]
    metrics: dict[str, float] = {}
    if rule.enable:
        flat = sum(not is_informative(group) for group in every[:size])
        metrics = {"group/flat": flat / size, "group/sampled": float(len(every))}
    baselines = None
    if ESTIMATORS.find(config.algorithm.adv_estimator).baselines:
        # One greedy rollout for each group; one that was lost gives no baseline.
        tasks, tick = dict(placed), ctx.state.tick
        specs: list[RolloutSpec] = []
        for name in (group[0].group for group in chosen):
            place = int(name.rsplit("/", 1)[1])
            seeds = ctx.setting.seeds.child(phase, step, place, "greedy")
            specs.append(RolloutSpec(tasks[place], Mode.TRAIN, name, chains, seeds, tick, BASELINE))
        greedy = ctx.play(specs, 0.0)
        baselines = {r.group: r.reward.value for r in greedy if r.reward is not None}
        if baselines:
            metrics["reward/baseline"] = sum(baselines.values()) / len(baselines)
        metrics["rollout/no_baseline"] = 1 - len(baselines) / len(greedy)
        chosen = [group for group in chosen if group[0].group in baselines]
    metrics["time/rollout"] = time.perf_counter() - start
    return RolloutGroups([*chain(*chosen)], [*chain(*every)], baselines, metrics)


def epoch_indices(total: int, start: int, count: int, seeds: SeedTree) -> list[int]:
    """Return `count` indices of `total` tasks, from position `start` in shuffled epochs."""
    out: list[int] = []
    order: list[int] = []
    known = -1
    for place in range(start, start + count):
        epoch, at = divmod(place, total)
        if epoch != known:
            order, known = list(range(total)), epoch
            seeds.child(epoch).python().shuffle(order)
        out.append(order[at])
    return out


def is_informative(group: Sequence[Rollout]) -> bool:
    """Return True if a group has at least two valid rollouts whose rewards are not all equal."""
    rewards = [r.reward.value for r in group if r.reward is not None]
    return len(rewards) >= 2 and min(rewards) < max(rewards)


def draw_tasks(ctx: TrainingRun, step: int, count: int) -> list[Task]:
    """Draw the tasks of a step. The control training draws the same tasks."""
    setting, data = ctx.setting, ctx.setting.config.data
    tasks, seeds = setting.tasks.train, setting.seeds.child(RL, "order")
    start = step * data.train_batch_size
    if setting.config.algorithm.filter_groups.enable:
        # Refills take from the same stream, so that an epoch still has every task once.
        start = ctx.state.phase_data.get("drawn", 0)
        ctx.state.phase_data["drawn"] = start + count
    places = range(start, start + count)
    numbers = (
        places if data.sampling == "sequential" else epoch_indices(len(tasks), start, count, seeds)
    )
    return [tasks[i % len(tasks)] for i in numbers]


def make_specs(
    ctx: TrainingRun, phase: str, step: int, tasks: Sequence[tuple[int, Task]], label: str
) -> list[RolloutSpec]:
    """Create the rollout specs of numbered tasks of a step."""
    setting = ctx.setting
    return [
        RolloutSpec(
            task,
            Mode.TRAIN,
            f"{phase}/{step}/{place}",
            index,
            setting.seeds.child(phase, step, place, index),
            ctx.state.tick,
            label,
        )
        for place, task in tasks
        for index in range(setting.config.agent.num_chains)
    ]


def check_grading(ctx: TrainingRun, rollouts: Sequence[Rollout]) -> None:
    """Raise `FailureBudgetError` if the reward failed in the same way on all rollouts so far."""
    wrong, told = FailureCause.ANSWER_ERROR.value, ctx.state.results
    if told["failures"].get(wrong) != ctx.state.rollouts:
        return
    ctx.run.writer.flush()
    check_equal_failures(rollouts, ctx.state.rollouts)
