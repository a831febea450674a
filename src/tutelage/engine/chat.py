"""A chat client over an engine: messages in, calls out, every token on record.

One `ChatSession` serves one attempt. It renders the first prompt; after that, when the messages
continue a recorded call by new observations, it appends those observations' tokens to the recorded
ids, so nothing sampled is ever encoded again. A conversation that does not continue any (another
agent, an edited history) is rendered afresh and becomes a training row of its own.
`rollouts/rows.py` makes rows from the calls.

Which recorded call an incoming history continues is told by identity and tool-call ids, never by
text. Agents of this process hand back the very `Message` that they were given. Others send their
own rendering of it: frameworks dump arguments again and rewrite texts, but they keep the ids of
tool calls. So an assistant turn is a recorded one when it is the same object or names the same
calls; every other message must be equal, or the recorded tokens are not those of this history. One
call may be continued any number of times. Where a run keeps thoughts that the template would drop
(`agent.thinking`), a history of equal messages is the recorded one too.

Calls may run at the same time, in lanes, so that the samples repeat. Calls that follow each other
are numbered in one lane. A call that begins while another runs gets a lane of its own, and later
calls of the same task, or that continue the same conversation, stay in it. So the seed of a call
does not depend on which of two tools came back first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Unpack
from weakref import ref

from tutelage.engine.call_barrier import acting_for, current_branches
from tutelage.engine.logprobs import OnLogprobs
from tutelage.engine.options import recorded_options
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
    """A `ChatClient` for one attempt; `calls` is its record, in the order in which they ended.

    It belongs to the rollout in whose context it was made, whatever task calls it later.
    """

    def __init__(
        self, engine: Engine, codec: Codec, *, seeds: SeedTree, name: str, order: int = 0
    ) -> None:
        self.calls: list[Call] = []
        self.codec = codec
        """How the tokens of its calls read; the gateway streams text with it."""
        self._engine, self._seeds = engine, seeds
        self._name, self._order = name, order
        self._lanes: list[_Lane] = []
        self._histories: dict[str, _History] = {}
        self._homes: dict[str, int] = {}
        """The lane in which each agent began."""
        self._sessions: dict[str, None] = {}
        """Names of the conversations that the engine may keep, in order of appearance."""
        self._closed = False
        self._rollout = current_branches()

    @property
    def max_length(self) -> int:
        """The most tokens that prompt and answer can have together."""
        return self._engine.max_length

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        on_token: OnToken | None = None,
        on_logprobs: OnLogprobs | None = None,
        on_prompt: OnPrompt | None = None,
        **options: Unpack[ChatOptions],
    ) -> Call:
        """Send one request and record it; see `ChatClient`.

        `on_token` and `on_logprobs` are those of the engine's `Request`, and `on_prompt` is told
        the length of the prompt; what they raise is raised here. Raises `ConstraintError` for a
        constraint that cannot be enforced.
        """
        fields = recorded_options(options)
        given, told, agent = tuple(messages), fields["tools"], fields["agent"]
        constraint, seed = fields["constraint"], options.get("seed")
        grammar = self.codec.grammar(told, constraint)
        history = self._histories.setdefault(agent, _History())
        raw = options.get("prompt")
        if isinstance(raw, str):
            check_length(raw, self._engine.max_length, self.codec.encode)
            raw = tuple(self.codec.encode(raw))
        most = len(self.codec.tokenizer) - 1
        if raw is not None and (not raw or max(raw) > most):
            raise DataError(f"a prompt needs at least one token id, and no id above {most}")
        prompt, lane = self._prompt(history, given, told) if raw is None else (raw, self._lane())
        if on_prompt is not None:
            on_prompt(len(prompt))
        # The conversation whose cache the engine keeps: an agent's own, or one beside it.
        beside = lane.number != self._homes.setdefault(agent, lane.number)
        session = f"{self._name}/{agent}" + (f"/{lane.number}" if beside else "")
        self._sessions[session] = None
        # Taken before anything is awaited: other calls of the attempt may begin meanwhile.
        seeds = lane.begin(self._seeds)
        started, clock = time.time(), time.perf_counter()
        request = Request(
            prompt, options["sampling"],
            seeds.value(SEED_BITS) if seed is None else seed % (1 << SEED_BITS),
            self._order, session, lane.number,
            grammar, on_token, 0 if raw is not None else history.shared,
            options.get("top_logprobs", 0), on_logprobs,
        )  # fmt: skip
        try:
            with acting_for(self._rollout):
                sampled = await sample(self._engine, self.codec, request)
        finally:
            lane.busy = False
            if self._closed:  # the session ended before this call
                self._engine.release(session)
        # A JSON document may well spell a call in its strings.
        may_call = constraint is None or (
            constraint.tool_choice != "none" and (bool(told) or constraint.json_schema is None)
        )
        parsed = self.codec.parse(
            sampled.token_ids,
            lambda i: seeds.child("tool", i).id("call")[:21],
            calls=may_call,
            document=constraint is not None and constraint.json_schema is not None,
        )
        reply, ids = parsed.message, sampled.token_ids
        if raw is not None:  # what continues a prompt that is no conversation
            said = [i for i in ids if i not in self.codec.eos_ids]
            reply = Message("assistant", self.codec.decode(said))
        call = Call(
            id=seeds.id("call"),
            index=len(self.calls),
            messages=given,
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
            history.add(_Said(call, ended, lane.number))
        return call

    def close(self) -> None:
        """Give the engine's slots back, those of calls that still run when they end."""
        self._closed = True
        for session in self._sessions:
            self._engine.release(session)

    def _prompt(
        self, history: _History, given: tuple[Message, ...], tools: tuple[ToolSpec, ...]
    ) -> tuple[tuple[int, ...], _Lane]:
        """The ids to sample after, and the lane to do it in.

        They are recorded ids plus those of new observations, when `given` continues a call.
        """
        values = history.find(given, tools, equal=self.codec.thoughts.keeps)
        if values is not None:
            said, known = values
            call, closing = said.call, self.codec.thoughts.closing
            # What the template does with a thought, it does with any of those in this history.
            thoughts = [m for m in given[:known] if m.role == "assistant" and m.content]
            content = next((m.content for m in thoughts if closing in str(m.content)), None)
            reply = replace(call.reply, content=content or call.reply.content)
            more = self.codec.observation(reply, given[known:], self._engine.max_length)
            if more is not None:
                ids = call.prompt_ids + call.sampled.token_ids
                return ids + more, self._lane(said.lane)
        ids = self.codec.render(given, tools, self._engine.max_length)
        history.shared = self.codec.shared_length(given, tools, ids)
        return ids, self._lane()

    def _lane(self, continued: int | None = None) -> _Lane:
        """The current task's lane, else that of the call which is continued, else one that nobody
        uses any more, else a new one."""
        idle = [lane for lane in self._lanes if not lane.busy]
        task = asyncio.current_task()
        mine = (lane for lane in idle if lane.task is task)
        known = (lane for lane in idle if lane.number == continued)
        left = (lane for lane in idle if lane.task is None)
        for lane in (*mine, *known, *left):
            return lane
        self._lanes.append(_Lane(len(self._lanes)))
        return self._lanes[-1]


# ---------------------------------------------------------------- which call is continued


@dataclass(frozen=True, slots=True)
class _Said:
    """A finished call."""

    call: Call
    ended: bool
    """Whether the reply ended with an end-of-turn token, so that something can follow it."""
    lane: int


class _History:
    """The finished calls of one agent."""

    def __init__(self) -> None:
        self.shared = 0
        """Leading tokens of the latest rendered prompt that other conversations share."""
        self._by_object: dict[int, _Said] = {}
        self._by_calls: dict[frozenset[str], _Said] = {}
        self._by_messages: dict[tuple[Message, ...], _Said] = {}
        self._lengths: set[int] = set()
        """How many messages these have before the reply."""

    def add(self, said: _Said) -> None:
        """Record a call. Its reply is kept, so that no other object can take its place."""
        reply = said.call.reply
        self._by_object[id(reply)] = said
        self._by_messages[*said.call.messages, reply] = said
        self._lengths.add(len(said.call.messages))
        if reply.tool_calls:
            self._by_calls[_ids(reply)] = said

    def find(
        self, given: Sequence[Message], tools: Sequence[ToolSpec], *, equal: bool = False
    ) -> tuple[_Said, int] | None:
        """The latest recorded call that `given` continues, and how many messages it accounts for;
        with `equal` also one whose messages and reply are only equal to these.

        None when there is none, when what comes before its reply is not what was recorded, and when
        nothing can follow the reply.
        """
        for at in range(len(given) - 2, -1, -1):
            turn, said = given[at], None
            if turn.role == "assistant":
                said = self._by_object.get(id(turn))
                if said is None and turn.tool_calls:
                    said = self._by_calls.get(_ids(turn))
            if said is None and equal and at in self._lengths:
                said = self._by_messages.get(tuple(given[: at + 1]))
            if said is None:
                continue
            same = (
                said.ended
                and said.call.tools == tuple(tools)
                and len(said.call.messages) == at
                and all(map(_same, said.call.messages, given))
            )
            return (said, at + 1) if same else None
        return None


def _ids(turn: Message) -> frozenset[str]:
    return frozenset(call.id for call in turn.tool_calls)


def _same(recorded: Message, given: Message) -> bool:
    """Whether two messages are the same for a model; see the module's docstring."""
    if recorded == given:
        return True
    if recorded.role != given.role:
        return False
    if recorded.role == "assistant" and recorded.tool_calls:
        return _ids(recorded) == _ids(given)
    return (
        (recorded.content or "") == (given.content or "")
        and not given.tool_calls
        and recorded.tool_call_id == given.tool_call_id
        and recorded.name == given.name
    )


# ---------------------------------------------------------------- calls at the same time


class _Lane:
    """One line of calls, one after the other."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.calls = 0
        """Calls that have begun."""
        self.busy = False
        self._task: ref[asyncio.Task[object]] | None = None

    @property
    def task(self) -> asyncio.Task[object] | None:
        """The task that used it last, unless that is done."""
        task = None if self._task is None else self._task()
        return None if task is None or task.done() else task

    def begin(self, seeds: SeedTree) -> SeedTree:
        """Take the lane for a call of the current task; the seeds of the call."""
        task = asyncio.current_task()
        self._task = None if task is None else ref(task)
        self.busy = True
        number, self.calls = self.calls, self.calls + 1
        lane = seeds if self.number == 0 else seeds.child("lane", self.number)
        return lane.child("call", number)
