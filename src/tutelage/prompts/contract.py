"""The interfaces of a prompt search: an agent to play and an optimiser LLM to ask.

Both are async functions, so that a search is independent of HTTP, engines and training. An
`Episode` is one played task, an `OptimiserReply` one answer of the optimiser. `evaluator.py` is the
only caller of `Play`, `optimiser.py` the only caller of `Ask`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tutelage.engine.usage import Usage
from tutelage.errors import ConfigError
from tutelage.prompts.budget import Limits, WorstCase
from tutelage.tasks.overlap import hash_task
from tutelage.types import JSON, FailureCause, Message, Mode, Task

Components = Mapping[str, str]
"""The texts of an agent that a search may rewrite, by name: prompts, tool descriptions."""


@dataclass(frozen=True, slots=True)
class Episode:
    """Result of running the agent on one task. A missing reward counts as 0 (see `failure`)."""

    reward: float | None
    exact: bool | None = False
    """True if the answer was right, apart from partial credit in `reward`; None if a graded reward
    does not define it."""
    feedback: str = ""
    """The grader's feedback as text."""
    trace: str = ""
    """Tool calls, their results and the answer, as text."""
    failure: FailureCause | None = None
    usage: Usage = field(default_factory=Usage)

    @property
    def lost(self) -> bool:
        """Return True if infrastructure failed, so that the reward is not meaningful."""
        return self.failure is not None and self.failure.infrastructure

    @property
    def value(self) -> float:
        """Return the reward, or 0 if it is missing."""
        return 0.0 if self.reward is None else self.reward

    @staticmethod
    def from_dict(data: JSON) -> Episode:
        """Create an episode from its JSON object in the journal."""
        failure = data["failure"] and FailureCause(data["failure"])
        read: JSON = data | {"failure": failure, "usage": Usage(**data["usage"])}
        return Episode(**read)


@dataclass(frozen=True, slots=True)
class RolloutSlot:
    """Candidate, split and sample number of a rollout."""

    candidate: str
    split: Mode
    sample: int
    key: str
    """Address of the rollout's draws: components, task and sample, without a fingerprint.

    So a repeated search has the same draws at another address of the same model.
    """


@dataclass(frozen=True, slots=True)
class Splits:
    """Tasks for the optimiser (train), for candidate selection (val) and for the final test."""

    train: Sequence[Task]
    val: Sequence[Task]
    test: Sequence[Task]

    def __post_init__(self) -> None:
        for name in ("train", "val", "test"):
            if not getattr(self, name):
                raise ConfigError(f"the {name} split is empty; add at least one task")
        self.check_held_out(None)

    def check_held_out(self, fields: Collection[str] | None) -> None:
        """Raise `ConfigError` if test tasks are also in train or val; tasks are compared by input
        and `fields` (None for all fields)."""
        known = {hash_task(task, fields) for task in (*self.train, *self.val)}
        shared = sum(hash_task(task, fields) in known for task in self.test)
        if shared:
            raise ConfigError(
                f"{shared} of {len(self.test)} test tasks are also in train or val, so a held-out "
                "test on them is invalid; pass --test FILE (test_dataset=) with other tasks, or "
                "only one file, which is split in three"
            )


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a search. `fingerprint` identifies agent, grader, model and sampling."""

    fingerprint: str
    limits: Limits = field(default_factory=Limits)
    worst: WorstCase = field(default_factory=WorstCase)
    seed: int = 0
    runners: int = 8
    failure_reward: float = 0.0
    """Reward of a failed rollout."""
    samples: int = 1


@dataclass(frozen=True, slots=True)
class OptimiserReply:
    """Reply of the optimiser LLM."""

    text: str
    usage: Usage = field(default_factory=Usage)


Play = Callable[[Components, Task, RolloutSlot], Awaitable[Episode]]
"""Function that plays the agent with these components on one task, for a slot."""

Ask = Callable[[str, Sequence[Message], str], Awaitable[OptimiserReply]]
"""Function that asks the optimiser LLM: its arguments are the role (`gradient` or `edit`), the
messages, and the key of the request."""
