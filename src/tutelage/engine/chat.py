"""Chat client of an engine, which records the exact tokens of every call.

One `ChatSession` serves one attempt. It renders the first prompt; when later messages continue a
recorded call with new observations, it appends the tokens of those observations to the recorded
ids, so sampled tokens are never encoded again. A conversation that continues no recorded call
(another agent, an edited history) is rendered anew and becomes a training row of its own.
`rollouts/rows.py` makes rows from the calls.

An incoming history is matched to a recorded call by identity and tool-call ids, never by text.
Agents in this process return the same `Message` objects that they received. Others send their own
rendering: frameworks serialise arguments again and rewrite texts, but they keep the ids of tool
calls. So an assistant turn matches a recorded one when it is the same object or has the same calls;
every other message must be equal, otherwise the recorded tokens are not those of this history. One
call may be continued any number of times. Where a run keeps thoughts that the template would drop
(`agent.thinking`), a history of equal messages matches too.

Concurrent calls run in lanes, so that the samples are reproducible. Consecutive calls are numbered
in one lane. A call that begins while another runs gets a lane of its own, and later calls of the
same task, or of the same conversation, stay in it. So the seed of a call does not depend on which
of two tools returned first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Unpack
from weakref import ref

from tutelage.engine.call_barrier import current_branches, use_branches
from tutelage.engine.options import option_fields
from tutelage.engine.protocol import Engine, OnPrompt, OnToken, Request
from tutelage.engine.thinking import SEED_BITS, sample
from tutelage.errors import DataError
from tutelage.policy.codec import Codec
from tutelage.policy.prompt_length import check_length
from tutelage.seeds import SeedTree
from tutelage.types import (
    Call,
    ChatOptions,
    Message,
    StopReason,
    ToolSpec,
)


class ChatSession:
    """Chat client of one rollout attempt that records its calls, in order of completion.

    A session belongs to the rollout in whose context it was created, whichever task calls it later.
    """

    def __init__(
        self, engine: Engine, codec: Codec, *, seeds: SeedTree, name: str, order: int = 0
    ) -> None:
        self.calls: list[Call] = []
        self.codec = codec
        """Decodes the tokens of the calls; the gateway streams text with it."""
        self._engine, self._seeds = engine, seeds
        self._name, self._order = name, order
        self._lanes: list[_Lane] = []
        self._histories: dict[str, _History] = {}
        self._first_lanes: dict[str, int] = {}
        """Lane in which each agent began."""
        self._sessions: dict[str, None] = {}
        """Names of the conversations that the engine may keep, in order of appearance."""
        self._closed = False
        self._rollout = current_branches()

    @property
    def max_length(self) -> int:
        """Return the context length in tokens, for prompt and reply together."""
        return self._engine.max_length

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        on_token: OnToken | None = None,
        on_prompt: OnPrompt | None = None,
        **options: Unpack[ChatOptions],
    ) -> Call:
        """Sample a reply to the messages and record the call.

        `on_token` is passed to the engine's `Request`, and `on_prompt` receives the length of the
        prompt; their exceptions propagate. Raises `ConstraintError` for a constraint that cannot be
        enforced.
        """
        fields = option_fields(options)
        turns, tools, agent = tuple(messages), fields["tools"], fields["agent"]
        constraint, seed = fields["constraint"], options.get("seed")
        grammar = self.codec.grammar(tools, constraint)
        history = self._histories.setdefault(agent, _History())
        raw = options.get("prompt")
        if isinstance(raw, str):
            check_length(raw, self._engine.max_length, self.codec.encode)
            raw = tuple(self.codec.encode(raw))
        last_id = len(self.codec.tokenizer) - 1
        if raw is not None and (not raw or max(raw) > last_id):
            raise DataError(f"a prompt needs at least one token id, and ids of at most {last_id}")
        prompt, lane = self._render(history, turns, tools) if raw is None else (raw, self._lane())
        if on_prompt is not None:
            on_prompt(len(prompt))
        # The conversation whose cache the engine keeps: the agent's main or a parallel one.
        parallel = lane.number != self._first_lanes.setdefault(agent, lane.number)
        session = f"{self._name}/{agent}" + (f"/{lane.number}" if parallel else "")
        self._sessions[session] = None
        # Take them before any await: other calls of the attempt may begin meanwhile.
        seeds = lane.start_call(self._seeds)
        started, clock = time.time(), time.perf_counter()
        request = Request(
            prompt, options["sampling"],
            seeds.value(SEED_BITS) if seed is None else seed % (1 << SEED_BITS),
            self._order, session, lane.number,
            grammar, on_token, 0 if raw is not None else history.shared,
            options.get("top_logprobs", 0),
        )  # fmt: skip
        try:
            with use_branches(self._rollout):
                sampled = await sample(self._engine, self.codec, request)
        finally:
            lane.busy = False
            if self._closed:  # the session ended before this call
                self._engine.release(session)
        # A JSON document may contain the text of a call in its strings.
        may_call = constraint is None or (
            constraint.tool_choice != "none" and (bool(tools) or constraint.json_schema is None)
        )
        parsed = self.codec.parse(
            sampled.token_ids,
            lambda i: seeds.child("tool", i).id("call")[:21],
            calls=may_call,
            document=constraint is not None and constraint.json_schema is not None,
        )
        reply, ids = parsed.message, sampled.token_ids
        if raw is not None:  # the continuation of a raw prompt
            text_ids = [i for i in ids if i not in self.codec.eos_ids]
            reply = Message("assistant", self.codec.decode(text_ids))
        call = Call(
            id=seeds.id("call"),
            index=len(self.calls),
            messages=turns,
            prompt_ids=prompt,
            sampled=sampled,
            reply=reply,
            parse_errors=parsed.errors if raw is None else (),
            thought=parsed.thought if raw is None else "",
            started=started,
            seconds=time.perf_counter() - clock,
            **fields,
        )
        self.calls.append(call)
        if raw is None:
            ended = sampled.stop_reason is StopReason.STOP and ids[-1] in self.codec.eos_ids
            history.add(_RecordedCall(call, ended, lane.number))
        return call

    def close(self) -> None:
        """Release the session's engine slots. Slots of running calls are released when they end."""
        self._closed = True
        for session in self._sessions:
            self._engine.release(session)

    def _render(
        self, history: _History, turns: tuple[Message, ...], tools: tuple[ToolSpec, ...]
    ) -> tuple[tuple[int, ...], _Lane]:
        """Return a request's prompt token ids and the lane to sample in.

        If `turns` continue a recorded call, the ids are those of the call plus those of the new
        observations.
        """
        values = history.find(turns, tools, allow_equal=self.codec.thoughts.keeps)
        if values is not None:
            recorded, count = values
            call, closing = recorded.call, self.codec.thoughts.closing
            # The template treats all thoughts of a history alike, so one of them is enough.
            thoughts = [m for m in turns[:count] if m.role == "assistant" and m.content]
            content = next((m.content for m in thoughts if closing in str(m.content)), None)
            reply = replace(call.reply, content=content or call.reply.content)
            new_ids = self.codec.encode_observation(reply, turns[count:], self._engine.max_length)
            if new_ids is not None:
                ids = call.prompt_ids + call.sampled.token_ids
                return ids + new_ids, self._lane(recorded.lane)
        ids = self.codec.render(turns, tools, self._engine.max_length)
        history.shared = self.codec.shared_length(turns, tools, ids)
        return ids, self._lane()

    def _lane(self, number: int | None = None) -> _Lane:
        """Return the lane for a call: that of the current task or of the continued call, an unused
        lane, or a new one."""
        idle = [lane for lane in self._lanes if not lane.busy]
        task = asyncio.current_task()
        own = (lane for lane in idle if lane.task is task)
        continuing = (lane for lane in idle if lane.number == number)
        unused = (lane for lane in idle if lane.task is None)
        for lane in (*own, *continuing, *unused):
            return lane
        self._lanes.append(_Lane(len(self._lanes)))
        return self._lanes[-1]


# ---------------------------------------------------------------- recorded calls


@dataclass(frozen=True, slots=True)
class _RecordedCall:
    """A completed call and the state needed to continue it."""

    call: Call
    ended: bool
    """True if the reply ended with an end-of-turn token, so that messages can follow it."""
    lane: int


class _History:
    """Index of an agent's completed calls, to find the call that a conversation continues."""

    def __init__(self) -> None:
        self.shared = 0
        """Number of leading tokens of the latest rendered prompt that other conversations share."""
        self._by_object: dict[int, _RecordedCall] = {}
        self._by_calls: dict[frozenset[str], _RecordedCall] = {}
        self._by_messages: dict[tuple[Message, ...], _RecordedCall] = {}
        self._lengths: set[int] = set()
        """Numbers of messages before the reply in recorded calls."""

    def add(self, entry: _RecordedCall) -> None:
        """Index a call, and keep a reference to its reply so that its `id()` is not reused."""
        reply = entry.call.reply
        self._by_object[id(reply)] = entry
        self._by_messages[*entry.call.messages, reply] = entry
        self._lengths.add(len(entry.call.messages))
        if reply.tool_calls:
            self._by_calls[_call_ids(reply)] = entry

    def find(
        self, turns: Sequence[Message], tools: Sequence[ToolSpec], *, allow_equal: bool = False
    ) -> tuple[_RecordedCall, int] | None:
        """Find the latest recorded call that a conversation continues; return the call and the
        number of messages that it covers.

        With `allow_equal`, equal messages and an equal reply suffice. Returns None if there is no
        such call, if the messages before its reply differ from the recorded ones, or if nothing can
        follow the reply.
        """
        for at in range(len(turns) - 2, -1, -1):
            turn, recorded = turns[at], None
            if turn.role == "assistant":
                recorded = self._by_object.get(id(turn))
                if recorded is None and turn.tool_calls:
                    recorded = self._by_calls.get(_call_ids(turn))
            if recorded is None and allow_equal and at in self._lengths:
                recorded = self._by_messages.get(tuple(turns[: at + 1]))
            if recorded is None:
                continue
            is_continued = (
                recorded.ended
                and recorded.call.tools == tuple(tools)
                and len(recorded.call.messages) == at
                and all(map(_messages_match, recorded.call.messages, turns))
            )
            return (recorded, at + 1) if is_continued else None
        return None


def _call_ids(turn: Message) -> frozenset[str]:
    return frozenset(call.id for call in turn.tool_calls)


def _messages_match(recorded: Message, incoming: Message) -> bool:
    """Return True if an incoming message matches a recorded one (see the module docstring)."""
    if recorded == incoming:
        return True
    if recorded.role != incoming.role:
        return False
    if recorded.role == "assistant" and recorded.tool_calls:
        return _call_ids(recorded) == _call_ids(incoming)
    return (
        (recorded.content or "") == (incoming.content or "")
        and not incoming.tool_calls
        and recorded.tool_call_id == incoming.tool_call_id
        and recorded.name == incoming.name
    )


# ---------------------------------------------------------------- concurrent calls


class _Lane:
    """A sequence of calls that do not overlap, numbered for reproducible seeds."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.calls = 0
        """Number of calls that have begun."""
        self.busy = False
        self._task: ref[asyncio.Task[object]] | None = None

    @property
    def task(self) -> asyncio.Task[object] | None:
        """Return the last task that used the lane, or None if it is done."""
        task = None if self._task is None else self._task()
        return None if task is None or task.done() else task

    def start_call(self, seeds: SeedTree) -> SeedTree:
        """Reserve the lane for a call of the current task, and return the call's seeds."""
        task = asyncio.current_task()
        self._task = None if task is None else ref(task)
        self.busy = True
        number, self.calls = self.calls, self.calls + 1
        lane = seeds if self.number == 0 else seeds.child("lane", self.number)
        return lane.child("call", number)
