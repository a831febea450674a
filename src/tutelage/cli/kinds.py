"""The kinds of run that the command line knows, and how it shows each: the one table of both.

A kind stands in one module, and what the terminal shows of it in another one with
`resume(folder, allow_changes)` and `show(console, folder)`. A kind that a program registered itself
(`runs/kinds.py`) needs no line here: `plain_view.py` shows what any run has.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tutelage.runs.folder import RunFolder
    from tutelage.runs.kinds import RunKind


_WEIGHTS = ("tutelage.weights.kinds", "tutelage.cli.weights_view")
_KNOWN: Mapping[str, tuple[str, str]] = {
    "weights": _WEIGHTS,
    "supervised": _WEIGHTS,
    "prompt": ("tutelage.prompts.run", "tutelage.cli.prompt_train"),
    "planner": ("tutelage.orchestration.job", "tutelage.cli.planner"),
    "evaluation": ("tutelage.evaluate.kind", "tutelage.cli.eval"),
    "execution": ("tutelage.orchestration.execution.runs", "tutelage.cli.orchestrate"),
}
"""The module of each kind, and that of its view."""
_PLAIN = "tutelage.cli.plain_view"


def kind_of(folder: RunFolder) -> type[RunKind]:
    """The kind of a run. Raises `RunError` for a folder of none, or of an unknown one."""
    from tutelage.runs.kinds import name_of, registered

    name = name_of(folder)
    if name in _KNOWN:
        importlib.import_module(_KNOWN[name][0])
    return registered(folder)


def view_of(folder: RunFolder) -> Any:
    """How a run is shown. Raises `RunError` for a folder that names no kind."""
    from tutelage.runs.kinds import name_of

    place = _KNOWN.get(name_of(folder))
    return importlib.import_module(_PLAIN if place is None else place[1])
