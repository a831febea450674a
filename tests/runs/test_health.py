"""The rules of the watch on simulated steps: healthy runs of any size, and each fault."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.marks import long

from tutelage.runs.findings import add_findings, list_warnings
from tutelage.runs.health import Setup, examine
from tutelage.types import JSON

Reward = Callable[[random.Random, float], float]
Line = dict[str, Any]


def binary(rng: random.Random, skill: float) -> float:
    """A success, or none."""
    return float(rng.random() < skill)


def graded(rng: random.Random, skill: float) -> float:
    """Between 0 and 1."""
    return min(1.0, max(0.0, rng.gauss(skill, 0.2)))


def negative(rng: random.Random, skill: float) -> float:
    """Less than 0: a cost."""
    return -round(40 * (1.2 - skill) + rng.randrange(10))


def line(rewards: list[list[float]], **more: float) -> Line:
    """The metrics of a step, whose rewards are given by group."""
    flat = [x for group in rewards for x in group]
    mean = sum(flat) / len(flat)
    alone = [len(group) < 2 for group in rewards]
    equal = [len(set(group)) == 1 and len(group) > 1 for group in rewards]
    told = {
        "reward/mean": mean,
        "reward/std": (sum((x - mean) ** 2 for x in flat) / len(flat)) ** 0.5,
        "reward/min": min(flat),
        "reward/max": max(flat),
        "rollout/number": len(flat),
        "rollout/judged": len(flat),
        "rollout/truncated": 0.05,
        "rollout/failed": 0.0,
        "rollout/entropy": 0.1,
        "group/zero_variance": sum(equal) / len(equal),
        "group/single": sum(alone) / len(alone),
        "kl/update": 0.02,
    }
    return told | more


def steps(
    reward: Reward, groups: int, chains: int, skills: list[float], seed: int = 0
) -> list[Line]:
    """Steps of a policy of such skills, on tasks of differing difficulty."""
    rng, out = random.Random(seed), list[Line]()
    for skill in skills:
        tasks = [min(1.0, max(0.0, skill + rng.uniform(-0.15, 0.15))) for _ in range(groups)]
        out.append(line([[reward(rng, task) for _ in range(chains)] for task in tasks]))
    return out


def told(lines: list[Line], groups: int) -> list[JSON]:
    """What a run of these steps was told of."""
    kept: list[JSON] = []
    for end in range(1, len(lines) + 1):
        add_findings(kept, lines[:end], Setup(groups=groups), number=end)
    return kept


@pytest.mark.parametrize("reward", [binary, graded, negative])
@pytest.mark.parametrize(
    ("groups", "chains"), [(1, 4), (64, 16), *long((2, 2), (4, 1), (4, 8), (16, 8))]
)
def test_a_policy_that_learns_is_told_of_nothing(reward: Reward, groups: int, chains: int) -> None:
    """From nearly nothing to nearly everything, with the ups and downs of chance."""
    for seed in range(3 if groups < 64 else 1):
        skills = [min(0.97, 0.15 + 0.012 * step) for step in range(100)]
        found = told(steps(reward, groups, chains, skills, seed), groups)
        assert [entry for entry in found if entry["warning"]] == []


def test_a_rare_success_is_waited_for() -> None:
    lines = [line([[0.0] * 8] * 4) for _ in range(13)]
    lines += steps(binary, 4, 8, [0.1] * 20)
    assert told(lines, 4) == []


def test_a_task_that_is_solved_is_said_once_and_is_no_warning() -> None:
    lines = steps(binary, 4, 8, [0.5] * 5) + [line([[1.0] * 8] * 4) for _ in range(20)]
    (entry,) = told(lines, 4)
    assert (entry["name"], entry["step"], entry["warning"]) == ("solved", 8, False)
    assert list_warnings([entry]) == []


def test_a_finding_names_the_run_the_reward_and_the_first_failure() -> None:
    ill = {"rollout/failed": 1.0, "rollout/agent_error": 1.0}
    setup = Setup(reward="the reward 'math'", failures={"agent_error": "a.py:1: KeyError: 'x'"})
    lines = [line([[0.0] * 8] * 64) | ill for _ in range(3)]
    found = add_findings([], lines, setup, number=3, run="runs/a")
    kept: list[JSON] = []
    assert add_findings(kept, lines, setup, number=3, run="runs/a") == found
    told = " ".join(list_warnings(kept, "iteration"))
    for part in (
        "from iteration 3: ",
        "correct the reward 'math' if it always returns the same",
        "mostly: agent error (the first: a.py:1: KeyError: 'x')",
        "tutelage show runs/a --failed",
    ):
        assert part in told


def test_a_reward_that_falls_to_nothing_and_stays_there() -> None:
    """As one of three seeds once did, for eight steps without a word."""
    lines = steps(binary, 16, 8, [0.3, 0.6, 0.9, 0.9, 0.9]) + [
        line([[0.0] * 8] * 16) for _ in range(8)
    ]
    found = {entry["name"]: entry for entry in told(lines, 16)}
    assert found["reward_collapse"]["step"] == 8
    assert found["flat_groups"]["step"] == 9
    assert "has fallen from 0.898 to 0" in found["reward_collapse"]["text"]


def test_one_update_that_destroys_a_policy_is_said_at_once() -> None:
    """As a learning rate 25 times too large did to the embedded policy."""
    first = steps(binary, 16, 8, [0.25])[0]
    after = line([[0.0] * 8] * 16, **{"rollout/truncated": 1.0})
    del after["kl/update"]
    found = {e["name"]: e for e in told([first | {"kl/update": 3.3}, *[after] * 5], 16)}
    assert found["kl_jump"]["step"] == 1
    assert "a smaller actor.optim.lr" in found["truncated"]["remedy"]
    assert "in the first step 5% were" in found["truncated"]["text"]


def test_a_finding_that_passes_is_kept_with_its_steps() -> None:
    ill = {"rollout/failed": 0.75, "rollout/timeout": 0.75}
    good = steps(binary, 4, 8, [0.5] * 7)
    lines = [*good[:3], *({**step, **ill} for step in good[3:6]), good[6]]
    (entry,) = told(lines, 4)
    assert (entry["name"], entry["step"], entry["until"]) == ("failed", 6, 7)
    (warning,) = list_warnings([entry])
    assert warning.startswith("step 6 to 7: 72 of 96 rollouts failed, mostly: timeout. Try: ")


@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        ("diverged", {"grad_norm": float("nan")}),
        ("entropy_explosion", {"rollout/entropy": 2.0}),
        ("entropy_collapse", {"rollout/entropy": 1e-5}),
        ("kl_jump", {"kl/update": 3.0}),
        ("kl_jump", {"kl/ref": 9.0}),
        ("mismatch", {"kl/rollout": 2.0}),
        ("truncated", {"rollout/truncated": 1.0}),
        ("failed", {"rollout/failed": 0.5}),
        ("broken_tool", {"tools/search/calls": 2.0, "tools/search/failed": 1.0}),
    ],
)
def test_each_fault_has_its_sentence(name: str, metrics: dict[str, float]) -> None:
    good = steps(binary, 4, 8, [0.5] * 8)
    assert list(examine(good, Setup(groups=4))) == []
    ill = [*good[:5], *({**step, **metrics} for step in good[5:])]
    (found,) = examine(ill, Setup(groups=4))
    assert (found.name, found.warning) == (name, True)
    assert found.remedy
