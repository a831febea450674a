"""Configuration keys of a run: schema, aliases, overrides, and error messages.

`RunConfig` is the configuration of a training, `Resolved` adds the origin of each value;
`weights/config/` resolves it. Searches and planners have models of their own made from the same
parts (`fields.py`, `keys.py`, `overrides.py`, `issues.py`). Importing this package loads neither
torch nor Hydra.
"""

from tutelage.config.facts import Machine
from tutelage.config.resolved import Resolved
from tutelage.config.schema import RunConfig

__all__ = ["Machine", "Resolved", "RunConfig"]
