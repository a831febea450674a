"""Tasks: the questions of a run.

`Dataset` (`dataset.py`) is a validated sequence of tasks, `readers.py` reads files to rows with
line numbers, and `arithmetic.py` generates the problems of the embedded job. Every invalid row is
refused here, before a model is loaded. Tools and rewards are in `tutelage.tools` and
`tutelage.rewards`.
"""

from tutelage.tasks.dataset import Dataset as Dataset
