"""Workers, subtasks and worker answers: the types shared by pools, routers and the executor.

A `Worker` is a model that can do some types of subtask, with its prices and its latency. A
`Subtask` is the input of a worker. A `WorkerAnswer` is the result of one worker call; failures are
returned as data with their cost and never raised. A `WorkerPool` runs the workers, simulated or
over HTTP (`pools/`). Costs are in USD and latencies in seconds throughout this module. See
`routing/contract.py` for the choice of workers, `worker_files.py` for workers from files and the
preset `classic`, and `executor.py` for running a plan.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated, Literal, Protocol

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter

from tutelage.config.fields import Names
from tutelage.errors import ConfigError, pluralize
from tutelage.orchestration.data.rows import Number, Whole
from tutelage.seeds import SeedTree
from tutelage.types import JSON

ANY = "*"
"""Wildcard for every type, as a capability or a key of `skills`."""
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
"""Reason why a worker returned no usable answer; see `TRANSIENT`."""
TRANSIENT: frozenset[ErrorKind] = frozenset({"rate_limited", "unavailable", "network"})
"""Errors after which the same worker can be retried; other errors need another worker."""
UNSERVED: frozenset[ErrorKind] = frozenset({*TRANSIENT, "unauthorized"})
"""Errors of a server that did not serve the request, so the worker's skill stays unknown."""


Amount = Annotated[Number, Field(ge=0)]
"""Amount in USD or seconds: a finite number >= 0."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Latency of a worker: lognormal, plus a constant time per output token."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    seconds: Amount
    """Median response time, without `per_token`."""
    spread: Amount = 0.0
    """Standard deviation of the logarithm of the latency; 0 means that it is constant."""
    per_token: Amount = 0.0
    """Additional seconds per output token."""


def _parse_latency(value: object) -> object:
    return {"seconds": value} if isinstance(value, (int, float, str)) else value


@dataclass(frozen=True, slots=True)
class Worker:
    """A model that executes subtasks. Raises `ConfigError` if name or capabilities are empty."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    name: str
    capabilities: Names = (ANY,)
    """Types or kinds of subtask that the worker can do; `*` and other shell patterns work."""
    price_in: Amount = 0.0
    """USD per million input tokens."""
    price_out: Amount = 0.0
    """USD per million output tokens."""
    latency: Annotated[Latency, BeforeValidator(_parse_latency)] = field(
        default_factory=lambda: Latency(0.0)
    )
    """Latency; files may give a plain number of seconds."""
    skills: Mapping[str, Annotated[Amount, Field(le=1)]] = field(default_factory=dict[str, float])
    """Accuracy (0 to 1) by type or kind; `*` applies to all others."""
    endpoint: str | None = None
    """Base URL of an OpenAI-compatible server, such as `http://127.0.0.1:8000/v1`."""
    model: str | None = None
    """Model name on the server; the worker's name if None."""
    key_env: str | None = None
    """Environment variable with the server's API key; None sends no key."""
    concurrency: Annotated[Whole, Field(ge=1)] = 8
    """Maximum number of concurrent requests."""
    tool: bool = False
    """True if the worker is a local tool; subtasks with its name go to this worker only."""

    def __post_init__(self) -> None:
        if not self.name or not self.capabilities or isinstance(self.capabilities, str):
            raise ConfigError(
                f"worker {self.name!r} has capabilities {self.capabilities!r}; each worker needs a "
                f"unique name and a tuple of types, or ({ANY!r},) for all"
            )

    def supports(self, *labels: str) -> bool:
        """Return True if a capability matches one of the labels (type and kind of a subtask)."""
        return any(fnmatchcase(label, known) for known in self.capabilities for label in labels)

    def skill(self, *labels: str) -> float:
        """Return the accuracy for the first label in `skills`, else for `*`, else
        `DEFAULT_SKILL`."""
        known = (self.skills[label] for label in (*labels, ANY) if label in self.skills)
        return next(known, DEFAULT_SKILL)

    def cost(self, tokens_in: float, tokens_out: float) -> float:
        """Return the cost of the given numbers of tokens, in USD."""
        return (tokens_in * self.price_in + tokens_out * self.price_out) / 1e6


@dataclass(frozen=True, slots=True)
class Subtask:
    """Input of a worker for one subtask. Only `attempt` differs between workers and retries."""

    node: int
    """Index of the node in the plan."""
    type: str
    """Name of the node's tool."""
    kind: str = ANY
    """Required kind of worker: `text`, `code`, `vision`, `audio`, `document` or `data`."""
    instruction: str = ""
    """Instruction of the whole workflow."""
    prompt: str = ""
    """Prompt for the worker: instruction, description, and arguments with the inputs filled in."""
    arguments: Mapping[str, object] = field(default_factory=dict[str, object])
    """Arguments of the plan's node, with unresolved references."""
    inputs: Mapping[int, str] = field(default_factory=dict[int, str])
    """Outputs of the parent nodes, by node index."""
    attempt: int = 0
    """Number of earlier requests for this node."""
    max_tokens: int = 512
    seeds: SeedTree = field(default_factory=lambda: SeedTree(0))
    """Seeds of this node's random draws, by run, workflow and node. They are the same for all
    workers and attempts; draws of a single attempt add the worker's name and `attempt`."""

    @property
    def labels(self) -> tuple[str, str]:
        """Type and kind of the subtask, used to look up capabilities and skills."""
        return (self.type, self.kind)


@dataclass(frozen=True, slots=True)
class WorkerError:
    """Reason why a worker returned no usable answer, with a readable `message`."""

    kind: ErrorKind
    message: str = ""
    retry_after: float | None = None
    """Seconds to wait before a retry, as requested by the server; None if it gave no value."""

    @property
    def transient(self) -> bool:
        """True if the request can be retried with the same worker."""
        return self.kind in TRANSIENT


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """Result of one worker call. Even without an error it may be wrong; see `verifiers.py`."""

    output: str = ""
    cost: float = 0.0
    """USD."""
    seconds: float = 0.0
    tokens_in: int = 0
    tokens_out: int = 0
    error: WorkerError | None = None
    mock: bool = False
    """True if no real model was called."""
    correct: bool | None = None
    """Ground truth, known only to simulated pools; None for real servers."""
    estimated: bool = False
    """True if `cost` is an upper bound because the actual usage is unknown."""
    arguments: str | None = None
    """Arguments of a tool call as JSON; None if a model answered."""

    def to_json(self) -> JSON:
        """Convert the answer to JSON: cost, seconds and all fields with a non-default value."""
        said = _ANSWER.dump_python(self, exclude_defaults=True)
        return {"cost": self.cost, "seconds": self.seconds, **said}


_ANSWER = TypeAdapter(WorkerAnswer)


@dataclass(frozen=True, slots=True)
class Verification:
    """Verdict of a verifier on an answer; see `verifiers.py`."""

    passed: bool
    reason: str = ""
    checked: bool = True
    """False if the content was not checked, only that the answer is not empty."""
    cost: float = 0.0
    """Cost of the verification itself, in USD."""


@dataclass(frozen=True, slots=True)
class WorkerEstimate:
    """Expected cost and latency of one worker call, and an upper bound of its cost."""

    cost: float
    """Expected cost in USD."""
    seconds: float
    bound: float
    """Upper bound of the cost in USD, which the budget reserves."""


class WorkerPool(Protocol):
    """Interface to a set of workers. All failures are returned as a `WorkerAnswer`.

    `execute` raises only `asyncio.CancelledError`, after it has released its resources. Pools that
    draw random answers return the same answer for the same `Subtask` and worker, because all draws
    come from `work.seeds`.
    """

    name: str
    """`simulated`, `openai` or `tools`, as written to logs."""
    workers: tuple[Worker, ...]
    """Workers, in the order of the router's actions."""
    mock: bool
    """True if no real model is called."""

    async def execute(self, worker: Worker, work: Subtask) -> WorkerAnswer:
        """Send one request to a worker."""
        ...

    def estimate(self, worker: Worker, work: Subtask) -> WorkerEstimate:
        """Estimate the cost and latency of a request before the answer is known."""
        ...

    async def close(self) -> None:
        """Close connections; the pool can be used again afterwards."""
        ...


def check_workers(workers: Sequence[Worker]) -> tuple[Worker, ...]:
    """Return the workers as a tuple. Raises `ConfigError` if it is empty or names repeat."""
    if not workers:
        raise ConfigError("no workers; pass at least one, for example with --workers FILE")
    (name, count), *_ = Counter(worker.name for worker in workers).most_common(1)
    if count > 1:
        raise ConfigError(f"two workers are named {name!r}; rename one")
    return tuple(workers)


def capable_workers(workers: Sequence[Worker], work: Subtask) -> tuple[bool, ...]:
    """Return a mask of the workers that can do a subtask. Raises `ConfigError` if none can."""
    numbers = tuple(worker.tool and worker.name == work.type for worker in workers)
    if any(numbers):
        return numbers
    numbers = tuple(not worker.tool and worker.supports(*work.labels) for worker in workers)
    if not any(numbers):
        known = sorted({label for worker in workers for label in worker.capabilities})
        raise ConfigError(
            f"node {work.node} needs a worker for {work.type!r} (kind {work.kind!r}), but none of "
            f"{pluralize(len(workers), 'worker')} has it among its capabilities {known!r}; add a "
            f"worker with that capability, or with {ANY!r}"
        )
    return numbers


def prompt_tokens(text: str) -> int:
    """Estimate the number of tokens in a text as one per four characters, at least 1."""
    return max(1, math.ceil(len(text) / 4))
