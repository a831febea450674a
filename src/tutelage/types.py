"""The records that layers share, as small frozen dataclasses, and the protocols between layers.

A `Task` is run as `Rollout`s; a rollout has `Attempt`s; an attempt makes `Call`s to a model; a call
keeps the exact token ids sent and sampled. Training rows are made of calls in `rollouts/rows.py`;
records are stored by `store/`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, Required, TypedDict, cast

JSON = dict[str, Any]
INPUT_FIELDS = ("question", "prompt", "instruction", "problem", "messages")
"""Fields that may hold the agent's input; a task uses the first one that it has."""
EXPECTED_FIELDS = ("expected", "expected_answer", "answer", "answers", "solution", "target")
"""Fields that may hold the expected answer of a task."""
EXACT = "exact"
"""Reward part by which a grader states that an answer is right."""
SUCCESS = "success"
"""Name in an environment's info that states if the rollout succeeded."""
THOUGHTS = ("reasoning_content", "reasoning")
"""Fields of a message that hold reasoning apart from its content."""


class Mode(StrEnum):
    """Purpose of a rollout; only `TRAIN` rollouts are used in a loss."""

    TRAIN = "train"
    VAL = "val"
    TEST = "test"


class StopReason(StrEnum):
    """Reason for the end of sampling, named as in the OpenAI API."""

    STOP = "stop"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    """Stopped by a remote server's filter."""
    CANCELLED = "cancelled"


class RolloutStatus(StrEnum):
    """Status of a rollout or attempt; the last three are final."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Return True if the status is final."""
        return self in (RolloutStatus.SUCCEEDED, RolloutStatus.FAILED, RolloutStatus.CANCELLED)


class FailureCause(StrEnum):
    """Cause of a failed attempt. Infrastructure failures are excluded from baselines and losses."""

    TIMEOUT = "timeout"
    AGENT_ERROR = "agent_error"
    TOOL_ERROR = "tool_error"
    NO_CALLS = "no_calls"
    """The agent ended without a model call, in training."""
    REWARD_ERROR = "reward_error"
    """The reward is not a number, or cannot grade this task."""
    ANSWER_ERROR = "answer_error"
    """The grader raised an exception on the model's output, which counts as wrong."""
    GRADER_ERROR = "grader_error"
    """The grader could not run."""
    REWARD_TIMEOUT = "reward_timeout"
    """The reward did not return in time."""
    ENGINE_ERROR = "engine_error"
    ENVIRONMENT_ERROR = "environment_error"
    """The environment raised, hung, died, or returned an invalid value."""
    CONTEXT_OVERFLOW = "context_overflow"
    CANCELLED = "cancelled"

    @property
    def infrastructure(self) -> bool:
        """Return True if the failure does not count against the agent."""
        lost = ("engine_error", "environment_error", "reward_error", "grader_error")
        return self in (*lost, "reward_timeout", "cancelled")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call in an assistant message; `arguments` is JSON text, unchanged from the model."""

    id: str
    name: str
    arguments: str
    custom: bool | None = None
    """True for a remote server's call of a tool without a schema; `arguments` are then any text."""

    def to_dict(self) -> JSON:
        """Convert to the OpenAI format."""
        kind, said = ("custom", "input") if self.custom else ("function", "arguments")
        return {"id": self.id, "type": kind, kind: {"name": self.name, said: self.arguments}}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> ToolCall:
        """Create a tool call from the OpenAI format."""
        kind, said = ("custom", "input") if data.get("custom") else ("function", "arguments")
        name, given = data[kind]["name"], data[kind][said]
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        return ToolCall(str(data.get("id") or ""), name, text, kind == "custom" or None)


def join_text_parts(content: Any) -> Any:
    """Join the texts of a message content of text parts; return any other content unchanged."""
    try:
        texts = [part["text"] for part in content if part["type"] == "text"]
        return "".join(texts) if texts and len(texts) == len(content) else content
    except (KeyError, TypeError):
        return content


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message, as in the OpenAI API."""

    role: str
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    extra: Mapping[str, Any] = field(default_factory=lambda: {}, compare=False)
    """Other fields of the message in an API or a row, recorded and never in a prompt.
    Demonstrations read reasoning (`THOUGHTS`) and `weight` here."""

    def to_dict(self, *, extra: bool = False) -> JSON:
        """Convert to the OpenAI chat format without empty fields; `extra=True` includes the extra
        fields."""
        out: JSON = {"role": self.role, "content": self.content, **(self.extra if extra else {})}
        if self.tool_calls:
            out["tool_calls"] = [call.to_dict() for call in self.tool_calls]
        more = {"tool_call_id": self.tool_call_id, "name": self.name}
        return out | {name: value for name, value in more.items() if value is not None}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Message:
        """Create a message from the OpenAI chat format."""
        # Templates know a developer's message as a system message.
        role = "system" if data["role"] == "developer" else str(data["role"])
        calls = cast("Sequence[JSON]", data.get("tool_calls") or ())
        made, answered = tuple(map(ToolCall.from_dict, calls)), data.get("tool_call_id")
        return Message(role, join_text_parts(data.get("content")), made, answered, data.get("name"))


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """Name, description and JSON schema of a tool, as in a model's prompt."""

    name: str
    description: str
    parameters: JSON

    def to_dict(self) -> JSON:
        """Convert to a function tool in the OpenAI format."""
        told = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": told}


UNBOUNDED = 1 << 20
"""`max_tokens` without a limit: a reply ends by itself, or with the context."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of one call. `temperature` 0 is greedy; `top_p` 1 and `top_k` 0 are
    off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    max_thinking_tokens: int | None = None
    """Tokens after which a thought is closed, if below the policy's limit; 0 allows no thought."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """Constraint on a reply. `tool_choice` is `auto`, `none`, `required` or the name of the tool to
    call; `json_schema` requires a JSON document of that schema as content, `choices` one of these
    texts."""

    tool_choice: str = "auto"
    parallel_tool_calls: bool = True
    json_schema: JSON | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sampled:
    """Output of an engine for one request.

    `token_ids` are the sampled ids, including a sampled end-of-turn token. `logprobs[i]` is the
    log-probability of `token_ids[i]` under log-softmax(logits / temperature) over the full
    vocabulary: the distribution that the trainer recomputes. `raw_logprobs` is the same at
    temperature 1. Both are natural logarithms, computed from the logits that the token was drawn
    from. If a grammar constrained the request, `allowed[i]` is the number of tokens that it allowed
    for `token_ids[i]`, and both log-probabilities are over the allowed tokens (0 if there was only
    one). Tokens that close a thought at its limit have 1 too, and unconstrained tokens of the same
    reply have 0; without any constraint or forced token, `allowed` is empty.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    raw_logprobs: tuple[float, ...]
    stop_reason: StopReason
    policy_version: int
    allowed: tuple[int, ...] = ()
    top: tuple[tuple[tuple[int, float], ...], ...] = ()
    """The most probable tokens at each position, at temperature 1, if the request asks for them."""
    versions: tuple[tuple[int, int], ...] | None = None
    """Spans (version, end) of tokens if weights changed during sampling, in order."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request to a model during an attempt, with the exact tokens sent and sampled.

    The prompt is `prompt_ids`, as the engine received it; `reply` is decoded from the sampled ids,
    and `parse_errors` are the parts that could not be parsed as a tool call.
    """

    id: str
    agent: str
    index: int
    messages: tuple[Message, ...]
    prompt_ids: tuple[int, ...]
    sampled: Sampled
    reply: Message
    sampling: Sampling
    parse_errors: tuple[str, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    """The tools shown to the model."""
    constraint: Constraint | None = None
    started: float = field(default=0.0, compare=False)
    """Time of sending, in seconds since 1970; 0.0 if unknown. Ignored in comparisons."""
    seconds: float = field(default=0.0, compare=False)
    """Seconds from sending to the complete reply. Ignored in comparisons."""
    policy: str | None = "main"
    """The policy that this call trains; None if it is only recorded."""
    reward: float | None = None
    """Reward of the turn that this call began; None if its environment has no reward per turn."""
    info: JSON | None = None
    """The environment's info of the turn; None without an environment."""
    thought: str = field(default="", compare=False)
    """The thought at the beginning of the content of `reply`, with its tags. Not stored."""
    model: str = field(default="", compare=False)
    """The model named in a request to a remote server; empty for a policy of this process."""
    answered_by: str = field(default="", compare=False)
    """The model name in the remote server's reply."""
    usage: tuple[int, int] | None = field(default=None, compare=False)
    """Prompt and completion tokens counted by the server."""

    @property
    def answer(self) -> str:
        """Return the content of `reply` without reasoning."""
        return (self.reply.content or "")[len(self.thought) :]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one tool call: the text for the model, or an error."""

    call_id: str
    name: str
    arguments: str
    text: str
    error: str | None = None
    """None, or one of: unknown_tool, invalid_arguments, raised, timeout, bad_result."""
    seconds: float = 0.0
    started: float = field(default=0.0, compare=False)
    """Start of the call, in seconds since 1970; 0.0 if unknown. Ignored in comparisons."""


@dataclass(frozen=True, slots=True)
class Reward:
    """A finite reward and its named components."""

    value: float
    parts: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Task:
    """One row of a dataset: an id and fields, one of which is the agent's input."""

    id: str
    fields: Mapping[str, Any]
    place: str = field(default="", compare=False, repr=False)
    """Place of its row, such as `train.jsonl:17`; empty if unknown."""

    def __getitem__(self, field: str) -> Any:
        """Return a field of the row; `id` is the task's id. Raises `KeyError`."""
        try:
            return self.id if field == "id" else self.fields[field]
        except KeyError as missing:
            missing.add_note(f"the task has: {', '.join(self.fields)}")
            raise

    @property
    def input(self) -> str | Sequence[Mapping[str, Any]]:
        """Return the agent's input: a question, or a list of chat messages."""
        for name in INPUT_FIELDS:
            if name in self.fields:
                return self.fields[name]
        raise KeyError(f"task {self.id!r} has none of the input fields {INPUT_FIELDS}")

    @property
    def has_input(self) -> bool:
        """Return True if the task has an `input`, which custom agents do not need."""
        return any(name in self.fields for name in INPUT_FIELDS)

    @property
    def title(self) -> str:
        """Return the task's input, or its first text field, or its id."""
        asked = [self.fields[name] for name in INPUT_FIELDS if name in self.fields]
        texts = (v for n, v in self.fields.items() if n != "id" and isinstance(v, str))
        return str(asked[0]) if asked else next(texts, self.id)

    def messages(self) -> tuple[Message, ...]:
        """Return the input as chat messages."""
        given = self.input
        if isinstance(given, str):
            return (Message("user", given),)
        return tuple(Message.from_dict(m) for m in given)


@dataclass(frozen=True, slots=True)
class Failure:
    """Failure of an attempt: its cause, a message, and an optional traceback."""

    cause: FailureCause
    message: str
    traceback: str | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a rollout. `answer` is the agent's final text without reasoning."""

    id: str
    index: int
    status: RolloutStatus
    calls: tuple[Call, ...] = ()
    tool_results: tuple[ToolResult, ...] = ()
    answer: str | None = None
    reward: Reward | None = None
    failure: Failure | None = None
    stop: str | None = None
    """How the agent ended: answer, max_turns, token_budget, context, or in an environment
    terminated, truncated; None if it failed."""
    seconds: float = 0.0
    started: float = field(default=0.0, compare=False)
    """Start of the attempt, in seconds since 1970; 0.0 if unknown. Ignored in comparisons."""
    thought: str = field(default="", compare=False)
    """The thought before the answer, empty for none. Not stored."""
    info: JSON | None = None
    """Info of the environment's first observation, updated with the info of the last step; None
    without an environment."""

    @property
    def final_text(self) -> str | None:
        """Return the answer, or the last text or tool call of the model, or None."""
        if self.answer is not None:
            return self.answer
        for call in reversed(self.calls):
            if call.reply.content:
                return call.reply.content
            if call.reply.tool_calls:
                last = call.reply.tool_calls[-1]
                return f"calls {last.name} {last.arguments}"
        return None


@dataclass(frozen=True, slots=True)
class Rollout:
    """One execution of an agent on one task, with all attempts; the last attempt is the result."""

    id: str
    run_id: str
    task: Task
    mode: Mode
    step: int
    """Number of the training step, or of the step at which an evaluation ran."""
    group: str
    """Rollouts of the same group are compared with each other."""
    index: int
    """Position in the group, from 0."""
    attempts: tuple[Attempt, ...]
    label: str = ""
    """Name of an evaluation set or phase, such as `before/sampled`; empty for training."""

    @property
    def last(self) -> Attempt:
        """Return the last attempt, which is the result of the rollout."""
        return self.attempts[-1]

    @property
    def reward(self) -> Reward | None:
        """Return the final reward, or None."""
        return self.last.reward


class ChatOptions(TypedDict, total=False):
    """Options of a chat request except its messages, for clients that forward requests."""

    tools: Sequence[ToolSpec]
    sampling: Required[Sampling]
    agent: str
    constraint: Constraint | None
    seed: int | None
    top_logprobs: int
    prompt: str | tuple[int, ...] | None
    """A text or token ids to continue, instead of messages and a template."""


class ChatClient(Protocol):
    """Protocol of a client that answers chat requests and records each call."""

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        sampling: Sampling,
        agent: str = "main",
        constraint: Constraint | None = None,
        seed: int | None = None,
        top_logprobs: int = 0,
        prompt: str | tuple[int, ...] | None = None,
    ) -> Call:
        """Send one request and return its call. Raises `EngineError` if the engine cannot serve it.

        `agent` names the caller, if several agents share an attempt. `seed` replaces the seed of
        the seed tree. With a `prompt` there are no messages.
        """
        ...
