"""Puts the rule-based simulators of `benchmarks/prompt` within reach of these tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "prompt"))
