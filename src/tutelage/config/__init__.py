"""The keys of a run: schema, spellings, the grammar of overrides, and how findings are told.

`RunConfig` is what the rest of the package reads of a training, `Resolved` the record of where each
value came from; `weights/config/` makes one. Searches and planners have models of their own of the
same parts (`fields.py`, `keys.py`, `overrides.py`, `issues.py`). Importing this package loads
neither torch nor Hydra.
"""

from tutelage.config.facts import Machine
from tutelage.config.resolved import Resolved
from tutelage.config.schema import RunConfig

__all__ = ["Machine", "Resolved", "RunConfig"]
