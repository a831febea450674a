"""The math grader: verdicts on options, numbers, expressions, lists, and any text at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tutelage.rewards import RewardFunction, compute_reward, resolve_reward
from tutelage.rewards import math_grader as graders
from tutelage.rewards.builtin import exact_number, numeric_partial_credit
from tutelage.rewards.math_grader import grade, split_list, symbolic_equal
from tutelage.rewards.qa import exact_match, qa_f1_reward
from tutelage.tools import ToolOptions
from tutelage.types import Attempt, Reward, RolloutStatus, Task


def never(first: str, second: str) -> bool | None:
    raise AssertionError(f"the symbolic path was reached for {first!r} and {second!r}")


def patient(first: str, second: str) -> bool | None:
    return symbolic_equal(first, second, 5.0)


@pytest.mark.parametrize(
    ("prediction", "answer", "expected"),
    [
        # options
        ("B", "B", True),
        (" (b) ", "B)", True),
        ("The answer is **B**.", "B", True),
        ("A", "B", False),
        ("AB", "B", False),
        ("", "B", False),
        # numbers, strictly within 1 %
        ("100.9", "100", True),
        ("101", "100", False),
        ("99.1", "100", True),
        ("-100", "100", False),
        ("0", "0", True),
        ("0.0001", "0", False),
        ("1,234", "1234", True),
        ("$1,234.00", 1234, True),
        ("50%", "0.5", True),
        ("50%", "1/2", True),
        ("50", "50%", False),
        ("2/3", "0.667", True),
        ("42 apples", "42", True),
        ("The answer is 42 apples.", "42", True),
        ("5 million", "5", False),
        # the form "= around X"
        ("= around 3.14", "22/7", True),
        ("22/7 = around 3.142857", "3.142857", True),
        ("3.14", "22/7 = around 3.142857", True),
        ("17 * 23 = 391", "391", True),
        ("x = 5", "5", True),
        ("x > 5", "5", False),
        ("x = 5 or x = 6", "6", False),
        ("it is not 5 = 6", "6", False),
        (r"6 \text{ or 5}", "6", False),
        (r"5 \text{ apples}", "5", True),
        # expressions without variables
        ("sqrt(2)", "1.41421356", True),
        (r"\frac{1}{2}", "0.5", True),
        (r"\dfrac{\sqrt{9}}{2^{2}}", "0.75", True),
        (r"\frac12", "0.5", True),
        (r"\frac123", "0.5", False),
        (r"\sqrt16", "4", False),
        (r"\sqrt 4", "2", True),
        (r"5\%", "0.05", True),
        (r"$2\pi$", "6.2832", True),
        ("2(3+4)", "14", True),
        ("2^10", "1024", True),
        (r"2\frac{1}{2}", "2.5", True),
        (r"2\frac{1}{2}", "1", False),
        (r"-2\dfrac23", "-8/3", True),
        (r"2\frac{5}{2}", "4.5", False),
        (r"2^2\frac{1}{2}", "4.5", False),
        ("1 1/2", "1.5", False),
        # a solution with its answer at the end, as in GSM8K
        ("6", "5 + 1 = <<5+1=6>>6 pens.\n#### 6", True),
        ("7", "5 + 1 = <<5+1=6>>6 pens.\n#### 6", False),
        # lists, element by element, in order
        ("[1, 2.001, 3]", [1, 2, 3], True),
        ("1; 2", "[1, 2]", True),
        ("(1, 2)", "1, 2", True),
        ("[2, 1]", "[1, 2]", False),
        ("[1]", "[1, 2]", False),
        ("[1, 2, 3]", "[1, 2]", False),
        ("5", "[5]", False),
        ("['A', 'B']", ["A", "B"], True),
        ("[[1, 2], [3, 4]]", [[1, 2], [3, 4]], True),
        # text
        ("Paris", "paris", True),
        ("tac", "cat", False),
        ("", "", False),
        ("anything", "", False),
        ("nan", "5", False),
        ("5", "nan", False),
        ("nan", "inf", False),
        # larger than a float, with a unit
        ("1e400 km", "5", False),
        ("5", "1e400 km", False),
        (r"\\boxed{1e400\\ km}", "5", False),
    ],
)
def test_verdicts_that_need_no_symbols(prediction: str, answer: object, expected: bool) -> None:
    assert grade(prediction, answer, never) is expected


@pytest.mark.parametrize(
    ("answer", "text", "expected"),
    [
        # brackets and the order within them
        ("[2,5]", "(2,5)", False),
        ("(2,5]", "[2,5)", False),
        ("(-2,7)", r"\boxed{[-2,7]}", False),
        (r"[0,\frac{1}{2})", r"\left[0,0.5\right)", True),
        (r"(-\infty,3]", "(-∞, 3.0]", True),
        (r"\left(3,\frac{\pi}{2}\right)", r"\boxed{(3,\frac{\pi}{2})}", True),
        ("(1,2)", r"\bigl(1,2\bigr)", True),
        ("(1,2)", "(2,1)", False),
        ("(1,2)", r"\{1,2\}", False),
        (r"\{1,2\}", "(2,1)", False),
        (r"\left\{1,2,3\right\}", r"\boxed{\{3,2,1\}}", True),
        (r"\{1,2\}", "2, 1", True),
        ("1, 2", "2, 1", False),
        ("1, 2", "[1,2)", False),
        ([1, 2], "[1,2)", False),
        ("[1,2)", "1, 2", False),
        (r"\{1,2,2\}", r"\{1,1,2\}", False),
        (r"\{(1,2),(3,4)\}", r"\{(3,4),(1,2)\}", True),
        (r"\{(1,2),(3,4)\}", r"\{(3,4),(2,1)\}", False),
        (r"\{(1,2),(3,4)\}", r"\{(3,4),[1,2]\}", False),
        # relations
        (r"x \geq 5", "x ≥ 5", True),
        (r"x \ge \frac{1}{2}", "x >= 0.5", True),
        (r"1 < x \leq 3", r"3 \geqslant x > 1", True),
        (r"x \geq 5", "x > 5", False),
        (r"x \geq 5", r"5 \geq x", False),
        ("x > 5", "y > 5", False),
        ("x > 5", "x > 5 or x < 1", False),
        # words and options
        ("Monday", r"\boxed{\text{Monday}}", True),
        ("Monday", r"\text{not Monday}", False),
        ("C", r"\boxed{\text{(C)}}", True),
        (r"\textbf{(C)}", "（Ｃ）", True),
        ("C", r"\text{not C}", False),
        # separators, percent, degrees, currency, characters
        ("1234567", r"\boxed{1{,}234{,}567}", True),
        (r"10,\!080", "10080.0", True),
        (r"\{1234, 5\}", r"\{1{,}234, 5\}", True),
        (r"\{1, 234, 5\}", r"\{1{,}234, 5\}", False),
        ("1.5", "1{,}5", False),
        ("1234", "1, 234", False),
        ("1, 234", "1234", False),
        ([1, 234], "1,234", False),
        (r"28\%", r"\boxed{28 \text{ percent}}", True),
        ("28", "28 percent", False),
        ("28%", "28 percentage points", False),
        ("90", r"\boxed{90^{\circ}}", True),
        (r"90^\circ", "90", True),
        ("30", r"\sin 30^\circ", False),
        (r"20^\circ\text{C}", r"20^\circ\text{F}", False),
        ("12", "12€", True),
        ("12.5", "１２．５", True),
        ("5", "－５", False),
        ("5", "5\u200b", True),
        # units
        (r"10\text{ cm}", r"\boxed{10\text{ cm}^2}", False),
        (r"10\text{ cm}^2", "10 cm", False),
        (r"10\text{ cm}^2", "10 cm^2", True),
        ("10 km", "10 m", False),
        ("10 km", "10 kilometers", True),
        ("5 lb", "5 lbs", True),
        (r"10\text{ meters}^2", r"$10\textrm{ meters}$", False),
        # functions without brackets
        ("0", r"\sin 2\pi", False),
        (r"\ln 8", "2.0794415", True),
    ],
)
def test_spellings_are_read_and_brackets_and_units_count(
    answer: object, text: str, expected: bool
) -> None:
    assert grade(text, answer, never) is expected


@pytest.mark.parametrize(
    "prediction",
    [
        "9**9**9",
        "(" * 900,
        "1e999999999",
        "0/0",
        "sqrt(-1)",
        "NaN",
        "٥",
        "5.0.0",
        "__import__('os').system('true')",
        "5 if True else 6",
        "x**x**x**x**x",
        "5\x00",
    ],
)
def test_hostile_answers_earn_nothing_and_reach_no_helper(prediction: str) -> None:
    for answer in ("5", "x + 1", "[5, 6]", "B"):
        assert grade(prediction, answer, never) is False


def test_code_in_an_answer_is_text() -> None:
    assert grade("__import__('os')", "__import__('os')", never) is True
    assert grade("__import__('os')", "__import__('sys')", never) is False


@given(st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6))
def test_numbers_are_right_within_one_percent(a: int, b: int) -> None:
    expected = a == b or abs(a - b) / max(abs(b), 1e-10) < 0.01
    assert grade(str(a), str(b), never) is expected


@pytest.mark.parametrize(
    ("prediction", "answer", "expected"),
    [
        ("(x+1)^2", "x^2 + 2x + 1", True),
        (r"\frac{x^{2}-1}{x-1}", "x + 1", True),
        ("y = 2(x + 3)", "2x + 6", True),
        ("sin(x)^2 + cos(x)^2 + y", "1 + y", False),  # other letters
        ("sin(x)^2 + cos(x)^2 + x", "1 + x", True),
        ("(x+1)^2", "x^2 + 1", False),
        ("sqrt(x^2)", "x + 0", False),  # equal only where x is positive
        ("[2x, 3]", "[x + x, 3]", True),
        (r"\{2x, 3\}", r"\{3, x + x\}", True),
        (r"\tan x", "tan(x)", True),
        (r"\sin 2x\cos x", "cos(x)sin(2x)", True),
        (r"\sin x^2", "sin(x)^2", False),
        (r"\ln x + 1", "ln(x + 1)", False),
    ],
)
def test_expressions_with_variables(prediction: str, answer: str, expected: bool) -> None:
    assert grade(prediction, answer, patient) is expected


@pytest.mark.parametrize(
    ("prediction", "answer"), [("x + 2", "x + 1"), ("2x", "x^2"), ("a/b", "b/a"), ("x", "2x")]
)
def test_different_expressions_are_told_apart_without_the_helper(
    prediction: str, answer: str
) -> None:
    assert grade(prediction, answer, never) is False


@pytest.mark.full
def test_an_endless_question_is_killed_and_the_next_one_answered() -> None:
    assert symbolic_equal("(x+y+z+1)^90 - (x+y+z)^90", "x", 0.8) is None
    assert symbolic_equal("x + x", "2x", 0.8) is True
    assert symbolic_equal("x + x", "3x", 0.8) is False
    graders._HELPER.close()
    assert symbolic_equal("x", "x", 0.8) is True


async def test_undecided_is_a_part_of_the_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    def undecided(first: str, second: str) -> bool | None:
        return None

    monkeypatch.setattr(graders, "symbolic_equal", undecided)
    grader = resolve_reward("math_grader")
    task = Task("t", {"question": "q", "answer": "2x"})
    attempt = Attempt("a", 0, RolloutStatus.SUCCEEDED, answer="x + x")
    assert await compute_reward(grader, task, attempt) == Reward(0.0, {"undecided": 1.0})


def test_lists_are_split_at_their_own_commas() -> None:
    assert split_list("[1, (2, 3), 'a']") == ["1", "(2, 3)", "a"]
    assert split_list("1,234") is None
    assert split_list("(1 + 2)") is None
    assert split_list("[1], [2]") == ["[1]", "[2]"]
    assert split_list("log(8, 2)") is None


# ------------------------------------------------------------ whatever a model writes


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


async def earned(function: RewardFunction, text: str, answer: Any, **fields: Any) -> float:
    """What a text earns, by the session that every reward has."""
    task = Task("t", {"question": "q", "answer": answer, **fields})
    attempt = Attempt("a", 0, RolloutStatus.SUCCEEDED, answer=text)
    return (await compute_reward(function, task, attempt)).value


@pytest.fixture
def no_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    """The symbolic check is in a process that can be killed; here it is whoever asks it."""

    def undecided(first: str, second: str) -> bool | None:
        return None

    monkeypatch.setattr(graders, "symbolic_equal", undecided)


PIECES = (
    *"0123456789+-*/^=().,;:!%$[]{}xe", "e400", "1e400", "\\frac{", "\\boxed{", "\\text{", "\\sqrt",
    "\\mathrm{", "\\left", "\\pi", "answer is ", "#### ", " km", " or ", " million", "not ", "nan",
    "٥", "\ud800", "\x00", "−", "≈", "```", "\n", " ",
)  # fmt: skip
SOUP = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


@pytest.mark.usefixtures("no_helper")
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=SOUP | st.text(max_size=60), answer=SOUP | st.sampled_from(ANSWERS))
async def test_any_text_earns_a_finite_number(text: str, answer: Any) -> None:
    for name in INLINE:
        function = resolve_reward(name, ToolOptions())
        assert math.isfinite(await earned(function, text, answer)), name


# ------------------------------------------------------------ what is committed to one value


NOT_FIVE = [
    # negated
    r"\text{not }5", r"\text{ not } 5", r"\mathrm{not}\,5", "not 5", r"\neq 5", "≠5", "x ≠ 5", "!5",
    "5 is wrong", "5 is not the answer", "5 isn't right", "5 no", "5? no", "5! no", "5 false",
    r"not \boxed{5}", r"x \neq \boxed{5}", r"\boxed{5} is wrong", r"it cannot be \boxed{5}",
    "It is not true that the answer is 5.", "I don't think the answer is 5",
    "it is false that x = 5", "x is never = 5", "¬(x = 5)",
    # another value
    "-5", "minus 5", r"\mathrm{minus}5", r"\text{minus }5", r"\text{negative }5", r"\text{-}5",
    "5!", "5 !", r"5\text{!}", r"\boxed{5!}", "The answer is 5!", "5^2", "5x", "5i", r"5\mathrm{i}",
    "5%", "5 %", r"5\%", "5 percent", r"5\text{ percent}", "5 million", r"5\text{ million}",
    "5 dozen", "5 squared", r"5\text{ squared}", "5 halves", "5 thirds", "5 tenths", "5 and a half",
    "5 feet six inches", "5 hours and thirty minutes", "5...", "5 less than x", "5/0", "5²",
    r"\text{half of }5", r"\text{double }5", r"\text{log}5", r"\sin 5", r"\mathrm{sin}5", "5e",
    "5k",
    # a choice, a range, a bound
    "5 or 6", "5 or six", "five or 5", "5 alternatively six", r"5\text{ alternatively six}",
    r"5\text{ or six}", r"5\text{ or }6", "5 (or 6)", "5, or six", "5, six", "5; six", "5: six",
    "5 rather six", "5 versus six", "5 possibly six", "5 maybe", "5 unless", "5 if x", "5?",
    "between 4 and 5", "4-5", "4 to 5", "5 to 6", "5±1", r"5 \pm 1", "<5", "≥ 5", r"\geq 5",
    "at least 5", "5 at most", "5 apples and 6 pears", "5 apples and six pears", "5, 6", "[5, 6]",
    r"\boxed{5} or \boxed{6}",
    # equations that do not give 5
    "6=5", "6 = 5", "7 apples = 5", "6 apples = 5 apples", "six = 5", "0=5", "3*5=5", "x=6=5",
    "5=6=5", "x+1=5", "x + 1 = 5", "2x = 5", "x^2 = 5", "x=6 y=5", "y=6, x=5",
    "x = 6; x = 5", "6 alternatively = 5", "x=6 but maybe x=5", "the answer lies between 4 = 5",
    "the total is 3 * 5 = 5", "5 = x", "x = 5 or x = 6", "x != 5",
]  # fmt: skip

FIVE = [
    "5", " 5 ", "5.", "+5", "05", "5.0", "$5", "$5$", "(5)", "10/2", "sqrt(25)", "5e0", "2 + 3",
    "The answer is 5.", "the answer is: **5**", "Answer: 5", "#### 5", r"\boxed{5}",
    r"\boxed{\boxed{5}}", r"I get \boxed{6}, no: \boxed{5}", r"\boxed{5}, not 6",
    r"The answer is not 6 but \boxed{5}", "It is not 6: the answer is 5.",
    "5 apples", "The answer is 5 apples!", "5 km", "5 dollars a day", "5 square meters",
    "5 apples and pears", "5 more apples", "5 dollars, done", r"5 \text{ apples}", r"5\text{ m}",
    r"5\,\text{cm}", r"5\,\text{cm}^2", r"5 \mathrm{cm}^{3}", r"\$5",
    "x=5", "x = 5", "x_1 = 5", "f(2) = 5", "P = 5", r"\mathrm{x} = 5", "x = y = 5", "5 = 5",
    "2 + 3 = 5", "10/2 = 5", "17 - 12 = 10/2 = 5", "x = 15/3 = 5", r"\frac{10}{2} = 5",
    "the total = 5", "Step 2: x = 5", "So the total is 2 + 3 = 5", "= around 5", "~5", "≈ 5",
    "about 5", "x = around 5.01", "minimum distance = 5 km",
]  # fmt: skip


@pytest.mark.parametrize("text", NOT_FIVE)
def test_what_only_contains_the_answer_is_refused(text: str) -> None:
    assert grade(text, "5", never) is False
    assert exact_number(text, "5") == 0.0
    assert numeric_partial_credit(text, "5")["exact"] == 0.0


@pytest.mark.parametrize("text", FIVE)
def test_every_way_to_say_it_is_accepted(text: str) -> None:
    assert grade(text, "5", never) is True


@pytest.mark.parametrize(
    ("text", "answer", "same"),
    [
        ("y = 2x + 6", "2x + 6", True),
        ("x = 5", "x = 5", True),
        ("y = 5", "x = 5", False),
        ("y=1+2x", "y = 2x + 1", None),  # the symbols decide
        ("2x = 2x + 6", "2x + 6", False),
        ("1 hour = 60 minutes", "60", True),
        ("60 hours = 61 hours", "61", False),
        ("22/7 = around 3.142857", "3.142857", True),
        ("3.333...", "10/3", True),
        ("0.5...", "0.5", True),
        (r"2x \text{ cm}", "2x", None),
        ("120", "5!", False),
        ("5!", "5!", True),
        (r"\text{not }x", "x", False),
        (r"x \text{ or } y", "x", False),
        ("5 or 6", "5 or 6", True),
        ("not [5, 6]", "[5, 6]", False),
        ("[5, 6=7]", "[5, 7]", False),
        ("[5!, 6]", "[5, 6]", False),
    ],
)
def test_equations_lists_and_letters(text: str, answer: str, same: bool | None) -> None:
    verdict = grade(text, answer, lambda first, second: None)
    assert verdict is same or (same is True and verdict is None)


@pytest.mark.parametrize(
    ("text", "answer"),
    [("-5", "5"), ("1.5", "15"), (".5", "5"), ("3-5", "35"), ("1/2", "12"), ("3:45", "345"),
     ("1,2", "12"), ("5!", "5"), ("5%", "5"), ("in 1.5 miles", "in 15 miles")],
)  # fmt: skip
def test_a_number_keeps_its_sign_and_point_in_short_answers(text: str, answer: str) -> None:
    assert exact_match(text, answer) == exact_match(answer, text) == 0.0
    assert qa_f1_reward(text, answer)["reward"] < 1.0


@pytest.mark.parametrize(
    ("text", "answer"),
    [("-5", "-5."), ("5 %", "5%."), (r"5\%", "5%"), ("５\u200b", "5"), ("1,000", "1000"),
     ("$5", "5"), ("(1.5)", "1.5"), ("well-known", "wellknown"), ("U.S.", "us"),
     ("12,345,678", "12345678"), ("Oslo!", "Oslo"), ("about 3-5.", "about 3-5")],
)  # fmt: skip
def test_other_punctuation_is_no_part_of_a_short_answer(text: str, answer: str) -> None:
    assert exact_match(text, answer) == 1.0
