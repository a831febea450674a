"""The calculator's arithmetic against a slow reference, and its verdicts on hostile text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutelage.tools.expression import MAX_DIGITS, ExpressionError, evaluate, format_number

LIMIT = 10**MAX_DIGITS


@dataclass
class Tree:
    """A random expression: a literal, or an operator over one or two trees."""

    operator: str
    parts: tuple[Tree, ...] = ()

    def text(self) -> str:
        if not self.parts:
            return self.operator
        inner = [part.text() if not part.parts else f"({part.text()})" for part in self.parts]
        return self.operator + inner[0] if len(inner) == 1 else f" {self.operator} ".join(inner)

    def value(self) -> Fraction | None:
        """The reference: None for no value within the limits."""
        if not self.parts:
            return Fraction(self.operator)
        values = [part.value() for part in self.parts]
        if any(v is None for v in values):
            return None
        a, *rest = [v for v in values if v is not None]
        if not rest:
            return -a
        (b,) = rest
        if self.operator == "**":
            if b.denominator != 1 or abs(b) > 200 or (a == 0 and b < 0):
                return None
            made = Fraction(a ** int(b))
        elif self.operator in ("/", "//", "%") and b == 0:
            return None
        else:
            made = {
                "+": lambda: a + b,
                "-": lambda: a - b,
                "*": lambda: a * b,
                "/": lambda: a / b,
                "//": lambda: Fraction(a // b),
                "%": lambda: a % b,
            }[self.operator]()
        return made if abs(made.numerator) < LIMIT and made.denominator < LIMIT else None


literals = st.one_of(
    st.integers(0, 120).map(str),
    st.decimals(0, 99, places=2).map(str),
).map(Tree)
trees = st.recursive(
    literals,
    lambda inner: st.one_of(
        st.builds(lambda a: Tree("-", (a,)), inner),
        st.builds(
            lambda op, a, b: Tree(op, (a, b)),
            st.sampled_from(["+", "-", "*", "/", "//", "%", "**"]),
            inner,
            inner,
        ),
    ),
    max_leaves=12,
)


def is_fractional_power(tree: Tree) -> bool:
    exponent = tree.parts[1].value() if tree.operator == "**" else None
    return (exponent is not None and exponent.denominator != 1) or any(
        is_fractional_power(part) for part in tree.parts
    )


@given(trees.filter(lambda t: not is_fractional_power(t)))
def test_equals_the_reference_or_is_refused_where_it_has_no_value(tree: Tree) -> None:
    expected = tree.value()
    if expected is None:
        with pytest.raises(ExpressionError):
            evaluate(tree.text())
    else:
        assert evaluate(tree.text()) == expected


@given(
    # Python itself would work for ever at 9**3**3**3.
    st.lists(st.sampled_from(["+", "-", "*", "//", "%", "**"]), min_size=1, max_size=4).filter(
        lambda found: found.count("**") < 3
    ),
    st.data(),
)
def test_precedence_and_grouping_are_pythons(operators: list[str], data: st.DataObject) -> None:
    text = str(data.draw(st.integers(1, 9)))
    for operator in operators:
        sign = data.draw(st.sampled_from(["", "-"])) if operator != "**" else ""
        text += f"{operator}{sign}{data.draw(st.integers(1, 3))}"
    expected = eval(text)  # built above from digits and operators only
    if abs(expected) < LIMIT:
        assert evaluate(text) == expected


@given(st.text(alphabet="0123456789+-*/%^()., eEx_٣", max_size=60))
def test_any_text_gives_a_bounded_number_or_an_error(text: str) -> None:
    try:
        value = evaluate(text)
    except ExpressionError:
        return
    assert abs(value.numerator) < LIMIT
    assert value.denominator < LIMIT
    shown = evaluate(format_number(value))
    assert abs(shown - value) <= abs(value) / 10**9


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("17 * 23 + 5", "396"),
        ("-2**2", "-4"),
        ("2**-2", "0.25"),
        ("2**3**2", "512"),
        ("2^10", "1024"),
        ("9**0.5", "3"),
        ("1/3", "0.3333333333"),
        ("-1/3", "-0.3333333333"),
        ("12345678901/2", "6172839450.5"),
        ("0.1+0.2", "0.3"),
        ("1e3", "1000"),
        ("7 % 3", "1"),
        ("-7 // 2", "-4"),
        ("1**99999999999999999999", "1"),
        ("12 × 3 ÷ 4 − 1", "8"),
        ("+5", "5"),
    ],
)
def test_known_values(text: str, expected: str) -> None:
    assert format_number(evaluate(text)) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("9**9**9", "digits"),
        ("9" * 41, "digits"),
        ("2**(1/3)**-999999", "digits"),
        ("(" * 900, "deep"),
        ("", "empty"),
        ("١٢", "position 1"),
        ("1,234", "thousands"),
        ("1/0", "division by zero"),
        ("(-8)**0.5", "real"),
        ("__import__('os')", "position 12"),
        ("2 3", "position 3"),
        ("1+", "too early"),
        ("(1", "missing ')'"),
    ],
)
def test_hostile_text_is_refused_with_a_reason(text: str, says: str) -> None:
    with pytest.raises(ExpressionError, match=re.escape(says)):
        evaluate(text)
