"""What counts as an answer that is committed to one value, and what only contains it.

Each row of the tables is a final text, the task's answer, and whether the two are the same; the
same texts go through every reward that reads numbers.
"""

from __future__ import annotations

import pytest

from tutelage.rewards.builtin import exact_number, numeric_partial_credit
from tutelage.rewards.math_grader import grade
from tutelage.rewards.qa import exact_match, qa_f1_reward


def never(first: str, second: str) -> bool | None:
    raise AssertionError(f"the symbolic path was reached for {first!r} and {second!r}")


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
