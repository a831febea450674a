"""Reward functions, which score the attempts of an agent.

`function.py` has the decorator and the check of its result, `builtin.py` and `math_grader.py`
grade mathematics, `qa.py` short texts, `code.py` programs, and `judge.py` asks a language model.
`answers.py` extracts answers from text, `formulas.py` evaluates them, `validation.py` tests a
reward before training, and `registry.py` resolves names.
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
