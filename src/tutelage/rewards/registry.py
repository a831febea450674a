"""Names to rewards: what `--reward math` or `--reward my_rewards.py:score` means.

A plain function found in a file becomes a reward as if it were decorated. The math grader's module
is imported only when it is asked for.
"""

from __future__ import annotations

import importlib

from tutelage.errors import RewardError
from tutelage.rewards.function import RewardFunction, reward
from tutelage.tools.loading import is_file_reference, load_attribute, nearest

BUILTIN_REWARDS = {
    "math": "tutelage.rewards.builtin:exact_number",
    "exact_number": "tutelage.rewards.builtin:exact_number",
    "math_grader": "tutelage.rewards.math_grader:math_grader",
    "math_reward_string_equal": "tutelage.rewards.builtin:math_reward_string_equal",
    "numeric_partial_credit": "tutelage.rewards.builtin:numeric_partial_credit",
}
"""Where each built-in reward is defined, by name."""


def resolve_reward(name: str) -> RewardFunction:
    """The reward of that name, or at `FILE.py:name`.

    Raises `RewardError` for an unknown name, `ConfigError` for a missing file or function.
    """
    if name in BUILTIN_REWARDS:
        module, _, attribute = BUILTIN_REWARDS[name].partition(":")
        built: RewardFunction = getattr(importlib.import_module(module), attribute)
        return built
    if not is_file_reference(name):
        near = nearest(name, BUILTIN_REWARDS)
        hint = f"did you mean {near!r}? " if near else ""
        raise RewardError(
            f"unknown reward {name!r}; {hint}built-in rewards are "
            f"{', '.join(BUILTIN_REWARDS)}; your own are FILE.py:name"
        )
    found = load_attribute(name, "reward")
    if isinstance(found, RewardFunction):
        return found
    if not callable(found) or isinstance(found, type):
        raise RewardError(
            f"reward {name!r} is a {type(found).__name__}; point at a function or a @reward"
        )
    return reward(found)
