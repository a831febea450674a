"""Names to rewards: what `--reward math` or `--reward my_rewards.py:score` means.

A plain function found in a file becomes a reward as if it were decorated. The math grader's module
is imported only when it is asked for.
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
"""Where each built-in reward is, by name: the reward itself, or what makes it from options."""


def resolve_reward(name: str, options: ToolOptions | None = None) -> RewardFunction:
    """The reward of that name, or at `FILE.py:name`, under the name that is given here.

    Raises `RewardError` for an unknown name, `ConfigError` for a missing file or function, or for
    a reward that cannot work with these options.
    """
    if name in BUILTIN_REWARDS:
        found = import_attribute(BUILTIN_REWARDS[name])
        made = found if isinstance(found, RewardFunction) else found(options or ToolOptions())
        return replace(made, name=name)
    if not is_file_reference(name):
        near = hint(name, BUILTIN_REWARDS, "did you mean {!r}? ")
        raise RewardError(
            f"unknown reward {name!r}; {near}built-in rewards are "
            f"{', '.join(BUILTIN_REWARDS)}; for your own use FILE.py:name"
        )
    found = load_attribute(name, "reward")
    if not callable(found) or isinstance(found, type):
        raise RewardError(
            f"reward {name!r} is a {type(found).__name__}, not a function or a @reward"
        )
    return replace(found if isinstance(found, RewardFunction) else reward(found), name=name)
