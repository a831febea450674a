"""The session of a rollout for its agent, and the name of the agent that calls a model.

A `RolloutSession` is one live attempt: its identifiers, time limit, models, answer, rewards and
marks. Agents' code knows it as `tutelage.Rollout`; the stored record is `types.Rollout`. The
attempt of running code is in context variables, so that hundreds of rollouts can share a process.
`rollouts/runner.py` creates a session for each attempt and passes it to the agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tutelage.engine.stopwatch import AgentStopwatch
from tutelage.environments import RolloutEnvironment
from tutelage.errors import ConfigError, TutelageError
from tutelage.resources import AGENT, LLM, MAIN_AGENT, POLICY, NamedResources, PromptTemplate
from tutelage.types import ChatClient, Failure, Mode, Task, ToolResult

if TYPE_CHECKING:
    from tutelage.gateway.rewards import PostedRewards


class _TaskFields(dict[str, Any]):
    """Fields of a task. A missing field raises `KeyError` with the names of all fields."""

    def __missing__(self, name: str) -> Any:
        missing = KeyError(name)
        missing.add_note(f"the task has: {', '.join(key for key in self if key != 'id')}")
        raise missing


@dataclass(slots=True)
class RolloutSession:
    """State of a running attempt, as passed to its agent."""

    task_record: Task = field(repr=False)
    client: ChatClient | None = field(default=None, repr=False)
    """Client of the main model without HTTP, in this process."""
    rollout_id: str = ""
    attempt_id: str = ""
    attempt: int = 0
    """0 for the first try, 1 for the first retry."""
    mode: Mode = Mode.VAL
    step: int = 0
    resources: NamedResources = field(default_factory=NamedResources, repr=False)
    limit: float = inf
    """Time limit of the attempt in seconds of its own time, without waiting for models."""
    policy: str | None = POLICY
    """Name of the resource that is the policy."""
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Environment variables of an external agent, with the address of its model."""
    answer: str | None = None
    """The agent's final text, for the record and for a reward function; optional."""
    stop: str = "answer"
    failure: Failure | None = field(default=None, repr=False)
    """Failure of the agent."""
    feedback: str = ""
    """Text feedback of a grader inside the agent; prompt searches show it to their LLM."""
    tool_results: list[ToolResult] = field(default_factory=list[ToolResult], repr=False)
    """Results of tool calls that the agent ran itself, for the record."""
    cancelled: bool = False
    """True if the attempt was stopped; an agent in a thread reads it to end early."""
    emitted: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]], repr=False)
    """Rewards by name, in order of arrival."""
    marked: dict[str, None] = field(default_factory=dict[str, None], repr=False)
    """Names of trained agents; empty trains all."""
    closed: bool = False
    own_time: AgentStopwatch = field(default_factory=AgentStopwatch, repr=False)
    """The clock of `limit`."""
    environment: RolloutEnvironment | None = field(default=None, repr=False)
    """The environment of the rollout, if the run has one."""
    posted: PostedRewards | None = field(default=None, repr=False)
    """Rewards received over HTTP, from programs on any machine."""

    @property
    def task(self) -> dict[str, Any]:
        """Return the fields of the task and its `id` for the agent."""
        fields = self.task_record.fields
        return _TaskFields(fields, id=fields.get("id", self.task_record.id))

    @property
    def remaining(self) -> float:
        """Return the remaining time of the attempt in seconds, at least 0."""
        return max(0.0, self.limit - self.own_time.elapsed())

    @property
    def rewards(self) -> list[tuple[str, Any]]:
        """Return emitted rewards and those received over HTTP; the last one of a name counts."""
        return [*self.emitted, *(() if self.posted is None else self.posted.named_values)]

    @property
    def id(self) -> str:
        """Return the id of the rollout, an alias of `rollout_id`."""
        return self.rollout_id

    def llm(self, name: str = MAIN_AGENT) -> LLM:
        """Return the LLM with the resource name `name`. `main` always is the policy.

        Inside `with rollout.agent("user")` its endpoint and its calls carry that agent's name.
        Raises `ConfigError` for an unknown name.
        """
        found = self.resources.get(name)
        if found is None and name == MAIN_AGENT and self.policy is not None:
            found = self.resources.get(self.policy)
        if not isinstance(found, LLM):
            known = [n for n, v in self.resources.items() if isinstance(v, LLM)]
            raise ConfigError(
                f"unknown LLM {name!r} in this rollout; available: "
                f"{', '.join(map(repr, known)) or 'none'}"
            )
        return with_agent_endpoint(found)

    def prompt(self, name: str | None = None) -> PromptTemplate:
        """Return the prompt template with this name, or the only one without a name. Raises
        `ConfigError`."""
        prompts = {n: v for n, v in self.resources.items() if isinstance(v, PromptTemplate)}
        chosen = [v for n, v in prompts.items() if name in (None, n)]
        if len(chosen) != 1:
            raise ConfigError(
                f"no {'unique' if name is None else repr(name)} prompt template found; "
                f"available: {', '.join(map(repr, prompts)) or 'none'}"
            )
        return chosen[0]

    @contextmanager
    def agent(self, name: str) -> Generator[None]:
        """Context manager that assigns the enclosed model calls to the agent `name`."""
        token = AGENT.set(name)
        try:
            yield
        finally:
            AGENT.reset(token)

    def mark_agent_as_trainable(self, agent: str) -> None:
        """Restrict training to the calls of this agent and of other marked agents.

        `agent` is a name of `rollout.agent(...)`, or the one that an instrumented framework gives
        its agent in its spans (see `init`). It counts for earlier calls too. Raises `TutelageError`
        after the end of the attempt.
        """
        self._check_open(f"agent {agent!r} cannot be marked")
        self.marked[agent] = None

    def emit_reward(self, value: Any, name: str = "reward") -> None:
        """Report a reward, or a dict of named rewards. The last reward of a name counts."""
        self._check_open(f"the reward {value!r} is too late")
        named: Mapping[Any, Any] = value if isinstance(value, Mapping) else {name: value}
        self.emitted += [(str(key), part) for key, part in named.items()]

    async def posted_reward(self) -> float:
        """Wait until a program has posted the reward of this rollout to `TUTELAGE_REWARD_URL` in
        `env`, and return it. Agents use this to delegate a rollout to another machine.

        The time limit continues, since the program's time is the agent's own. Raises `ConfigError`
        if no gateway listens for this rollout, or in an isolated process.
        """
        if self.posted is None:
            raise ConfigError(
                "rewards cannot be posted in this rollout: this requires an LLM resource for the "
                "gateway and isolation='none'"
            )
        return await asyncio.shield(asyncio.wrap_future(self.posted.final))

    def _check_open(self, text: str) -> None:
        """Raise `TutelageError` if the attempt has ended."""
        if self.closed:
            raise TutelageError(f"attempt {self.attempt_id} of {self.rollout_id} has ended: {text}")


Rollout = RolloutSession
"""The public name of the class, `tutelage.Rollout`."""

_CURRENT: ContextVar[RolloutSession | None] = ContextVar("tutelage_rollout", default=None)


def current_rollout() -> RolloutSession | None:
    """Return the rollout of the running code, or None outside of rollouts."""
    return _CURRENT.get()


def enter_rollout(rollout: RolloutSession) -> None:
    """Set the current rollout of this `contextvars` context."""
    _CURRENT.set(rollout)
    AGENT.set(MAIN_AGENT)


def emit_reward(value: Any, name: str = "reward") -> None:
    """Report a reward for the current rollout; see `Rollout.emit_reward`.

    Raises `ConfigError` outside of a rollout.
    """
    rollout = current_rollout()
    if rollout is None:
        raise ConfigError(
            "emit_reward was called outside of a rollout: call it in an agent during a rollout, or "
            "return the reward"
        )
    rollout.emit_reward(value, name)


def init() -> None:
    """Record the OpenTelemetry spans of agent frameworks with their rollouts.

    Adds Tutelage to the process's OpenTelemetry provider, and sets one if there is none. Training
    works without it; only the spans of other libraries are then missing. May be called repeatedly.
    """
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    from tutelage.tracing import instrument

    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        provider = TracerProvider(shutdown_on_exit=False)
        trace.set_tracer_provider(provider)
    if not vars(provider).get("_tutelage"):
        vars(provider)["_tutelage"] = True
        instrument(provider)


def with_agent_endpoint(llm: LLM) -> LLM:
    """Return the LLM with the name of the calling agent in the path of its endpoint:
    `.../attempt/A/v1` becomes `.../attempt/A/agent/NAME/v1`."""
    agent = AGENT.get()
    if agent == MAIN_AGENT or llm.endpoint is None:
        return llm
    head, slash, version = llm.endpoint.rstrip("/").rpartition("/")
    return replace(llm, endpoint=f"{head}/agent/{quote(agent, safe='')}{slash}{version}")
