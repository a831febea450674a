"""Workers, what they are asked and what they answer: the words of pools, routers and executor.

A `Worker` is a model that can do some types of subtask, with its prices and its latency. A
`Subtask` is one subtask as a worker gets it, an `WorkerAnswer` the result of asking once: never an
exception, so that a failure is data with its cost. A `WorkerPool` is where workers really stand:
simulated or behind HTTP (`pools/`). Costs are USD and latencies seconds everywhere in
here. `routing/contract.py` says who chooses a worker, `worker_files.py` reads workers and has the
preset `classic`, `executor.py` runs a plan with them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated, Literal, Protocol

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter

from tutelage.config.fields import Names
from tutelage.errors import ConfigError, counted
from tutelage.orchestration.data.rows import Number, Whole
from tutelage.seeds import SeedTree
from tutelage.types import JSON

ANY = "*"
"""A capability, or a key of `skills`, that means every type."""
DEFAULT_SKILL = 0.5

ErrorKind = Literal[
    "rate_limited",
    "unavailable",
    "network",
    "timeout",
    "truncated",
    "malformed",
    "empty",
    "refused",
    "unauthorized",
    "cancelled",
    "invalid_arguments",
    "raised",
    "bad_result",
]
"""Why a worker gave no usable answer; see `TRANSIENT`."""
TRANSIENT: frozenset[ErrorKind] = frozenset({"rate_limited", "unavailable", "network"})
"""The same worker may answer when it is asked again. After the others another one must."""


Amount = Annotated[Number, Field(ge=0)]
"""USD, or seconds: a finite number of at least 0."""


@dataclass(frozen=True, slots=True)
class Latency:
    """How long a worker takes: lognormal around a median, and a time for each token it writes."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    seconds: Amount
    """Median until it has answered, without `per_token`."""
    spread: Amount = 0.0
    """Standard deviation of the logarithm; 0: always the median."""
    per_token: Amount = 0.0
    """Further seconds for each token of the answer."""


def _seconds(value: object) -> object:
    return {"seconds": value} if isinstance(value, (int, float, str)) else value


@dataclass(frozen=True, slots=True)
class Worker:
    """A model that executes subtasks. Raises `ConfigError` where it has no name or can nothing."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    name: str
    capabilities: Names = (ANY,)
    """The types or kinds of subtask that it can do; `*` and other shell patterns are allowed."""
    price_in: Amount = 0.0
    """USD for a million prompt tokens."""
    price_out: Amount = 0.0
    """USD for a million tokens of the answer."""
    latency: Annotated[Latency, BeforeValidator(_seconds)] = field(
        default_factory=lambda: Latency(0.0)
    )
    """In a file a number of seconds will do."""
    skills: Mapping[str, Annotated[Amount, Field(le=1)]] = field(default_factory=dict[str, float])
    """Share of right answers by type or kind, 0 to 1; `*` for all others."""
    endpoint: str | None = None
    """Base URL of an OpenAI-compatible server, such as `http://127.0.0.1:8000/v1`."""
    model: str | None = None
    """The model's name there; the worker's own when None."""
    key_env: str | None = None
    """Environment variable that holds the server's key; None sends none."""
    concurrency: Annotated[Whole, Field(ge=1)] = 8
    """How many works it does at once."""
    tool: bool = False
    """Whether it is the tool of its name, which runs here: nobody else is asked for that type."""

    def __post_init__(self) -> None:
        if not self.name or not self.capabilities or isinstance(self.capabilities, str):
            raise ConfigError(
                f"worker {self.name!r} has the capabilities {self.capabilities!r}; give each "
                f"worker a name of its own and a tuple of types, or ({ANY!r},) for all"
            )

    def can(self, *labels: str) -> bool:
        """Whether a capability fits one of the labels: a subtask's type and its kind."""
        return any(fnmatchcase(label, known) for known in self.capabilities for label in labels)

    def skill(self, *labels: str) -> float:
        """Share of right answers by the first label that is known, `*`, or `DEFAULT_SKILL`."""
        known = (self.skills[label] for label in (*labels, ANY) if label in self.skills)
        return next(known, DEFAULT_SKILL)

    def cost(self, tokens_in: float, tokens_out: float) -> float:
        """Cost of a number of tokens, in USD."""
        return (tokens_in * self.price_in + tokens_out * self.price_out) / 1e6


@dataclass(frozen=True, slots=True)
class Subtask:
    """One subtask as a worker gets it; the same for every worker and try but for `attempt`."""

    node: int
    """Its place in the plan."""
    type: str
    """The tool of the plan's node."""
    kind: str = ANY
    """What a worker needs for it: `text`, `code`, `vision`, `audio`, `document` or `data`."""
    instruction: str = ""
    """The whole workflow's."""
    description: str = ""
    """This subtask's."""
    prompt: str = ""
    """What the worker is told: instruction, description, arguments with inputs filled in."""
    arguments: Mapping[str, object] = field(default_factory=dict[str, object])
    """Those of the plan's node, with their references."""
    inputs: Mapping[int, str] = field(default_factory=dict[int, str])
    """The outputs of the nodes that it waits for."""
    plain: Container[int] = ()
    """The nodes whose output a tool returned as text."""
    attempt: int = 0
    """Which try at this node it is, from 0."""
    max_tokens: int = 512
    seeds: SeedTree = field(default_factory=lambda: SeedTree(0))
    """Where this node's draws come from: one place for all workers and tries (run, workflow, node);
    a draw of one try adds the worker's name and `attempt`."""

    @property
    def labels(self) -> tuple[str, str]:
        """Type and kind: what capabilities and skills are looked up by."""
        return (self.type, self.kind)


@dataclass(frozen=True, slots=True)
class WorkerError:
    """Why a worker gave no usable answer; `message` is readable text."""

    kind: ErrorKind
    message: str = ""
    retry_after: float | None = None
    """Seconds that the server asks to wait."""

    @property
    def transient(self) -> bool:
        """Whether the same worker may answer when it is asked again."""
        return self.kind in TRANSIENT


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """The result of asking a worker once. An answer without error is no success yet: see
    `verifiers.py`."""

    output: str = ""
    cost: float = 0.0
    """USD."""
    seconds: float = 0.0
    tokens_in: int = 0
    tokens_out: int = 0
    error: WorkerError | None = None
    mock: bool = False
    """Whether no real model answered."""
    correct: bool | None = None
    """What a pool knows that has the truth (simulated); real servers leave None."""
    estimated: bool = False
    """Whether the cost is a bound, because nobody said what was used."""
    arguments: str | None = None
    """What a tool that ran was given, as JSON; None where a model answered."""
    nothing: bool = False
    """Whether a tool returned nothing, for which the output has `null`."""
    plain: bool = False
    """Whether a tool returned the output as text, and not a value that it has as JSON."""

    def to_json(self) -> JSON:
        """What logs hold: cost, seconds, and what is not at its default."""
        said = _ANSWER.dump_python(self, exclude_defaults=True)
        return {"cost": self.cost, "seconds": self.seconds, **said}


_ANSWER = TypeAdapter(WorkerAnswer)


@dataclass(frozen=True, slots=True)
class Verification:
    """What a verifier says of an answer; see `verifiers.py`."""

    passed: bool
    reason: str = ""
    checked: bool = True
    """False where nothing could be compared: the answer was only seen to be there."""
    cost: float = 0.0
    """Cost of the verdict itself, in USD."""


@dataclass(frozen=True, slots=True)
class WorkerEstimate:
    """What one execution may come to."""

    cost: float
    """USD, expected."""
    seconds: float
    bound: float
    """USD that it cannot exceed: what a budget reserves."""


class WorkerPool(Protocol):
    """Where workers stand. Everything that a try can come to is an `WorkerAnswer`.

    `execute` raises only `asyncio.CancelledError`, having freed what it held. With the same
    `Subtask` and worker a pool that draws gives the same answer: draws come from `work.seeds`.
    """

    name: str
    """`simulated`, `openai`, `tools`: what logs are stamped with."""
    workers: tuple[Worker, ...]
    """Who stands in it, in the order of the actions of a router."""
    mock: bool
    """Whether no real model answers."""

    async def execute(self, worker: Worker, work: Subtask) -> WorkerAnswer:
        """Ask one worker once."""
        ...

    def estimate(self, worker: Worker, work: Subtask) -> WorkerEstimate:
        """What asking may come to, before it is done; never looks at the answer."""
        ...

    async def close(self) -> None:
        """Free connections; the pool can be used again after."""
        ...


def check_workers(workers: Sequence[Worker]) -> tuple[Worker, ...]:
    """The workers as a tuple. Raises `ConfigError` when there is none or two share a name."""
    if not workers:
        raise ConfigError("there are no workers; give at least one, such as --workers FILE")
    (name, count), *_ = Counter(worker.name for worker in workers).most_common(1)
    if count > 1:
        raise ConfigError(f"two workers are named {name!r}; rename one")
    return tuple(workers)


def capable_workers(workers: Sequence[Worker], work: Subtask) -> tuple[bool, ...]:
    """Who can do a work at all, by capability. Raises `ConfigError` when nobody can."""
    numbers = tuple(worker.tool and worker.name == work.type for worker in workers)
    if any(numbers):
        return numbers
    numbers = tuple(not worker.tool and worker.can(*work.labels) for worker in workers)
    if not any(numbers):
        known = sorted({label for worker in workers for label in worker.capabilities})
        raise ConfigError(
            f"node {work.node} needs a worker for {work.type!r} (kind {work.kind!r}), and of "
            f"{counted(len(workers), 'worker')} none can: what is known is {known!r}; add a worker "
            f"with that capability, or with {ANY!r}"
        )
    return numbers


def prompt_tokens(text: str) -> int:
    """About how many tokens a text has: four characters each, at least 1."""
    return max(1, math.ceil(len(text) / 4))
