"""Evaluation: play held-out tasks, add them up, and say how sure the numbers are.

`targets.py` plays tasks on the engine's invariant mode, `statistics/outcome.py` adds rollouts up,
`statistics/intervals.py` owns intervals and comparisons. What a run's name means is resolved in
`targets.py`.
"""

from tutelage.statistics.intervals import Difference, paired_bootstrap, wilson
from tutelage.statistics.outcome import Evaluation, is_success, summarise

__all__ = ["Difference", "Evaluation", "is_success", "paired_bootstrap", "summarise", "wilson"]
