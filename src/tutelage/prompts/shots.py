"""Few-shot demonstrations as a component: exact training rollouts that the agent is shown.

At most four, taken from rollouts that were exact, and never the task that is being played: that one
is left out when the agent is given them. As a component they are JSON, so that a search can take
some away; as a text they are what the agent reads.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, cast

from tutelage.bounded import parse_json
from tutelage.errors import ConfigError

DEMONSTRATIONS = "demonstrations"
"""The resource, and the component, that holds them."""
MOST = 4
LENGTH = 2000
"""Characters of one trace that are kept."""


@dataclass(frozen=True, slots=True)
class Shot:
    """One solved task."""

    task: str
    question: str
    trace: str


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """Some shots, in order. Empty ones are false."""

    shots: tuple[Shot, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.shots)

    def __str__(self) -> str:
        """What the agent reads."""
        lines = [f"Task: {s.question}\n{s.trace}" for s in self.shots]
        return "Examples of tasks solved well:\n\n" + "\n\n".join(lines) if lines else ""

    def without(self, task: str) -> Demonstrations:
        """All but those of a task: what an agent that plays it may see."""
        return Demonstrations(tuple(s for s in self.shots if s.task != task))

    def text(self) -> str:
        """The component: JSON, or nothing."""
        if not self.shots:
            return ""
        return json.dumps([asdict(s) for s in self.shots], ensure_ascii=False, sort_keys=True)

    @staticmethod
    def read(text: str) -> Demonstrations:
        """Back from the component. Raises `ConfigError`."""
        if not text.strip():
            return Demonstrations()
        try:
            rows = cast("list[dict[str, Any]]", parse_json(text))
            made = [Shot(str(r["task"]), str(r["question"]), str(r["trace"])) for r in rows]
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"invalid demonstrations: {error}") from error
        return Demonstrations(tuple(made[:MOST]))
