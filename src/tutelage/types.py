"""The nouns that layers share, as small frozen records, and the protocols between layers.

Nothing here computes. A `Task` is run as `Rollout`s; a rollout has `Attempt`s; an attempt made
`Call`s to a model; a call keeps exactly what was sent and what was sampled, as token ids. Rows for
training are made from calls in `rollouts/rows.py`; where records are kept is `store/`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, Required, TypedDict, cast

JSON = dict[str, Any]
INPUT_FIELDS = ("question", "prompt", "instruction", "problem", "messages")
"""The field of a task that becomes the agent's input: the first of these that it has."""
EXPECTED_FIELDS = ("expected", "expected_answer", "answer", "answers", "solution", "target")
"""The fields in which a task may say what is expected."""
EXACT = "exact"
"""The part of a reward by which a grader says itself whether an answer was right."""
SUCCESS = "success"
"""The name in an environment's info that says whether the rollout succeeded."""
THOUGHTS = ("reasoning_content", "reasoning")
"""The fields of a message that hold reasoning apart from its content."""


class Mode(StrEnum):
    """What a rollout is for; only `TRAIN` rollouts ever reach a loss."""

    TRAIN = "train"
    VAL = "val"
    TEST = "test"


class StopReason(StrEnum):
    """Why sampling ended, in the words of the OpenAI API where it has one."""

    STOP = "stop"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    """By another server, which held back the rest."""
    CANCELLED = "cancelled"


class RolloutStatus(StrEnum):
    """Life of a rollout or attempt; the last three are terminal and final."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Whether no later status may follow."""
        return self in (RolloutStatus.SUCCEEDED, RolloutStatus.FAILED, RolloutStatus.CANCELLED)


class FailureCause(StrEnum):
    """Why an attempt failed. Infrastructure causes stay out of baselines and losses."""

    TIMEOUT = "timeout"
    AGENT_ERROR = "agent_error"
    TOOL_ERROR = "tool_error"
    NO_CALLS = "no_calls"
    """The agent ended without a model call, in training."""
    REWARD_ERROR = "reward_error"
    """The reward is no number, or cannot grade this task."""
    ANSWER_ERROR = "answer_error"
    """The grader raised on what the model wrote, which counts as wrong."""
    GRADER_ERROR = "grader_error"
    """The grader could not run."""
    REWARD_TIMEOUT = "reward_timeout"
    """The reward had not answered in time."""
    ENGINE_ERROR = "engine_error"
    ENVIRONMENT_ERROR = "environment_error"
    """The environment raised, hung, died, or returned what cannot be used."""
    CONTEXT_OVERFLOW = "context_overflow"
    CANCELLED = "cancelled"

    @property
    def infrastructure(self) -> bool:
        """True when the agent is not to blame, so that the rollout is no evidence about it."""
        lost = ("engine_error", "environment_error", "reward_error", "grader_error")
        return self in (*lost, "reward_timeout", "cancelled")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call of an assistant turn; `arguments` is the JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str
    custom: bool | None = None
    """True where another server called a tool without a schema; `arguments` are then any text."""

    def to_dict(self) -> JSON:
        """The OpenAI form."""
        kind, said = ("custom", "input") if self.custom else ("function", "arguments")
        return {"id": self.id, "type": kind, kind: {"name": self.name, said: self.arguments}}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> ToolCall:
        """Read the OpenAI form."""
        kind, said = ("custom", "input") if data.get("custom") else ("function", "arguments")
        name, given = data[kind]["name"], data[kind][said]
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        return ToolCall(str(data.get("id") or ""), name, text, kind == "custom" or None)


def joined_text(content: Any) -> Any:
    """Join a content of text parts alone to a text; return any other content as it is."""
    try:
        texts = [part["text"] for part in content if part["type"] == "text"]
        return "".join(texts) if texts and len(texts) == len(content) else content
    except (KeyError, TypeError):
        return content


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message, in the OpenAI shape."""

    role: str
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    extra: Mapping[str, Any] = field(default_factory=lambda: {}, compare=False)
    """What else came with it over an API or in a row; on record, and in no prompt. Demonstrations
    read reasoning (`THOUGHTS`) and `weight` here."""

    def to_dict(self, *, extra: bool = False) -> JSON:
        """The OpenAI chat form, without empty fields; with `extra` all that came with it."""
        out: JSON = {"role": self.role, "content": self.content, **(self.extra if extra else {})}
        if self.tool_calls:
            out["tool_calls"] = [call.to_dict() for call in self.tool_calls]
        more = {"tool_call_id": self.tool_call_id, "name": self.name}
        return out | {name: value for name, value in more.items() if value is not None}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Message:
        """Read the OpenAI chat form."""
        # Templates know a developer's message as a system message.
        role = "system" if data["role"] == "developer" else str(data["role"])
        calls = cast("Sequence[JSON]", data.get("tool_calls") or ())
        made, answered = tuple(map(ToolCall.from_dict, calls)), data.get("tool_call_id")
        return Message(role, joined_text(data.get("content")), made, answered, data.get("name"))


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """What a model is told about a tool: name, description, JSON schema of its parameters."""

    name: str
    description: str
    parameters: JSON

    def to_dict(self) -> JSON:
        """The OpenAI function-tool form."""
        told = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": told}


UNBOUNDED = 1 << 20
"""`max_tokens` where nobody named a limit: a reply ends by itself, or with the context."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample one call. `temperature` 0 is greedy; `top_p` 1 and `top_k` 0 are off."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    max_thinking_tokens: int | None = None
    """Tokens after which a thought is closed, where that is sooner than the policy's own limit; 0:
    the turn has no thought."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a reply must be. `tool_choice` is `auto`, `none`, `required` or the name of the one tool
    to call; with `json_schema` the content is a JSON document of that schema, with `choices` one of
    these texts."""

    tool_choice: str = "auto"
    parallel_tool_calls: bool = True
    json_schema: JSON | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sampled:
    """What an engine returns for one request.

    `token_ids` are the sampled ids, the end-of-turn token included when it was sampled.
    `logprobs[i]` is the log-probability of `token_ids[i]` under log-softmax(logits / temperature)
    over the full vocabulary: the distribution the trainer recomputes. `raw_logprobs` is the same at
    temperature 1. Both are natural logarithms, computed from the logits the token was drawn from.
    Where a grammar constrained the request, `allowed[i]` says how many tokens it allowed for
    `token_ids[i]`, and both log-probabilities are those among the allowed ones (0 where only one
    was). The tokens that close a thought at its limit have 1 as well, and what nothing narrowed in
    such a reply has 0; where nothing was constrained or forced, `allowed` is empty.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    raw_logprobs: tuple[float, ...]
    stop_reason: StopReason
    policy_version: int
    allowed: tuple[int, ...] = ()
    top: tuple[tuple[tuple[int, float], ...], ...] = ()
    """The most probable tokens beside each, at temperature 1, for requests that ask for them."""
    versions: tuple[tuple[int, int], ...] | None = None
    """Spans (version, end) of tokens where weights changed meanwhile, the oldest first."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request to a model inside an attempt, exactly as sent and sampled.

    The prompt of the call is `prompt_ids`, as the engine saw it; `reply` is what the codec read
    from the sampled ids, `parse_errors` what in them could not be read as a tool call.
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
    """The tools that the model was told about."""
    constraint: Constraint | None = None
    started: float = field(default=0.0, compare=False)
    """When it was sent, in seconds since 1970; 0.0 when that is not known. No part of equality."""
    seconds: float = field(default=0.0, compare=False)
    """From sending to the whole reply. No part of equality."""
    policy: str | None = "main"
    """The policy whose loss this call may reach; None: it is recorded and never trained."""
    reward: float | None = None
    """Reward of the turn that this call began; None where its environment gives none per turn."""
    info: JSON | None = None
    """What the environment recorded of the turn; None without an environment."""
    thought: str = field(default="", compare=False)
    """The thought that the content of `reply` begins with, its marks included. Not stored."""
    model: str = field(default="", compare=False)
    """The model that another server was asked for; empty for a policy of this process."""
    answered_by: str = field(default="", compare=False)
    """The name that the server gave its model."""
    usage: tuple[int, int] | None = field(default=None, compare=False)
    """Prompt and completion tokens as the server counted them."""

    @property
    def answer(self) -> str:
        """The content of `reply` without its thought."""
        return (self.reply.content or "")[len(self.thought) :]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one tool call: its text for the model, and whether and how it failed."""

    call_id: str
    name: str
    arguments: str
    text: str
    error: str | None = None
    """None, or one of: unknown_tool, invalid_arguments, raised, timeout, bad_result."""
    seconds: float = 0.0
    started: float = field(default=0.0, compare=False)
    """When it began, in seconds since 1970; 0.0 when that is not known. No part of equality."""


@dataclass(frozen=True, slots=True)
class Reward:
    """A finite number and its named parts."""

    value: float
    parts: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Task:
    """One row of a dataset: an id and its fields, of which one is the agent's input."""

    id: str
    fields: Mapping[str, Any]
    place: str = field(default="", compare=False, repr=False)
    """Where its row stands, such as `train.jsonl:17`; empty where that is not known."""

    def __getitem__(self, field: str) -> Any:
        """A field of the row; `id` is the task's id, given or made. Raises `KeyError`."""
        try:
            return self.id if field == "id" else self.fields[field]
        except KeyError as missing:
            missing.add_note(f"the task has: {', '.join(self.fields)}")
            raise

    @property
    def input(self) -> str | Sequence[Mapping[str, Any]]:
        """The question, or a list of chat messages."""
        for name in INPUT_FIELDS:
            if name in self.fields:
                return self.fields[name]
        raise KeyError(f"task {self.id!r} has none of the input fields {INPUT_FIELDS}")

    @property
    def has_input(self) -> bool:
        """Whether there is an `input`; a custom agent needs none."""
        return any(name in self.fields for name in INPUT_FIELDS)

    @property
    def title(self) -> str:
        """What it asks, to show: its input, else its first text, else its id."""
        asked = [self.fields[name] for name in INPUT_FIELDS if name in self.fields]
        texts = (v for n, v in self.fields.items() if n != "id" and isinstance(v, str))
        return str(asked[0]) if asked else next(texts, self.id)

    def messages(self) -> tuple[Message, ...]:
        """The input as chat messages."""
        given = self.input
        if isinstance(given, str):
            return (Message("user", given),)
        return tuple(Message.from_dict(m) for m in given)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed: the cause, a sentence, and the traceback where there is one."""

    cause: FailureCause
    message: str
    traceback: str | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a rollout. `answer` is the agent's final text without its thought."""

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
    terminated, truncated; None when it failed."""
    seconds: float = 0.0
    started: float = field(default=0.0, compare=False)
    """When it began, in seconds since 1970; 0.0 when that is not known. No part of equality."""
    thought: str = field(default="", compare=False)
    """What was thought before the answer, empty for nothing. Not stored."""
    info: JSON | None = None
    """The environment's info of the first observation, with the last step's over it; None without
    an environment."""

    @property
    def final_text(self) -> str | None:
        """The answer; without one the last text or tool call of the model, None without either."""
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
    """One execution of an agent on one task, with all its attempts; the last one counts."""

    id: str
    run_id: str
    task: Task
    mode: Mode
    step: int
    """The training step that asked for it; evaluations carry the step at which they ran."""
    group: str
    """Rollouts with equal group are compared with each other."""
    index: int
    """Position in the group, from 0."""
    attempts: tuple[Attempt, ...]
    label: str = ""
    """Names an evaluation set or phase, such as `before/sampled`; empty for training."""

    @property
    def last(self) -> Attempt:
        """The attempt that counts."""
        return self.attempts[-1]

    @property
    def reward(self) -> Reward | None:
        """The final reward, None while there is none."""
        return self.last.reward


class ChatOptions(TypedDict, total=False):
    """What a chat request says beside its messages, for clients that hand requests on."""

    tools: Sequence[ToolSpec]
    sampling: Required[Sampling]
    agent: str
    constraint: Constraint | None
    seed: int | None
    top_logprobs: int
    prompt: str | tuple[int, ...] | None
    """A text or token ids to continue, in place of messages and of any template."""


class ChatClient(Protocol):
    """Something that answers chat requests and keeps a record of every call it made."""

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
        """Send one request. Raises `EngineError` when the engine cannot serve it.

        `agent` names the caller, where several agents share an attempt. `seed` replaces the one
        that the seed tree gives the call. With a `prompt` there are no messages.
        """
        ...
