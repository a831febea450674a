"""Resolve the names of rewards, such as `--reward math` or `--reward my_rewards.py:score`.

A plain function in a file is treated as if it were decorated. The modules of built-in rewards are
imported on first use.
"""

from __future__ import annotations

from dataclasses import replace

from tutelage.errors import RewardError
from tutelage.rewards.function import RewardFunction, reward
from tutelage.tools.loading import hint, import_attribute, is_file_reference, load_attribute
from tutelage.tools.options import ToolOptions

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
"""Location of each built-in reward, or of a function that builds it from options, by name."""


def resolve_reward(name: str, options: ToolOptions | None = None) -> RewardFunction:
    """Look up a reward by its built-in name or as `FILE.py:name`.

    Raises `RewardError` for an unknown name, and `ConfigError` for a missing file or function or
    for options that the reward does not support.
    """
    if name in BUILTIN_REWARDS:
        loaded = import_attribute(BUILTIN_REWARDS[name])
        built = loaded if isinstance(loaded, RewardFunction) else loaded(options or ToolOptions())
        return replace(built, name=name)
    if not is_file_reference(name):
        suggestion = hint(name, BUILTIN_REWARDS, "did you mean {!r}? ")
        raise RewardError(
            f"unknown reward {name!r}; {suggestion}built-in rewards are "
            f"{', '.join(BUILTIN_REWARDS)}; for your own reward use FILE.py:name"
        )
    loaded = load_attribute(name, "reward")
    if not callable(loaded) or isinstance(loaded, type):
        raise RewardError(
            f"reward {name!r} is a {type(loaded).__name__}, not a function or a @reward"
        )
    return replace(loaded if isinstance(loaded, RewardFunction) else reward(loaded), name=name)
