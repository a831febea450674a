"""Evaluation: play held-out tasks, add them up, and say how sure the numbers are.

`run.py` plays tasks on the engine's invariant mode, `outcome.py` adds rollouts up, `statistics.py`
owns intervals and comparisons. What a run's name means is resolved in `train/targets.py`.
"""

from tutelage.evaluate.outcome import Evaluation, succeeded, summarise
from tutelage.evaluate.statistics import Difference, paired_bootstrap, wilson

__all__ = ["Difference", "Evaluation", "paired_bootstrap", "succeeded", "summarise", "wilson"]
