"""Convert the return value of a reward function to a `Reward` of finite numbers."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any, cast

from tutelage.errors import AnswerError, RewardError
from tutelage.types import Reward

LARGEST = 1e9
"""Largest absolute value of a reward or of a part."""


def to_reward(value: Any, name: str, task_id: str) -> Reward:
    """Convert the return value of a reward function to a `Reward`.

    Raises `AnswerError` for numbers that are not finite, and `RewardError` for other values.
    """
    label = f"reward {name!r} on task {task_id!r}"
    if isinstance(value, Reward):
        value = {**value.parts, "reward": value.value}
    if not isinstance(value, Mapping):
        return Reward(_to_finite_number(value, label, ""))
    numbers_by_name: dict[str, float] = {}
    for key, part in cast("Mapping[Any, Any]", value).items():
        if not isinstance(key, str):
            raise RewardError(f"{label} returned a dict with the key {key!r}; keys must be strings")
        numbers_by_name[key] = _to_finite_number(part, label, f" for {key!r}")
    if "reward" not in numbers_by_name:
        keys = ", ".join(map(repr, numbers_by_name)) or "nothing"
        raise RewardError(f"{label} returned a dict with {keys} but no 'reward'; add that key")
    return Reward(numbers_by_name.pop("reward"), numbers_by_name)


def _to_finite_number(value: Any, label: str, entry: str) -> float:
    if not isinstance(value, numbers.Real) and callable(getattr(value, "item", None)):
        # A scalar of NumPy or torch; `item` fails for an array of several numbers.
        try:
            value = value.item()
        except (ValueError, RuntimeError, TypeError) as error:
            raise RewardError(f"{label} returned an array{entry}; return one number") from error
    if not isinstance(value, numbers.Real):
        raise RewardError(
            f"{label} returned {value!r:.80}{entry}; return a bool, an int, a float, "
            "or a dict with 'reward' and named numbers"
        )
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isfinite(number) and abs(number) > LARGEST:
        raise RewardError(
            f"{label} returned {number!r}{entry}; rewards are averaged and squared, so return a "
            f"number between -{LARGEST:g} and {LARGEST:g}"
        )
    if not math.isfinite(number):
        # `float(prediction)` of `nan` or `1e400`: the text of the model is the cause.
        raise AnswerError(f"{label} returned {number!r}{entry}, which is not a finite number")
    return number
