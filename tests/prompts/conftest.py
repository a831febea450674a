"""Puts the rule-based simulators of `benchmarks/prompt` within reach of these tests."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "benchmarks" / "prompt"), str(ROOT)]
