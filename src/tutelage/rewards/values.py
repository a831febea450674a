"""What a reward returned, as a `Reward`: every number in it is finite."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any, cast

from tutelage.errors import AnswerError, RewardError
from tutelage.types import Reward

LARGEST = 1e9
"""The largest size of a reward or of a part of it."""


def to_reward(value: Any, name: str, task_id: str) -> Reward:
    """A returned value as a `Reward`. Raises `RewardError` unless all numbers are finite."""
    where = f"reward {name!r} on task {task_id!r}"
    if isinstance(value, Reward):
        value = {**value.parts, "reward": value.value}
    if not isinstance(value, Mapping):
        return Reward(_finite(value, where, "returned"))
    numbers_by_name: dict[str, float] = {}
    for key, part in cast("Mapping[Any, Any]", value).items():
        if not isinstance(key, str):
            raise RewardError(f"{where} returned a dict with the key {key!r}; keys must be strings")
        numbers_by_name[key] = _finite(part, where, f"returned for {key!r}")
    if "reward" not in numbers_by_name:
        keys = ", ".join(map(repr, numbers_by_name)) or "nothing"
        raise RewardError(f"{where} returned a dict with {keys} but no 'reward'; add that key")
    return Reward(numbers_by_name.pop("reward"), numbers_by_name)


def _finite(value: Any, where: str, what: str) -> float:
    if not isinstance(value, numbers.Real) and callable(getattr(value, "item", None)):
        # A scalar of NumPy or torch; an array of several numbers refuses.
        try:
            value = value.item()
        except (ValueError, RuntimeError, TypeError) as error:
            raise RewardError(f"{where} {what} an array; return one number") from error
    if not isinstance(value, numbers.Real):
        raise RewardError(
            f"{where} {what} {value!r:.80}; return a bool, an int, a float, "
            "or a dict with 'reward' and named numbers"
        )
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isfinite(number) and abs(number) > LARGEST:
        raise RewardError(
            f"{where} {what} {number!r}; rewards are averaged and squared, so return a number "
            f"between -{LARGEST:g} and {LARGEST:g}"
        )
    if not math.isfinite(number):
        # As `float(prediction)` is of `nan` and `1e400`: nothing but text made it.
        raise AnswerError(f"{where} {what} {number!r}, which is not a finite number")
    return number
