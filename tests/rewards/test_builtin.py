"""The numeric, string and short-answer rewards, and the sentences of their page."""

from __future__ import annotations

import inspect
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tutelage.rewards import builtin, resolve_reward
from tutelage.rewards.answers import find_marked_answer, find_number, read_number
from tutelage.rewards.builtin import exact_number, math_reward_string_equal, numeric_partial_credit
from tutelage.rewards.qa import exact_match, gaia_scorer, normalise, qa_f1_reward


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("391", 391),
        (" -391.0 ", -391),
        ("391.", 391),
        ("−5", -5),
        ("1,234,567.5", Fraction("1234567.5")),
        ("$1,234", 1234),
        ("-$5", -5),
        ("$-5", -5),
        ("$12$", 12),
        ("12 €", 12),
        ("90^\\circ", 90),
        (r"1{,}234{,}567", 1234567),
        ("28 percent", Fraction(7, 25)),
        (r"28 \text{ percent}", Fraction(7, 25)),
        (r"-\dfrac{3}{5}", Fraction(-3, 5)),
        ("１２．５", Fraction(25, 2)),
        ("5\u200b", 5),
        ("1/2", Fraction(1, 2)),
        ("50%", Fraction(1, 2)),
        ("1e3", 1000),
        (".5", Fraction(1, 2)),
        (391, 391),
        (0.1, Fraction(1, 10)),
    ],
)
def test_numbers_are_read(text: object, expected: Fraction | int) -> None:
    assert read_number(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "12,34", "1,2345", "١٢", "²", "nan", "inf", "1/0", "--5", "-$-5", "1 2", "9**9", "1e9999",
     "5" * 500, "0x10", "1_000", True, None, "__import__('os')", "5$6", "1{,}5", "0{,}123", "½",
     r"2\frac{1}{2}", "28 percentage points"],
)  # fmt: skip
def test_what_is_no_number_is_not_read(text: object) -> None:
    assert read_number(text) is None


@given(st.fractions())
def test_every_fraction_is_read_as_itself(value: Fraction) -> None:
    assert read_number(str(value)) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The answer is 391.", 391),
        ("The answer is **391**.", 391),
        ("**Answer:** 391", 391),
        ("Result: 391 dollars", 391),
        ("I think\nthe final answer is: $1,234.50, done", Fraction("1234.5")),
        ("answer is 5. No: the answer is 6", 6),
        (r"so \boxed{\boxed{3}} or \boxed{391}", 391),
        ("steps...\n#### 391", 391),
        ("### ANSWER: 391 ###", 391),
    ],
)
def test_the_stated_number_is_found(text: str, expected: Fraction | int) -> None:
    assert find_number(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "12 13 14 391",
        "about 391",
        "answer is 12 or 13",
        "answer is 9**9**9",
        "answer is 17*23",
        "answer is 2 pi",
        "answer is 5 million",
        "answer is 12abc",
        "answer is 12.5.3",
        "answer is 12٣",
        "answer is not 5",
        "the answer isn't 5",
        "answer is NaN",
        r"\boxed{391",
        "",
    ],
)
def test_an_uncertain_answer_is_none(text: str) -> None:
    assert find_number(text) is None


def test_the_last_statement_counts() -> None:
    assert find_marked_answer("The answer is 3. Wait.\nresult: x + 1\n## Notes") == "x + 1"
    assert find_marked_answer("no statement") is None


@pytest.mark.parametrize(
    ("prediction", "answer", "expected"),
    [
        ("391", "391", 1.0),
        ("391.0", "391", 1.0),
        ("The answer is 391.", 391, 1.0),
        ("390", "391", 0.0),
        ("391.0000001", "391", 1.0),
        ("391.00001", "391", 0.0),
        ("0.3333333333", "1/3", 1.0),
        ("0.333", "1/3", 0.0),
        ("0", "0", 1.0),
        ("0.00000000000000000001", "0", 1.0),
        ("100000000000000000001", "100000000000000000000", 0.0),
        ("17*23", "391", 0.0),
        ("390 391 392", "391", 0.0),
        ("", "391", 0.0),
        ("nan", "391", 0.0),
        ("Paris.", "paris", 1.0),
        ("Lyon", "paris", 0.0),
        ("", "", 0.0),
    ],
)
def test_exact_number(prediction: str, answer: object, expected: float) -> None:
    assert exact_number(prediction, answer) == expected


@pytest.mark.parametrize(
    "reward",
    [
        exact_number,
        lambda p, a: builtin.exact_text(p, a),
        math_reward_string_equal,
        lambda p, a: numeric_partial_credit(p, a)["reward"],
    ],
)
def test_a_solution_with_its_answer_at_the_end_is_that_answer(reward: Any) -> None:
    gold = "She has 48/2 = <<48/2=24>>24 left, 48+24 = 72.\n#### 1,072"
    assert reward("1072", gold) == reward(gold, gold) == reward("#### 1,072", gold) == 1.0
    assert reward("72", gold) == reward("24", gold) == reward("", gold) == 0.0


@given(st.integers(), st.integers())
def test_whole_numbers_are_right_only_when_equal(a: int, b: int) -> None:
    assert exact_number(str(a), str(b)) == float(a == b)


@pytest.mark.parametrize(
    ("prediction", "expected", "exact"),
    [
        ("100", 1.0, 1.0),
        ("The answer is 100.", 1.0, 1.0),
        ("result: 101", 0.95, 0.0),
        ("95", 0.75, 0.0),
        ("110", 0.5, 0.0),
        ("90", 0.5, 0.0),
        ("110.0001", 0.0, 0.0),
        ("-100", 0.0, 0.0),
        ("I computed 100 somehow", 0.0, 0.0),
        ("9**9**9", 0.0, 0.0),
    ],
)
def test_numeric_partial_credit(prediction: str, expected: float, exact: float) -> None:
    got = numeric_partial_credit(prediction, "100")
    assert got == {"reward": pytest.approx(expected), "exact": exact}


@given(st.integers(1, 10**9), st.integers(0, 10**9))
def test_partial_credit_lies_in_its_range_and_falls_with_the_error(truth: int, off: int) -> None:
    near = numeric_partial_credit(str(truth + off), truth)["reward"]
    far = numeric_partial_credit(str(truth + off + 1), truth)["reward"]
    assert near == 0.0 or 0.5 <= near <= 1.0
    assert far <= near


@pytest.mark.parametrize(
    ("prediction", "answer", "expected"),
    [
        (" X + 1 ", "x+1", 1.0),
        ("$x$", "x", 1.0),
        (r"\boxed{x+1}", "x + 1", 1.0),
        ("1,234", "1234", 1.0),
        ("New  York.", "new york", 1.0),
        ("newyork", "new york", 0.0),
        ("1 2", "12", 0.0),
        ("2²", "22", 0.0),
        ("", "", 0.0),
    ],
)
def test_string_equality(prediction: str, answer: str, expected: float) -> None:
    assert builtin.exact_text(prediction, answer) == expected


@pytest.mark.parametrize(
    ("prediction", "answer", "expected"),
    [
        ("She sold 48 + 24 = 72 clips.", "72", 1.0),
        ("The answer is 72 in April and May.", 72, 1.0),
        ("72 then 73", "72", 0.0),
        ("73 then 72", "72", 1.0),
        (r"It took 2 steps: \boxed{72}, on 3 lines", "72", 1.0),
        (r"It is 7, so \boxed{5}", "7", 0.0),
        (r"\boxed{x + 1}", "x+1", 1.0),
        ("x+1", "x + 1", 1.0),
        (r"\boxed{1/2}", "1/2", 1.0),
        (r"not \boxed{5} but 6", "6", 1.0),
        ("1,072 clips", "1072", 1.0),
        ("it is -5.", "-5", 1.0),
        ("-5", "5", 0.0),
        ("10-5", "5", 1.0),
        ("72.0", "72", 1.0),
        ("1.5", "5", 0.0),
        # numbers are not cut in pieces
        ("The answer is 28%.", "28%", 1.0),
        ("The answer is 28%.", "28", 0.0),
        ("It is 28 percent.", "28%", 1.0),
        ("so 3/5 of them", "3/5", 1.0),
        ("3/5", "5", 0.0),
        ("2 1/2", "1/2", 0.0),
        (r"\boxed{\frac{3}{5}}", "3/5", 1.0),
        (r"\boxed{\frac{3}{5}}", "5", 0.0),
        (r"\boxed{2\frac{1}{2}}", "2", 0.0),
        ("It is 1.5e6.", "1500000", 1.0),
        ("1.5e6", "6", 0.0),
        ("on 3/5/2024", "2024", 0.0),
        ("at 12:30", "30", 0.0),
        (r"\boxed{\sqrt{2}}", "2", 0.0),
        (r"\boxed{\sqrt 2}", "2", 0.0),
        ("sqrt(2)", "2", 0.0),
        ("2^{10}", "10", 0.0),
        (r"5\pi", "5", 0.0),
        (r"\boxed{1{,}234{,}567}", "567", 0.0),
        (r"\boxed{1{,}234{,}567}", "1234567", 1.0),
        (r"\boxed{72\text{ clips}}", "72", 1.0),
        (r"The angle is $72^\circ$.", "72", 1.0),
        ("答案是７２。", "72", 1.0),
        ("Answer:72km", "72", 1.0),
        ("it is -$5", "5", 0.0),
        ("72", "5 + 67 = 72\n#### 72", 1.0),
        ("none", "5", 0.0),
        ("", "5", 0.0),
        ("", "", 0.0),
    ],
)
def test_the_last_number_or_box_is_the_answer(
    prediction: str, answer: object, expected: float
) -> None:
    assert math_reward_string_equal(prediction, answer) == expected


# ------------------------------------------------------------ the table of the page


PAGE = Path(__file__).parents[2] / "docs" / "rewards.md"


def table() -> list[tuple[str, str, float]]:
    """Reward, final text and what it earns, of each cell of the page's table."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| final text |"))
    names = [cell.strip(" `") for cell in lines[start].strip("|").split("|")[1:]]
    found: list[tuple[str, str, float]] = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        text, *earned = (cell.strip(" `") for cell in line.strip("|").split("|"))
        found += [(name, text, float(e)) for name, e in zip(names, earned, strict=True)]
    return found


def test_the_table_is_there() -> None:
    assert len(table()) == 27
    assert {earned for _, _, earned in table()} == {0.0, 1.0}


@pytest.mark.parametrize(("name", "text", "earned"), table())
async def test_a_sentence_earns_what_the_page_says(name: str, text: str, earned: float) -> None:
    found = resolve_reward(name).fn(prediction=text, answer="46")
    grade = await found if inspect.isawaitable(found) else found
    assert (grade["reward"] if isinstance(grade, dict) else grade) == earned


# ------------------------------------------------------------ short answers


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Cat!", "cat"),
        ("an A-frame", "aframe"),
        ("theatre", "theatre"),
        ("U.S.", "us"),
        ("a", ""),
    ],
)
def test_normalising(text: str, normal: str) -> None:
    assert normalise(text) == normal


@pytest.mark.parametrize(
    ("prediction", "answer", "score", "exact"),
    [
        ("the Eiffel Tower", "Eiffel tower.", 1.0, 1.0),
        ("Eiffel", "Eiffel Tower", 2 / 3, 0.0),
        ("It is the Eiffel Tower in Paris", "Eiffel Tower", 2 * (2 / 6) / (2 / 6 + 1), 0.0),
        ("Rome or Paris", "Paris", 0.5, 0.0),
        ("Paris Paris Paris", "Paris", 0.5, 0.0),
        ("Lyon", ["Paris", "Lyon"], 1.0, 1.0),
        ("yes", "yes it is", 0.0, 0.0),
        ("yes", "Yes.", 1.0, 1.0),
        ("no", "yes", 0.0, 0.0),
        ("", "Paris", 0.0, 0.0),
        ("the", "a", 0.0, 0.0),
        ("Paris", [], 0.0, 0.0),
        ("12", 12, 1.0, 1.0),
    ],
)
def test_f1_and_exact_match(prediction: str, answer: Any, score: float, exact: float) -> None:
    assert qa_f1_reward(prediction, answer) == {"reward": pytest.approx(score), "exact": exact}
    assert exact_match(prediction, answer) == exact


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60), st.text(max_size=60))
def test_f1_is_symmetric_and_bounded(a: str, b: str) -> None:
    one, other = qa_f1_reward(a, b)["reward"], qa_f1_reward(b, a)["reward"]
    assert 0.0 <= one <= 1.0
    assert one == pytest.approx(other)


@pytest.mark.parametrize(
    ("prediction", "answer", "right"),
    [
        ("$1,234.50", "1234.5", 1),
        ("17%", "17", 1),
        ("１７", "17", 1),
        ("17.0000009", "17", 1),
        ("17.00001", "17", 0),
        ("0.17", "17%", 0),
        ("1_7", "17", 0),
        ("١٧", "17", 0),
        ("nan", "17", 0),
        ("17 apples", "17", 0),
        ("b, 3, Red", "b,3,red", 1),
        ("3, b, red", "b,3,red", 0),
        ("b; 3", "b, 3", 1),
        ("b", "b,c", 0),
        ("$3, 4%", "3;4", 1),
        ("St. Petersburg", "st petersburg", 1),
        ("SaintPetersburg", "Saint Petersburg", 1),
        ("Paris, France", "Paris", 0),
        ("", "...", 0),
        ("", "Paris", 0),
    ],
)
def test_gaia(prediction: str, answer: str, right: int) -> None:
    assert gaia_scorer(prediction, answer) == right
