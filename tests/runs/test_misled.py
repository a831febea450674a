"""Trainings that go on smoothly the wrong way each have their sentence; a healthy one has none."""

from __future__ import annotations

import pytest
from builders import make_attempt, make_call, make_rollout

from tutelage.runs.findings import add_findings
from tutelage.runs.health import Setup
from tutelage.runs.metrics import long_prompt_warning, reward_correlations, rollout_metrics
from tutelage.statistics.outcome import Success
from tutelage.types import JSON, Reward, Rollout, Sampled, StopReason, ToolResult

HEALTHY = {
    "reward/mean": 0.5,
    "reward/std": 0.5,
    "reward/min": 0.0,
    "reward/max": 1.0,
    "rollout/success_correlation": 0.4,
    "rollout/length_correlation": 0.9,
    "rollout/number": 32,
    "rollout/judged": 30,
    "rollout/tokens": 40.0,
    "rollout/entropy": 0.1,
    "grad_norm": 1.0,
    "lr": 1e-6,
    "kl/update": 3e-7,
    "kl/pull": 0.05,
    "tools/search/calls": 1.0,
    "tools/search/empty": 0.6,
}


def told(changed: dict[str, float], steps: int = 20) -> list[JSON]:
    """What a run of such steps was told of."""
    kept: list[JSON] = []
    lines = [HEALTHY | changed] * steps
    for end in range(1, steps + 1):
        add_findings(kept, lines[:end], Setup(groups=4, rate=1e-6), number=end)
    return kept


def test_a_healthy_run_is_told_of_nothing() -> None:
    assert told({}, 40) == []


def test_a_long_warm_up_is_waited_for() -> None:
    assert told({"kl/update": 0.0, "lr": 1e-9}) == []


def test_a_penalty_under_which_the_reward_rises_is_none_too_large() -> None:
    kept: list[JSON] = []
    lines = [HEALTHY | {"kl/pull": 2.0, "reward/mean": 0.1 + 0.04 * i} for i in range(20)]
    for end in range(1, 21):
        add_findings(kept, lines[:end], Setup(groups=16, rate=1e-6), number=end)
    assert kept == []


@pytest.mark.parametrize(
    ("name", "step", "words", "changed"),
    [
        ("reward_against_success", 3, "correlation -0.80", {"rollout/success_correlation": -0.8}),
        ("reward_by_length", 5, "40 tokens now", {"rollout/length_correlation": 0.999}),
        ("lost", 5, "50 of the last 160 rollouts", {"rollout/judged": 22}),
        ("unmoved", 5, "5 updates have not moved the policy", {"kl/update": 0.0}),
        ("kl_too_large", 10, "2 times as much as the reward (kl/pull)", {"kl/pull": 2.0}),
        ("empty_tool", 2, "64 of 64 calls of the tool 'search'", {"tools/search/empty": 1.0}),
    ],
)
def test_each_has_its_sentence(name: str, step: int, words: str, changed: dict[str, float]) -> None:
    (entry,) = told(changed)
    assert (entry["name"], entry["step"], entry["warning"]) == (name, step, True)
    assert words in entry["text"]
    assert entry["remedy"]


def played(reward: float, tokens: int, *, right: float = 0.0, turns: int = 1) -> Rollout:
    """A rollout of so many tokens, all of its first turn."""
    numbers = [0.0] * tokens
    said = Sampled(tuple(range(tokens)), tuple(numbers), tuple(numbers), StopReason.STOP, 0)
    calls = [make_call(n, sampled=said if n == 0 else Sampled((), (), (), StopReason.STOP, 0))
             for n in range(turns)]  # fmt: skip
    return make_rollout("r", make_attempt(*calls, reward=Reward(reward, {"right": right})))


def test_what_goes_along_with_the_reward() -> None:
    inverted = [played(1.0 - x, 5, right=x) for x in (0.0, 1.0, 0.0)]
    assert reward_correlations(inverted, Success.parse("right")) == {
        "rollout/success_correlation": pytest.approx(-1.0)
    }
    assert reward_correlations(inverted, None) == {}


def test_a_reward_by_length_is_seen_among_rollouts_of_as_many_turns() -> None:
    """An episode that is paid for each turn that it lasts has none."""
    longer = [played(n / 10, n) for n in (3, 4, 9)] + [played(0.0, 50, turns=2)]
    told = reward_correlations(longer, None)
    assert told == {"rollout/length_correlation": pytest.approx(1.0)}
    lasting = [played(float(n), n, turns=n) for n in (1, 1, 2, 3, 4)]
    assert reward_correlations(lasting, None) == {}
    assert reward_correlations([played(x, 1 + int(x)) for x in (0.0, 1.0, 1.0)], None) == {}


def test_answers_of_a_tool_that_are_empty_are_counted() -> None:
    results = tuple(ToolResult("c", "search", "{}", text) for text in ("", " ", "found", ""))
    told = rollout_metrics([make_rollout("r", make_attempt(make_call(), tool_results=results))])
    assert told["tools/search/empty"] == 0.75
    rest = rollout_metrics([make_rollout("r", make_attempt(tool_results=results[2:3]))])
    assert "tools/search/empty" not in rest


def test_prompts_without_room_are_counted_and_the_key_is_named_where_it_helps() -> None:
    short = make_rollout("long", make_attempt(stop="context"))
    rollouts = [short, short, make_rollout("fits", make_attempt(make_call()))]
    told = long_prompt_warning(rollouts, 240, 512)
    assert told is not None
    assert "longer than the context of 240 tokens" in told
    assert "2 of 3 rollouts" in told
    assert told.endswith("shorten it, or raise `rollout.max_len`")
    assert (long_prompt_warning(rollouts, 240, 240) or "").endswith("the maximum of the model")
    assert long_prompt_warning(rollouts[2:], 240, 512) is None
