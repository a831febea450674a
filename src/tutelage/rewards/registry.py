"""Names to rewards: what `--reward math` or `--reward my_rewards.py:score` means.

A plain function found in a file becomes a reward as if it were decorated. The math grader's module
is imported only when it is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import cast

from tutelage.errors import RewardError
from tutelage.rewards.function import RewardFunction, reward
from tutelage.rewards.options import RewardOptions
from tutelage.tools.loading import is_file_reference, load_attribute, nearest

BUILTIN_REWARDS = {
    "math": "tutelage.rewards.builtin:exact_number",
    "exact_number": "tutelage.rewards.builtin:exact_number",
    "math_grader": "tutelage.rewards.math_grader:math_grader",
    "math_reward_string_equal": "tutelage.rewards.builtin:math_reward_string_equal",
    "exact_text": "tutelage.rewards.builtin:exact_text",
    "numeric_partial_credit": "tutelage.rewards.builtin:numeric_partial_credit",
    "qa_f1_reward": "tutelage.rewards.qa:qa_f1_reward",
    "exact_match": "tutelage.rewards.qa:exact_match",
    "gaia_scorer": "tutelage.rewards.qa:gaia_scorer",
    "code_reward": "tutelage.rewards.code:code_reward",
    "llm_judge": "tutelage.rewards.judge:llm_judge",
}
"""Where each built-in reward is, by name: the reward itself, or what makes it from options."""


def resolve_reward(name: str, options: RewardOptions | None = None) -> RewardFunction:
    """The reward of that name, or at `FILE.py:name`.

    Raises `RewardError` for an unknown name, `ConfigError` for a missing file or function, or for
    a reward that cannot work with these options.
    """
    if name in BUILTIN_REWARDS:
        module, _, attribute = BUILTIN_REWARDS[name].partition(":")
        found = getattr(importlib.import_module(module), attribute)
        if isinstance(found, RewardFunction):
            return found
        return cast("Callable[[RewardOptions], RewardFunction]", found)(options or RewardOptions())
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
