"""Tasks: where the questions of a run come from.

`Dataset` (`dataset.py`) is a checked sequence of tasks, `readers.py` turns files into rows with
their line numbers, and `arithmetic.py` generates the problems of the embedded job. Everything that
could be wrong with a row is found here, before a model is loaded. What acts on tasks is elsewhere:
`tutelage.tools` and `tutelage.rewards`.
"""

from tutelage.tasks.dataset import Dataset

__all__ = ["Dataset"]
