"""What a prompt search sees of the world: an agent to play, an optimiser LLM to ask, and no more.

Both are plain async functions, so that a search knows nothing of HTTP, engines or training. An
`Episode` is one played task, an `OptimiserReply` one answer of the optimiser. `evaluator.py` is
the only caller of `Play`, `optimiser.py` the only caller of `Ask`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tutelage.engine.usage import Usage
from tutelage.errors import ConfigError
from tutelage.prompts.budget import Limits, WorstCase
from tutelage.tasks.overlap import content
from tutelage.types import JSON, FailureCause, Message, Mode, Task

Components = Mapping[str, str]
"""The texts of an agent that a search may rewrite, by name: prompts, tool descriptions."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One task, played once. A reward of None counts 0; `failure` gives the reason there is
    none."""

    reward: float | None
    exact: bool | None = False
    """Whether the answer was right, beside any partial credit in `reward`; None where a graded
    reward does not say."""
    feedback: str = ""
    """What the grader has to say about it, in words."""
    trace: str = ""
    """Tool calls, their results and the answer, as text."""
    failure: FailureCause | None = None
    usage: Usage = field(default_factory=Usage)

    @property
    def lost(self) -> bool:
        """Whether infrastructure failed, so that this is no evidence about the prompt."""
        return self.failure is not None and self.failure.infrastructure

    @property
    def value(self) -> float:
        """The reward as it counts: 0 if there is none."""
        return 0.0 if self.reward is None else self.reward

    @staticmethod
    def from_dict(data: JSON) -> Episode:
        """Back from the journal, where `asdict` of it is."""
        failure = data["failure"] and FailureCause(data["failure"])
        read: JSON = data | {"failure": failure, "usage": Usage(**data["usage"])}
        return Episode(**read)


@dataclass(frozen=True, slots=True)
class RolloutSlot:
    """Which rollout of the search a `Play` is asked for."""

    candidate: str
    split: Mode
    sample: int
    key: str
    """Names the rollout's draws: components, task and sample, but no fingerprint.

    So a repeat of the search draws the same at another address of the same model.
    """


@dataclass(frozen=True, slots=True)
class Splits:
    """Training tasks feed the optimiser, validation selects, the test is used only at the end."""

    train: Sequence[Task]
    val: Sequence[Task]
    test: Sequence[Task]

    def __post_init__(self) -> None:
        for name in ("train", "val", "test"):
            if not getattr(self, name):
                raise ConfigError(f"the {name} split is empty; add at least one task")
        self.check_held_out(None)

    def check_held_out(self, fields: Collection[str] | None) -> None:
        """Refuse test tasks that stand in train or val too, by input and `fields` (all for None):
        no verdict can rest on them. Raises `ConfigError`."""
        known = {content(task, fields) for task in (*self.train, *self.val)}
        shared = sum(content(task, fields) in known for task in self.test)
        if shared:
            raise ConfigError(
                f"{shared} of {len(self.test)} test tasks are also in train or val, so a held-out "
                "test on them is invalid; pass --test FILE (test_dataset=) with other tasks, or "
                "only one file, which is split in three"
            )


@dataclass(frozen=True, slots=True)
class Settings:
    """How a search runs. `fingerprint` identifies agent, grader, model and sampling."""

    fingerprint: str
    limits: Limits = field(default_factory=Limits)
    worst: WorstCase = field(default_factory=WorstCase)
    seed: int = 0
    runners: int = 8
    failure_reward: float = 0.0
    """What a rollout counts that failed."""
    samples: int = 1


@dataclass(frozen=True, slots=True)
class OptimiserReply:
    """One answer of the optimiser LLM."""

    text: str
    usage: Usage = field(default_factory=Usage)


Play = Callable[[Components, Task, RolloutSlot], Awaitable[Episode]]
"""Runs the agent with these components on one task; the slot says for which candidate, and which
repeat."""

Ask = Callable[[str, Sequence[Message], str], Awaitable[OptimiserReply]]
"""Asks the optimiser LLM: the role, `gradient` or `edit`, its messages, and the request's name."""
