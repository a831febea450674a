"""Planners: selection (`choose.py`), trained planner (`model.py`), language model (`llm.py`)."""

from __future__ import annotations

import importlib.util

from tutelage.errors import MissingExtraError


def check_torch() -> None:
    """Raise `MissingExtraError` if torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError(
            "the trained planner needs the package 'torch'; install it with: pip install "
            "'tutelage[train]'"
        )
