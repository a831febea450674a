"""Rewards: functions that say what an attempt earned.

Read `function.py` for the decorator and the check of its result, `builtin.py` and `math_grader.py`
for answers in mathematics, `qa.py` for short texts, `code.py` for programs, `judge.py` for what
only a model can judge, `answers.py` for how an answer is found in a text and what takes it back,
`formulas.py` for what it is worth, `validation.py` for proving a reward before it is used, and
`registry.py` for names.
"""

from tutelage.rewards.function import RewardFunction, check, compute_reward, reward
from tutelage.rewards.registry import resolve_reward

__all__ = [
    "RewardFunction",
    "check",
    "compute_reward",
    "resolve_reward",
    "reward",
]
