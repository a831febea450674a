"""What an evaluation, or one question, is asked for beside whose policy plays.

The options of `tutelage eval` and `tutelage ask` are these fields; `targets.py` does what they say.
"""

from __future__ import annotations

from tutelage.config.fields import (
    Count,
    CountOrZero,
    Names,
    NonNegative,
    Paths,
    RunSettings,
    Section,
)

LABEL = "eval"
"""Of the rollouts of an evaluation."""


class AskConfig(Section):
    """How one question is played."""

    tools: Names | None = None
    """Tools by name or FILE.py:function; else the run's."""
    temperature: NonNegative = 0.0
    """0 is greedy."""
    seed: CountOrZero = 0
    """Seed of the samples."""


class EvaluationConfig(RunSettings):
    """Which tasks are played, how, and what counts."""

    test: Paths
    """Tasks: JSON, JSONL, CSV or Parquet; may be repeated."""
    samples: Count = 1
    """Rollouts of each task."""
    temperature: NonNegative | None = None
    """0 is greedy; without it 0 for one sample, else 1."""
    limit: Count | None = None
    """Only the first tasks."""
    tools: Names | None = None
    """Tools by name or FILE.py:function; else the run's."""
    reward: str | None = None
    """Reward by name or FILE.py:function; else the run's."""
    success: str | None = None
    """What succeeds: a part of the reward, or a bound such as '>=0.5'."""
    seed: CountOrZero = 0
    """Seed of the samples."""
    output: str | None = None
    """Run folder that keeps it; without it nothing is kept."""

    @property
    def sampled_at(self) -> float:
        """The temperature, greedy for one sample where none is given."""
        if self.temperature is not None:
            return self.temperature
        return 0.0 if self.samples == 1 else 1.0
