"""Options of `tutelage eval` and `tutelage ask`; `targets.py` and `preparation.py` apply them."""

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
"""Label of the rollouts of an evaluation."""


class AskConfig(Section):
    """Model and sampling options of an agent."""

    endpoint: Paths = ()
    """OpenAI-compatible server for the model calls of AGENT.py, or of a run's agent; in an
    evaluation of two targets once for each."""
    model: Paths = ()
    """Model on that server, or the folder of a model for AGENT.py; in an evaluation of two targets
    once for each."""
    tools: Names | None = None
    """Tools by name or FILE.py:function; default: the run's."""
    temperature: NonNegative | None = None
    """Sampling temperature; 0 is greedy. Default: 0 for one sample per task, else 1."""
    max_tokens: Count | None = None
    """Maximum tokens per reply. Default: the server's own; else the run's, 256, or for a custom
    agent 512 (2,000 on a GPU)."""
    seed: CountOrZero = 0
    """Random seed of sampling."""


class EvaluationConfig(AskConfig, RunSettings):
    """Tasks, grading and limits of an evaluation."""

    test: Paths = ()
    """Tasks: JSON, JSONL, CSV or Parquet; may be repeated. Default: the environment's own."""
    environment: str | None = None
    """Environment that the agent acts in: a built-in one, SCHEME:ARGUMENT or FILE.py:NAME;
    default: the run's."""
    environment_kwargs: Arguments = "{}"
    """Arguments of the environment, as a JSON object."""
    samples: Count = 1
    """Rollouts per task; more give a narrower interval."""
    max_turns: Count | None = None
    """Maximum model calls per rollout; default: the run's, else 4, or 20 in an environment, or 16
    for a custom agent."""
    timeout: Positive = 60.0
    """Time limit of a custom agent per rollout, in seconds; time spent in model calls does not
    count."""
    runners: Count | None = None
    """Maximum concurrent rollouts, for a server or a custom agent; default: 64 if all models are in
    this process, else 8."""
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

    def select_target(self, index: int) -> EvaluationConfig:
        """Return the settings for the first or the second of two targets."""
        own = {name: getattr(self, name)[index:][:1] for name in ("endpoint", "model")}
        both = {name: value or getattr(self, name)[:1] for name, value in own.items()}
        place = None if self.output is None else f"{self.output}-{index + 1}"
        return self.model_copy(update={**both, "output": place})

    @property
    def sampling_temperature(self) -> float:
        """Sampling temperature; by default 0 for one sample per task, otherwise 1."""
        return float(self.samples > 1) if self.temperature is None else self.temperature
