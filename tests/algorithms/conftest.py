"""Puts `tests/reference` (slow formulas and batch generators) within reach of these tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "reference"))
