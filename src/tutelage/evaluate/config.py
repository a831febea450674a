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
    Positive,
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
    endpoint: Paths = ()
    """Server that answers the agent's model calls; twice, one for each of two targets."""
    model: Paths = ()
    """Model on that server, or a folder whose model answers an agent of your own; twice, one for
    each of two targets."""
    samples: Count = 1
    """Rollouts of each task; intervals are clustered by task."""
    temperature: NonNegative | None = None
    """0 is greedy; without it 0 for one sample, else 1."""
    max_turns: Count | None = None
    """Model calls of a rollout; else the run's, else 4, or 16 for an agent of your own."""
    max_tokens: Count | None = None
    """Tokens of one reply; else the run's, else 256, or 2,000 for an agent of your own."""
    timeout: Positive = 60.0
    """Seconds that an agent of your own may take, not counting those of its model calls."""
    runners: Count = 8
    """Rollouts at once, where a server or an agent of your own is asked."""
    limit: Count | None = None
    """Only the first tasks."""
    tools: Names | None = None
    """Tools by name or FILE.py:function; else the run's."""
    reward: str | None = None
    """Reward by name or FILE.py:function; else the run's."""
    success: str | None = None
    """What succeeds: a part of the reward, or a bound such as '>=0.5'."""
    prices: str | None = None
    """Price table, a TOML file; else TUTELAGE_PRICES, else prices.toml, else the built-in one."""
    seed: CountOrZero = 0
    """Seed of the samples."""
    output: str | None = None
    """Run folder that keeps it, DIR-1 and DIR-2 of two targets; without it nothing is kept."""

    def of_target(self, index: int) -> EvaluationConfig:
        """The settings of one of two targets."""
        own = {name: getattr(self, name)[index:][:1] for name in ("endpoint", "model")}
        both = {name: value or getattr(self, name)[:1] for name, value in own.items()}
        place = None if self.output is None else f"{self.output}-{index + 1}"
        return self.model_copy(update={**both, "output": place})

    @property
    def sampled_at(self) -> float:
        """The temperature, greedy for one sample where none is given."""
        if self.temperature is not None:
            return self.temperature
        return 0.0 if self.samples == 1 else 1.0
