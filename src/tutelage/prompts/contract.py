"""What a prompt search sees of the world: an agent to play, an optimiser LLM to ask, and no more.

Both are plain async functions, so that a search knows nothing of HTTP, engines or training. An
`Episode` is one played task; a `Reply` is one answer of the optimiser. `evaluator.py` is the only
caller of `Play`, `optimiser.py` the only caller of `Ask`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol

from tutelage.engine.usage import Usage
from tutelage.types import JSON, FailureCause, Message, Mode, Task

Components = Mapping[str, str]
"""The texts of an agent that a search may rewrite, by name: prompts, tool descriptions."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One task, played once. A reward of None counts 0; `failure` says why there is none."""

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
    blame: tuple[str, ...] = ()
    """Components in force where it went wrong, the likeliest first; empty: nobody knows."""

    @property
    def lost(self) -> bool:
        """Whether infrastructure failed, so that this is no evidence about the prompt."""
        return self.failure is not None and self.failure.infrastructure

    @property
    def value(self) -> float:
        """The reward as it counts: 0 where there is none."""
        return 0.0 if self.reward is None else self.reward

    def to_dict(self) -> JSON:
        """As JSON, for the journal."""
        return {
            "reward": self.reward,
            "exact": self.exact,
            "feedback": self.feedback,
            "trace": self.trace,
            "failure": self.failure,
            "usage": asdict(self.usage),
            "blame": list(self.blame),
        }

    @staticmethod
    def from_dict(data: JSON) -> Episode:
        """Back from JSON."""
        cause = data["failure"]
        return Episode(
            reward=data["reward"],
            exact=data["exact"],
            feedback=data["feedback"],
            trace=data["trace"],
            failure=None if cause is None else FailureCause(cause),
            usage=Usage(**data["usage"]),
            blame=tuple(data.get("blame", ())),
        )


@dataclass(frozen=True, slots=True)
class Slot:
    """Which rollout of the search a `Play` is asked for."""

    candidate: str
    split: Mode
    sample: int
    key: str
    """Names the rollout's draws: components, task and sample, but no fingerprint.

    So a repeat of the search draws the same at another address of the same model.
    """


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of the optimiser LLM."""

    text: str
    usage: Usage = field(default_factory=Usage)


class Play(Protocol):
    """Runs the agent with these components on one task; `slot` says for whom, and which repeat."""

    async def __call__(self, components: Components, task: Task, slot: Slot) -> Episode: ...


class Ask(Protocol):
    """Asks the optimiser LLM. `role` is `gradient` or `edit`; `step_key` names the request."""

    async def __call__(self, role: str, messages: Sequence[Message], step_key: str) -> Reply: ...
