"""The reward: the final answer against the field `result`, compared as mathematics."""

from tutelage import reward
from tutelage.rewards.math_grader import math_grader


@reward
def math_result(prediction: str, result: str) -> float:
    """1.0 for the same option, number (within 1 %) or expression, else 0.0."""
    return math_grader(prediction, result)["reward"]
