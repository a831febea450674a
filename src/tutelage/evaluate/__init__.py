"""Evaluation: play held-out tasks, and summarise rewards and success with intervals.

`targets.py` finds what a target names, `evaluated_agent.py` plays on the engine's invariant mode,
`statistics/outcome.py` summarises rollouts, and `statistics/intervals.py` has intervals and
comparisons.
"""

from tutelage.statistics.intervals import Difference, paired_bootstrap, wilson
from tutelage.statistics.outcome import Evaluation, is_success, summarise

__all__ = ["Difference", "Evaluation", "is_success", "paired_bootstrap", "summarise", "wilson"]
