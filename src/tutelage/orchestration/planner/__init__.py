"""Planners: `choose.py` says which one plans, `model.py` is trained, `llm.py` asks a model."""

from __future__ import annotations

import importlib.util

from tutelage.errors import MissingExtraError


def check_torch() -> None:
    """Raise `MissingExtraError` where torch, which the trained planner is made of, is missing."""
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError(
            "the trained planner needs the package 'torch', which is not installed; install it "
            "with: pip install 'tutelage[train]'"
        )
