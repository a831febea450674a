"""What an evaluation, or one question, is asked for beside whose policy plays.

The options of `tutelage eval` and `tutelage ask` are these fields; `targets.py` does what they say.
"""

from __future__ import annotations

from tutelage.config.fields import (
    Arguments,
    Count,
    CountOrZero,
    Names,
    NonNegative,
    Paths,
    Positive,
    RunSettings,
    Section,
    SuccessRule,
)

LABEL = "eval"
"""Of the rollouts of an evaluation."""


class AskConfig(Section):
    """Whose model plays, and how."""

    endpoint: Paths = ()
    """OpenAI-compatible server that answers the model calls of AGENT.py, or of a run's agent; in an
    evaluation twice for two targets."""
    model: Paths = ()
    """Model on that server, or the folder of a model for AGENT.py; in an evaluation twice for two
    targets."""
    tools: Names | None = None
    """Tools by name or FILE.py:function; default: the run's."""
    temperature: NonNegative | None = None
    """Sampling temperature; 0 is greedy. Default: 0 for one sample of a task, else 1."""
    max_tokens: Count | None = None
    """Maximum tokens per reply. Default: of a server its own; else the run's, 256, or for a custom
    agent 512 (2,000 on a GPU)."""
    seed: CountOrZero = 0
    """Seed of sampling."""


class EvaluationConfig(AskConfig, RunSettings):
    """Which tasks are played, how, and what counts."""

    test: Paths = ()
    """Tasks: JSON, JSONL, CSV or Parquet; may be repeated. Default: the environment's own."""
    environment: str | None = None
    """Environment that the agent acts in: a built-in one, SCHEME:ARGUMENT or FILE.py:NAME;
    default: the run's."""
    environment_kwargs: Arguments = "{}"
    """Arguments of the environment, as a JSON object."""
    samples: Count = 1
    """How often each task is played; more make the result surer."""
    max_turns: Count | None = None
    """Maximum model calls per rollout; default: the run's, else 4, or 20 in an environment, or 16
    for a custom agent."""
    timeout: Positive = 60.0
    """Time limit of a custom agent per rollout, in seconds; time spent in model calls does not
    count."""
    runners: Count | None = None
    """Rollouts that are played at the same time, for a server or a custom agent; default: 64 where
    all models are in this process, else 8."""
    limit: Count | None = None
    """Evaluate the first N tasks only; default: all of a file, 100 of an environment."""
    reward: str | None = None
    """Reward by name or FILE.py:function, which is given `prediction` (the reply) and the task's
    fields it names; default: the run's."""
    success: SuccessRule | None = None
    """What counts as success: a part of the reward that is 1 (`right`), a least reward (`>=0.5`),
    or a least part (`right>=0.5`)."""
    prices: str | None = None
    """Price table, a TOML file; default: TUTELAGE_PRICES, else prices.toml, else the built-in
    table."""
    output: str | None = None
    """Run folder for the results, DIR-1 and DIR-2 for two targets; without it nothing is saved."""

    def of_target(self, index: int) -> EvaluationConfig:
        """The settings of one of two targets."""
        own = {name: getattr(self, name)[index:][:1] for name in ("endpoint", "model")}
        both = {name: value or getattr(self, name)[:1] for name, value in own.items()}
        place = None if self.output is None else f"{self.output}-{index + 1}"
        return self.model_copy(update={**both, "output": place})

    @property
    def sampled_at(self) -> float:
        """The temperature, greedy for one sample where none is given."""
        return float(self.samples > 1) if self.temperature is None else self.temperature
