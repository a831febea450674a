"""No built-in reward raises on what a model writes, whatever that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tutelage.rewards import RewardFunction, compute_reward, resolve_reward
from tutelage.rewards import math_grader as graders
from tutelage.rewards.judge import read_verdict
from tutelage.tools import ToolOptions
from tutelage.tools.sandbox import tier_problems
from tutelage.types import Attempt, RolloutStatus, Task

INLINE = (
    "math",
    "math_reward_string_equal",
    "numeric_partial_credit",
    "exact_match",
    "qa_f1_reward",
    "gaia_scorer",
    "math_grader",
)
ANSWERS: Sequence[Any] = ("5", "x + 1", "[5, 6]", "B", "Paris", 5, [1, 2], "1e300", "0", "50%")
NASTY = (
    "1e400 km", "-1e400 km", "1e400%", "1e-400 km", "1e999/3 km", "1E400", "1e308 * 1e308",
    "\\boxed{1e400\\ km}", "answer is 1e400 km", "#### 1e400", "9" * 399 + " km", "9" * 400,
    "9" * 5000, "1/" + "0" * 300, "0/0", "1/3" * 100, "5!", "5!!!!!!!!", "9!" * 200, "9^9^9^9^9",
    "9**9**9**9", "2^(2^(2^(2^2)))", "exp(" * 60 + "5" + ")" * 60, "factorial(factorial(9))",
    "x^" * 30 + "x", "(x+1)^99999999", "sqrt(" * 300 + "x", "\\frac{" * 500, "\\frac{1}{" * 100,
    "\\sqrt{" * 300, "\\left(" * 300, "\\boxed{" * 1000, "\\boxed{" + "{" * 3900, "{" * 100_000,
    "[" * 100_000, "[" * 400 + "5" + "]" * 400, "(" * 100_000 + ")" * 100_000, "," * 50_000,
    "nan", "inf", "-Infinity", "NaN km", "1_000", "0x" + "f" * 100_000, "1e5_0", "٥", "५ km", "５",
    "²", "½", "Ⅷ", "5\u0335", "\ud800", "5 \udfff", "\x00", "5\x00km", "\u202e5\u202c", "\ufeff5",
    "e\u0301" * 2000, "5\u2028", "a" * 3_000_000, "5 " * 500_000, "\n" * 1_000_000,
    "answer is " * 200_000, "```python\n" * 50_000, "```python\n" + "(" * 50_000 + "\n```",
    "```python\n" + "-" * 90_000 + "1\n```", "```\nx = " + "[" * 150 + "]" * 150 + "\n```",
    "```python\n\ud800\n```", "```python\n\x00\n```", '{"correct": ' + "[" * 100_000, "{}", "[]",
    '{"correct": true}' * 10_000, "</think>" * 50_000, "__import__('os')", "%s%n{0.__class__}",
    "\\text{" * 1000 + "5", "5 \\text{" + "a" * 50_000, "-" * 900 + "5", "--5", "−−5", "$" * 50_000,
)  # fmt: skip


async def earned(function: RewardFunction, text: str, answer: Any, **fields: Any) -> float:
    """What a text earns, by the session that every reward has."""
    task = Task("t", {"question": "q", "answer": answer, **fields})
    attempt = Attempt("a", 0, RolloutStatus.SUCCEEDED, answer=text)
    return (await compute_reward(function, task, attempt)).value


@pytest.fixture(autouse=True)
def no_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    """The symbolic check is in a process that can be killed; here it is whoever asks it."""

    def undecided(first: str, second: str) -> bool | None:
        return None

    monkeypatch.setattr(graders, "symbolic_equal", undecided)


@pytest.mark.full
@pytest.mark.parametrize("name", INLINE)
async def test_nasty_answers_earn_a_finite_number(name: str) -> None:
    function = resolve_reward(name, ToolOptions())
    for text in NASTY:
        # A long text is read alike whatever it is held against.
        for answer in ANSWERS if len(text) < 10_000 else ANSWERS[:2]:
            value = await earned(function, text, answer)
            assert math.isfinite(value), (text[:60], answer)


@pytest.mark.parametrize("name", INLINE)
async def test_nasty_right_answers_are_no_trouble_either(name: str) -> None:
    """They are a data set's, and equal texts are the way into every branch."""
    function = resolve_reward(name, ToolOptions())
    for text in NASTY:
        if len(text) < 10_000:
            assert math.isfinite(await earned(function, text, text)), text[:60]
            assert math.isfinite(await earned(function, "5 km", text)), text[:60]


PIECES = (
    *"0123456789+-*/^=().,;:!%$[]{}xe", "e400", "1e400", "\\frac{", "\\boxed{", "\\text{", "\\sqrt",
    "\\mathrm{", "\\left", "\\pi", "answer is ", "#### ", " km", " or ", " million", "not ", "nan",
    "٥", "\ud800", "\x00", "−", "≈", "```", "\n", " ",
)  # fmt: skip
SOUP = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=SOUP | st.text(max_size=60), answer=SOUP | st.sampled_from(ANSWERS))
async def test_any_text_earns_a_finite_number(text: str, answer: Any) -> None:
    for name in INLINE:
        function = resolve_reward(name, ToolOptions())
        assert math.isfinite(await earned(function, text, answer)), name


def test_a_judges_reply_is_a_verdict_or_none() -> None:
    assert [read_verdict(text) for text in NASTY] == [None] * len(NASTY)
    assert read_verdict('{"correct": true, "why": ' + "[" * 500 + "]" * 500 + "}") is None
    assert read_verdict('thought</think>```json\n{"correct": true}\n```') is True


@pytest.mark.skipif(
    all(tier_problems()[tier] is not None for tier in ("namespaces", "rlimit")),
    reason="no sandbox works here",
)
async def test_nasty_programs_pass_no_test() -> None:
    function = resolve_reward("code_reward", ToolOptions())
    texts = [t for t in NASTY if "```" in t or len(t) < 2000]
    for text in texts:
        assert await earned(function, text, "", tests=["assert f(1) == 5"]) == 0.0, text[:60]
