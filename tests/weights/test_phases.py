"""The loops' schedules and what they report of a step."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from tutelage.runs.metrics import rollout_metrics
from tutelage.seeds import SeedTree
from tutelage.types import FailureCause, Task
from tutelage.weights.cold_start import FLOOR, WARMUP, learning_rate
from tutelage.weights.optim import learning_rate_factor
from tutelage.weights.sampling import epoch_indices

from .samples import config, rollout
from .test_batch import turns

TASKS = [Task(f"t{i}", {"question": "?"}) for i in range(10)]


def tasks_of_step(tasks: list[Task], size: int, step: int, seeds: SeedTree) -> list[Task]:
    """The tasks of a step of epochs."""
    return [tasks[i] for i in epoch_indices(len(tasks), step * size, size, seeds)]


@pytest.mark.parametrize("size", [1, 3, 4, 10, 25])
def test_every_epoch_has_every_task_once(size: int) -> None:
    order: list[str] = []
    for step in range(60 // size + 1):
        order += [t.id for t in tasks_of_step(TASKS, size, step, SeedTree(1))]
    epochs = [order[i : i + 10] for i in range(0, len(order) - 9, 10)]
    assert all(sorted(epoch) == sorted(t.id for t in TASKS) for epoch in epochs)
    assert epochs[0] != epochs[1], "each epoch has its own order"


def test_the_learning_rate_of_reinforcement_learning() -> None:
    def shares(*keys: str, limit: int | None = 10) -> list[float]:
        optim = config(*keys).actor.optim
        return [learning_rate_factor(step, limit, optim) for step in range(10)]

    constant = shares("actor.optim.lr_scheduler_type=constant")
    assert constant == [1.0] * 10
    warm = shares("actor.optim.lr_scheduler_type=constant", "actor.optim.warmup_steps=4")
    assert warm == [0.25, 0.5, 0.75, 1.0, *[1.0] * 6]
    linear = shares("actor.optim.lr_scheduler_type=linear")
    assert linear == pytest.approx([1 - i / 10 for i in range(10)])
    assert shares("actor.optim.lr_scheduler_type=linear", limit=None) == [1.0] * 10


def test_the_learning_rate_of_the_cold_start() -> None:
    assert learning_rate(0, None, 80) == pytest.approx(1 / WARMUP)
    assert learning_rate(500, None, 80) == 1.0
    falling = [learning_rate(step, 100, 80) for step in range(100, 200)]
    assert falling == sorted(falling, reverse=True)
    assert falling[0] < 1.0
    assert falling[79:] == pytest.approx([FLOOR] * 21)
    assert learning_rate(300, 100, 0) == pytest.approx(FLOOR)


def test_what_is_reported_of_a_step() -> None:
    rng = random.Random(0)
    rollouts = [
        rollout("a", "g", turns(rng, 2), 1.0),
        rollout("b", "g", turns(rng, 1), 0.0, stop="token_budget"),
        rollout("c", "g", turns(rng, 3), 0.5, stop="context"),
        rollout("d", "g", turns(rng, 1), None, cause=FailureCause.ENGINE_ERROR),
    ]
    told = rollout_metrics(rollouts)
    assert told["reward/mean"] == pytest.approx(0.5)
    assert (told["reward/min"], told["reward/max"]) == (0.0, 1.0)
    assert told["reward/std"] == pytest.approx((1 / 6) ** 0.5)
    assert told["rollout/turns"] == 7 / 4
    assert told["rollout/truncated"] == 2 / 4
    assert told["rollout/failed"] == 1 / 4
    tokens = sum(len(c.sampled.token_ids) for r in rollouts for c in r.last.calls)
    assert told["rollout/tokens"] == tokens / 4
    drawn = [x for r in rollouts for c in r.last.calls for x in c.sampled.logprobs]
    assert told["rollout/entropy"] == pytest.approx(-sum(drawn) / len(drawn))


def test_a_part_says_of_how_many_rollouts_it_is() -> None:
    """A rollout that failed counts in the mean reward and has no parts."""
    from dataclasses import replace

    from tutelage.types import Reward

    rng = random.Random(0)
    made = [
        rollout(name, "g", turns(rng, 1), 0.0, **more)
        for name, more in (
            ("a", {}),
            ("b", {}),
            ("c", {"cause": FailureCause.TIMEOUT}),
            ("d", {"cause": FailureCause.TIMEOUT}),
        )
    ]
    right = Reward(1.0, {"right": 1.0, "mean": 0.25})
    judged = [replace(one, attempts=(replace(one.last, reward=right),)) for one in made[:2]]
    whole = rollout_metrics(judged)
    assert (whole["reward/right"], whole["rollout/judged"]) == (1.0, 2)
    assert "rollout/with_right" not in whole
    some = rollout_metrics([*judged, *made[2:]])
    assert (some["reward/mean"], some["rollout/judged"]) == (0.5, 4)
    assert (some["reward/right"], some["rollout/with_right"]) == (1.0, 2)


def test_tool_use_is_reported_by_name() -> None:
    from dataclasses import replace

    from tutelage.types import ToolResult

    def with_tools(name: str, *results: ToolResult) -> Any:
        made = rollout(name, "g", [], 1.0)
        return replace(made, attempts=(replace(made.last, tool_results=results),))

    good = ToolResult("1", "add", "{}", "3", seconds=0.5)
    bad = ToolResult("2", "add", "{}", "Error", "raised")
    invented = ToolResult("3", "frob", "{}", "Error", "unknown_tool")
    told = rollout_metrics([with_tools("a", good, bad), with_tools("b", good, invented)])
    assert told["tools/add/calls"] == 3 / 2
    assert told["tools/add/errors"] == told["tools/add/failed"] == 1 / 3
    assert told["tools/add/seconds"] == 1.0 / 3
    assert told["tools/unknown/calls"] == 1 / 2
    assert (told["tools/unknown/errors"], told["tools/unknown/failed"]) == (1, 0)
    assert not [name for name in told if "frob" in name], "a model may invent any number of names"
    assert Counter(name.split("/")[0] for name in told)["tools"] == 8
