"""The reward: the final answer against the field `result`, compared as mathematics.

The parts have the names that the Lightning documents give them. They read text with the grader that
comes with Tutelage and never evaluate it: `sqrt(2)` is a number, `__import__('os')` is none.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from tutelage import Dataset, reward
from tutelage.rewards.formulas import float_value
from tutelage.rewards.math_grader import math_grader

REL_TOL = 0.01


class MathProblem(TypedDict):
    """One line of the files."""

    id: str
    question: str
    chain: str
    """How the result comes about; not used in training."""
    result: str
    source: str


def _load_jsonl(file_path: str | Path) -> Dataset[MathProblem]:
    """The problems of a file, one JSON object a line."""
    lines = Path(file_path).read_text(encoding="utf-8").split("\n")
    return Dataset([json.loads(line) for line in lines if line.strip()], name=str(file_path))


def _normalize_option(option: str) -> str:
    """`(B )` as `B`."""
    return "".join(ch for ch in option if not ch.isspace() and ch not in "()")


def _is_option_result(result: str) -> bool:
    """Whether a result is one letter, such as `(B)`."""
    option = _normalize_option(result)
    return len(option) == 1 and option.isascii() and option.isalpha()


def _float_eval(input_str: str) -> float:
    """The value of a number or an expression; of `22/7 = around 3.14` that of the exact side.

    Raises `ValueError` for anything else.
    """
    exact, around, rounded = input_str.partition("= around")
    return float_value((exact.strip() or rounded.strip()) if around else input_str)


def _scalar_are_results_same(pred_result: Any, true_result: Any, rel_tol: float = REL_TOL) -> bool:
    """Whether two single results agree: an option by its letter, a number within `rel_tol`."""
    pred, true = ("" if r is None else str(r).strip() for r in (pred_result, true_result))
    if pred == true:
        return bool(true)
    if _is_option_result(true):
        return _normalize_option(pred) == _normalize_option(true)
    try:
        value, wanted = _float_eval(pred), _float_eval(true)
    except ValueError:
        # Words around the answer, an equation, letters: what the grader is for.
        return math_grader(pred, true)["reward"] == 1.0
    return abs(value - wanted) / max(abs(wanted), 1e-10) < rel_tol


def _evaluate_math_result(pred_result: Any, true_result: Any) -> bool:
    """Whether an answer is right. Of several results each must be, in order."""
    if isinstance(true_result, (list, tuple)):
        given = pred_result
        if not isinstance(given, (list, tuple)):
            return math_grader(str(given), list[Any](true_result))["reward"] == 1.0
        pairs: Sequence[tuple[Any, Any]] = list(zip(given, true_result, strict=False))
        same_length = len(given) == len(true_result)
        return same_length and all(_evaluate_math_result(a, b) for a, b in pairs)
    return _scalar_are_results_same(pred_result, true_result)


@reward
def math_result(prediction: str, result: str) -> float:
    """1.0 for the same option, number (within 1 %) or expression, else 0.0."""
    return float(_evaluate_math_result(prediction, result))
