"""An Agno agent that solves math problems, trained three ways: its prompt, or its model's weights.

`train.py` is the command; read `agent.py` next, then `dataset.py`, `grader.py`, `database.py` and,
for the training of weights, `policy.py`. What is shared with the example of the seven frameworks
is imported from its folder.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "frameworks"))
