"""The configuration of a run: schema, spellings, overrides, presets, checks.

`resolve` is the door: it turns `tutelage train RECIPE KEY=VALUE ...` into a `Resolved`, whose
`config` the rest of the package reads and whose other parts say where each value came from. Keys
and defaults are in `schema.py` and `rl.py`; what is not built yet, in `facts.py`. Importing this
package loads neither torch nor Hydra.
"""

from tutelage.config.facts import BUILT, Built, Machine, device_of
from tutelage.config.reference import ReferenceRow, reference_markdown, reference_rows
from tutelage.config.resolve import resolve
from tutelage.config.resolved import Resolved, TableRow
from tutelage.config.schema import RunConfig

__all__ = [
    "BUILT",
    "Built",
    "Machine",
    "ReferenceRow",
    "Resolved",
    "RunConfig",
    "TableRow",
    "device_of",
    "reference_markdown",
    "reference_rows",
    "resolve",
]
