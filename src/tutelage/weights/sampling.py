"""Where a step's rollouts come from: tasks, groups, refills and greedy baselines.

A step draws tasks (in epochs, or by difficulty), plays `agent.num_chains` rollouts
of each, replaces groups whose rewards are all equal by fresh ones where that is asked for, and for
an estimator with baselines plays each task once greedily, through the same agent and its tools. All
of it is addressed by step and place in the seed tree. `asynchronous.py` plays the same rollouts
ahead of their steps. Rollouts of refills, of baselines and of the control are stored under labels
of their own.

By difficulty, tasks that are solved about half the time are drawn most often: a group teaches most
where its rewards differ most, which for a success rate p is at p = 1/2. Each task is drawn, without
replacement within a draw, with the weight

    w = floor + (1 - floor) * 4 p (1 - p)

so that a task that is always or never solved is still seen, `floor` times as often as the best one.
A task not seen yet has p = 1/2. Sources: Bae et al. (arXiv 2504.03380) for the p (1 - p) rule;
Efraimidis and Spirakis (2006) for weighted draws without replacement.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from tutelage.algorithms.extensions import ESTIMATORS
from tutelage.config import RunConfig
from tutelage.rollouts.runner import RolloutSpec
from tutelage.runs.metrics import stop_if_alike
from tutelage.seeds import SeedTree
from tutelage.types import FailureCause, Mode, Rollout, Task
from tutelage.weights.checkpoint import RL
from tutelage.weights.inputs import drawn
from tutelage.weights.run import TrainingRun

DIFFICULTY = "difficulty"
"""Where a phase remembers how often tasks were solved."""
MEMORY = 0.5
"""Weight of what was known of a task when it is seen again."""
BASELINE, REFILL = "baseline", "refill"
"""Labels of greedy baseline rollouts, and of what was played to replace flat groups."""


@dataclass(frozen=True, slots=True)
class RolloutGroups:
    """What one step learns from, and what it cost."""

    rollouts: list[Rollout]
    """The rollouts of the batch, group by group."""
    played: list[Rollout]
    """All rollouts that were sampled for it; the batch is among them."""
    baselines: dict[str, float] | None
    """Reward of the greedy rollout of each group, for an estimator with baselines."""
    metrics: dict[str, float]

    @property
    def policies(self) -> set[str | None]:
        """The policies that spoke."""
        return {call.policy for r in self.rollouts for call in r.last.calls}


def play_groups(work: TrainingRun, phase: str, config: RunConfig, step: int) -> RolloutGroups:
    """Play the rollouts of one step of reinforcement learning, as the phase's `config` says."""
    start = time.perf_counter()
    size = drawn(work.setting, step + 1) - drawn(work.setting, step)
    rule = config.algorithm.filter_groups
    chains, warm = work.setting.config.agent.num_chains, work.setting.config.rollout.temperature
    apart = "" if phase == RL else phase
    placed: list[tuple[int, Task]] = []
    every: list[list[Rollout]] = []
    missing = size
    for fill in range(rule.max_num_gen_batches if rule.enable else 1):
        here = list(enumerate(draw_tasks(work, step, missing, fill), start=len(placed)))
        placed += here
        label = "/".join(filter(None, (apart, f"{REFILL}/{fill}" if fill else "")))
        played = work.play(specs_of(work, phase, step, here, label), warm)
        stop_if_never_graded(work, played)
        every += [played[i : i + chains] for i in range(0, len(played), chains)]
        missing = size - sum(informative(group) for group in every)
        if missing <= 0:
            break
    # Groups that can teach come before the others; all stay in the order played.
    ranked = sorted(range(len(every)), key=lambda i: (not informative(every[i]), i))
    chosen = [every[i] for i in sorted(ranked[:size])]
    metrics: dict[str, float] = {}
    if rule.enable:
        flat = sum(not informative(group) for group in every[:size])
        metrics = {"group/flat": flat / size, "group/sampled": float(len(every))}
    _remember(work, placed, every)
    baselines = None
    if ESTIMATORS.find(config.algorithm.adv_estimator).baselines:
        # One greedy rollout for each group; one that was lost gives no baseline.
        tasks, tick = dict(placed), work.state.tick
        specs: list[RolloutSpec] = []
        for name in (group[0].group for group in chosen):
            place = int(name.rsplit("/", 1)[1])
            seeds = work.setting.seeds.child(phase, step, place, "greedy")
            specs.append(RolloutSpec(tasks[place], Mode.TRAIN, name, chains, seeds, tick, BASELINE))
        greedy = work.play(specs, 0.0)
        baselines = {r.group: r.reward.value for r in greedy if r.reward is not None}
        if baselines:
            metrics["reward/baseline"] = sum(baselines.values()) / len(baselines)
        metrics["rollout/no_baseline"] = 1 - len(baselines) / len(greedy)
        chosen = [group for group in chosen if group[0].group in baselines]
    metrics["time/rollout"] = time.perf_counter() - start
    return RolloutGroups([*chain(*chosen)], [*chain(*every)], baselines, metrics)


def epoch_places(total: int, start: int, count: int, seeds: SeedTree) -> list[int]:
    """Numbers of `count` tasks of `total` from place `start` of the stream of shuffled epochs."""
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


def informative(group: Sequence[Rollout]) -> bool:
    """Whether a group can teach: two rollouts or more that count, and not all rewarded alike."""
    rewards = [r.reward.value for r in group if r.reward is not None]
    return len(rewards) >= 2 and min(rewards) < max(rewards)


def draw_tasks(work: TrainingRun, step: int, count: int, fill: int) -> list[Task]:
    """Fresh tasks: the first draw of a step (`fill` 0), or one that replaces flat groups. The
    control takes the same ones."""
    setting, data = work.setting, work.setting.config.data
    tasks, seeds = setting.tasks.train, setting.seeds.child(RL, "order")
    if data.sampling == "difficulty":
        under = seeds.child("difficulty", step, fill)
        known = work.state.phase_data.get(DIFFICULTY, {})
        numbers = draw_by_difficulty(len(tasks), count, known, data.sampling_floor, under)
        return [tasks[i] for i in numbers]
    start = step * data.train_batch_size
    if setting.config.algorithm.filter_groups.enable:
        # Refills take from the same stream, so that an epoch still has every task once.
        start = work.state.phase_data.get("drawn", 0)
        work.state.phase_data["drawn"] = start + count
    places = range(start, start + count)
    numbers = (
        places if data.sampling == "sequential" else epoch_places(len(tasks), start, count, seeds)
    )
    return [tasks[i % len(tasks)] for i in numbers]


def specs_of(
    work: TrainingRun, phase: str, step: int, placed: Sequence[tuple[int, Task]], label: str
) -> list[RolloutSpec]:
    """The rollouts of some tasks, each at its place in the step."""
    setting = work.setting
    return [
        RolloutSpec(
            task,
            Mode.TRAIN,
            f"{phase}/{step}/{place}",
            index,
            setting.seeds.child(phase, step, place, index),
            work.state.tick,
            label,
        )
        for place, task in placed
        for index in range(setting.config.agent.num_chains)
    ]


def stop_if_never_graded(work: TrainingRun, rollouts: Sequence[Rollout]) -> None:
    """A reward that raises the same on every rollout, up to the first step, reads no answer. Raises
    `FailureBudgetError`."""
    wrong, told = FailureCause.ANSWER_ERROR.value, work.state.results
    if told["failures"].get(wrong) != work.state.rollouts:
        return
    work.run.writer.flush()
    stop_if_alike(rollouts, work.state.rollouts)


def _remember(
    work: TrainingRun, placed: Sequence[tuple[int, Task]], groups: Sequence[Sequence[Rollout]]
) -> None:
    """Take what was seen of the tasks into the state of `data.sampling=difficulty`."""
    if work.setting.config.data.sampling != "difficulty":
        return
    numbers = {task.id: i for i, task in enumerate(work.setting.tasks.train)}
    seen: dict[int, float] = {}
    for (_, task), group in zip(placed, groups, strict=True):
        rewards = [r.reward.value for r in group if r.reward is not None]
        if rewards:
            seen[numbers[task.id]] = sum(rewards) / len(rewards)
    known = work.state.phase_data.get(DIFFICULTY, {})
    work.state.phase_data[DIFFICULTY] = remember(known, seen)


def draw_by_difficulty(
    total: int, count: int, known: Mapping[str, float], floor: float, seeds: SeedTree
) -> list[int]:
    """Numbers of `count` tasks of `total`; each at most once unless more are asked for than are."""
    out: list[int] = []
    for round_number in range(math.ceil(count / total)):
        rng = seeds.child(round_number).python()
        keys: list[tuple[float, int]] = []
        for i in range(total):
            rate = known.get(str(i), 0.5)
            weight = floor + (1.0 - floor) * 4.0 * rate * (1.0 - rate)  # of the best one: 1
            # The greatest u^(1/w), taken as the least -log(u) / w.
            keys.append((-math.log(1.0 - rng.random()) / weight, i))
        out += [i for _, i in sorted(keys)[: count - len(out)]]
    return out


def remember(known: Mapping[str, float], seen: Mapping[int, float]) -> dict[str, float]:
    """The state after a step that saw these mean rewards by task number, cut to [0, 1]."""
    out = dict(known)
    for number, reward in seen.items():
        p = min(1.0, max(0.0, reward))
        before = out.get(str(number))
        out[str(number)] = p if before is None else MEMORY * before + (1.0 - MEMORY) * p
    return out
