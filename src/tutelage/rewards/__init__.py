"""Rewards: functions that say what an attempt earned.

Read `function.py` for the decorator and the check at the door, `builtin.py` and `math_grader.py`
for the rewards that come with the package, `answers.py` for how an answer is found in a text, and
`registry.py` for names.
"""

from tutelage.rewards.function import RewardFunction, check, compute_reward, reward
from tutelage.rewards.registry import resolve_reward

__all__ = ["RewardFunction", "check", "compute_reward", "resolve_reward", "reward"]
