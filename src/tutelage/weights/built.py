"""What is built: the limits of `config/facts.py`, with what the losses declare of themselves."""

from __future__ import annotations

from dataclasses import replace

from tutelage.algorithms.rl import LOSS_DEFAULTS
from tutelage.config import BUILT, Built


def built() -> Built:
    """What is built, with what the losses declare: what configuration is resolved with."""
    return replace(BUILT, losses=LOSS_DEFAULTS)
