"""Modules of each kind of run and of its view on the command line.

A view has `resume(folder, allow_changes)` and `show(console, folder)`. A kind that a program
registered itself (`runs/kinds.py`) is shown by `plain_view.py`.
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
"""Module of each kind, and of its view."""
_DEFAULT_VIEW = "tutelage.cli.plain_view"


def find_kind(folder: RunFolder) -> type[RunKind]:
    """Return the `RunKind` class of a run. Raises `RunError` for a missing or unknown kind."""
    from tutelage.runs.kinds import find_kind, kind_name

    name = kind_name(folder)
    if name in _KNOWN:
        importlib.import_module(_KNOWN[name][0])
    return find_kind(folder)


def find_view(folder: RunFolder) -> Any:
    """Return the module that displays a run. Raises `RunError` for a folder without a kind."""
    from tutelage.runs.kinds import kind_name

    modules = _KNOWN.get(kind_name(folder))
    return importlib.import_module(_DEFAULT_VIEW if modules is None else modules[1])
