"""A chat client and an engine that say what they are told: only the model is replaced.

The engine stands below the codec: it keeps the promises of `Engine` that callers rely on
(context overflow, `max_tokens`, the end-of-turn token, tokens told one by one), so agents, sessions
and runners are tested through their real path. The client stands above it and needs neither a codec
nor torch: its tokens are bytes. The client takes a line that the request's tools and `tool_choice`
allow, and ends it at a stop string; the engine, which sees tokens alone, says its lines in their
order, and whole.
`script.py` has scripts; `testing/tiny.py` has a real engine over a very small model.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Unpack, cast

from tutelage.engine.logprobs import token_logprobs
from tutelage.engine.options import recorded_options
from tutelage.engine.script import Script, ScriptedReply
from tutelage.errors import EngineError, RemoteError
from tutelage.replies import ThinkTags, split_thought
from tutelage.seeds import SeedTree
from tutelage.types import (
    Call,
    ChatOptions,
    Constraint,
    Message,
    Sampled,
    StopReason,
    ToolCall,
    ToolSpec,
)

if TYPE_CHECKING:
    from tutelage.engine.logprobs import OnLogprobs
    from tutelage.engine.protocol import OnPrompt, OnToken, Request
    from tutelage.policy.codec import Codec
    from tutelage.policy.model import Policy

_LINES, _SHOWN = 10, 200
"""Lines of a script, and characters of a request, that an error shows."""
Reply = ScriptedReply | str | Sequence[int] | Exception
"""A line of a script, a text (its end-of-turn token is added to both), token ids as they are, or an
exception to raise."""

Replies = Iterable[Reply] | Callable[["Request"], Reply | Awaitable[Reply]]
"""Replies in the order of the calls, or a function, async or not, from a request to its reply."""


class ScriptedEngine:
    """An `Engine` that says what it is told; `requests` and `released` record its use."""

    def __init__(
        self,
        codec: Codec,
        script: Replies,
        *,
        max_length: int = 4096,
        logprob: float = -1.0,
        version: int = 0,
    ) -> None:
        """`max_length` is in tokens; every sampled token gets `logprob`."""
        self.requests: list[Request] = []
        self.released: list[str] = []
        self.version, self.max_length = version, max_length
        self._codec, self._logprob = codec, logprob
        self._end = int(cast("int", codec.tokenizer.eos_token_id))
        self._script = script if callable(script) else iter(script)

    def update_weights(self, source: Policy, version: int) -> None:
        """Say the same with another version."""
        self.version = version

    def free(self) -> None:
        """A script takes no memory."""

    async def sample(self, request: Request) -> Sampled:
        """The next reply, cut to what `max_tokens` and the context allow.

        Raises `ContextOverflowError` when the prompt leaves no room, the script's own exceptions,
        and `EngineError` when the script has no reply left.
        """
        room = request.room(self.max_length)
        self.requests.append(request)
        if not callable(self._script):
            reply = next(self._script, None)
        elif inspect.isawaitable(reply := self._script(request)):
            reply = await reply
        if reply is None:
            raise EngineError(
                f"the script has no more replies: {request.session!r} asked for number "
                f"{len(self.requests)}; pass ScriptedEngine more replies, or a function"
            )
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, ScriptedReply):
            reply = await _text(reply)
        ids = (*self._codec.encode(reply), self._end) if isinstance(reply, str) else tuple(reply)
        ids = ids[:room]
        ended = bool(ids) and ids[-1] in self._codec.eos_ids
        sampled = _sampled(ids, ended, self._logprob, self.version)
        if request.on_token is not None:
            pieces = [(i,) for i in ids]
            await _hand_out(sampled, pieces, request.on_token, request.on_logprobs)
        return sampled

    def release(self, session: str) -> None:
        """Note that a session was closed."""
        self.released.append(session)

    @asynccontextmanager
    async def participant(self) -> AsyncGenerator[None]:
        """Around a rollout; a script has no schedule, so this does nothing."""
        yield


class _ByteCodec:
    """Text as its UTF-8 bytes: token ids without a tokenizer. 256 ends a turn."""

    end = 256
    eos_ids = frozenset({end})
    call_format = "hermes"
    strips = False
    thoughts = ThinkTags()

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return bytes(i for i in ids if i != self.end).decode("utf-8", "replace")

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
    ) -> tuple[int, ...]:
        """Return a prompt: who says what, a line each."""
        return tuple("\n".join([f"{m.role}: {m.content or ''}" for m in messages]).encode())


class ScriptedClient:
    """A `ChatClient` that plays a script. Tokens are bytes, each with log-probability 0."""

    codec = _ByteCodec()

    def __init__(
        self,
        script: Script | Iterable[ScriptedReply | str],
        *,
        seeds: SeedTree | None = None,
        name: str = "scripted",
        keep: int | None = None,
    ) -> None:
        """`keep` bounds the calls on record, for servers that run for ever."""
        self.calls: deque[Call] = deque(maxlen=keep)
        self._script = script if isinstance(script, Script) else Script(script)
        self._used: set[int] = set()
        self._seeds = (seeds or SeedTree(0)).child("scripted", name)
        self._started = 0

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        on_token: OnToken | None = None,
        on_logprobs: OnLogprobs | None = None,
        on_prompt: OnPrompt | None = None,
        **options: Unpack[ChatOptions],
    ) -> Call:
        """Return the next reply that fits; `seed` has no say in a script. Raises `RemoteError` 404
        when no line fits."""
        index, self._started = self._started, self._started + 1
        reply = self._next(messages, options)
        raw, sampling = options.get("prompt"), options["sampling"]
        prompt = tuple(raw.encode()) if isinstance(raw, str) else raw
        if prompt is None:
            prompt = self.codec.render(messages)
        if on_prompt is not None:
            on_prompt(len(prompt))
        if sampling.max_thinking_tokens == 0:
            # A model that is not to think says no thought; one without an end is all of a line.
            thought, answer = split_thought(reply.content or "", self.codec.thoughts)
            if thought:
                reply = replace(reply, content=answer or (None if reply.tool_calls else ""))
        text, content = (await _text(reply)).encode(), (reply.content or "").encode()
        # The text of calls is this client's own, so no stop string is looked for in it.
        stops = [(content.find(s.encode()), len(s.encode())) for s in sampling.stop]
        stop = min((at + length for at, length in stops if at >= 0), default=None)
        stopped = stop is not None and stop <= sampling.max_tokens
        ids = (*text, self.codec.end)[: stop if stopped else sampling.max_tokens]
        whole = ids[-1:] == (self.codec.end,)
        sampled = _sampled(ids, stopped or whole)
        if on_token is not None:
            # Word by word, so that a streaming client sees several pieces.
            ends = [at for at, i in enumerate(ids, 1) if i in (10, 32) or at == len(ids)]
            pieces = [ids[a:b] for a, b in zip([0, *ends], ends, strict=False)]
            await _hand_out(sampled, pieces, on_token, on_logprobs)
        seeds, calls, said = self._seeds.child("call", index), reply.tool_calls, reply.content
        if not whole:  # cut, or stopped by a string
            cut = content[: len(ids)].decode("utf-8", "ignore")
            calls, said = (), None if said is None else cut
        made = [ToolCall(seeds.child("tool", i).id("call"), *c) for i, c in enumerate(calls)]
        message = Message("assistant", said, tuple(made))
        call = Call(
            id=seeds.id("call"),
            index=index,
            messages=tuple(messages),
            prompt_ids=prompt,
            sampled=sampled,
            reply=message,
            thought=split_thought(message.content or "", self.codec.thoughts)[0],
            **recorded_options(options),
        )
        self.calls.append(call)
        return call

    def _next(self, messages: Sequence[Message], options: ChatOptions) -> ScriptedReply:
        """Take the first unused line that fits what is new since the assistant's last turn."""
        new = [*takewhile(lambda message: message.role != "assistant", reversed(messages))]
        text = "\n".join(message.content or "" for message in reversed(new))
        tools = sorted(tool.name for tool in options.get("tools", ()))
        constraint = options.get("constraint") or Constraint()
        lines = self._script.replies
        fitting = [i for i, line in enumerate(lines) if line.fits(text, tools, constraint)]
        if not fitting:
            raise RemoteError(
                f"no reply in {self._script.source} matches the request, which has tool_choice="
                f"{constraint.tool_choice!r}, parallel_tool_calls={constraint.parallel_tool_calls}"
                f", tools {', '.join(tools) or 'none'} and the text {text[-_SHOWN:]!r}; the script "
                f"has {', '.join(line.shown() for line in lines[:_LINES])}",
                404,
            )
        if self._used.issuperset(fitting):
            self._used.clear()
        taken = next(i for i in fitting if i not in self._used)
        self._used.add(taken)
        return lines[taken]


# ---------------------------------------------------------------- what both do


async def _text(reply: ScriptedReply) -> str:
    """Return what a line of a script says, once its time has come. Raises the line's error."""
    if reply.delay > 0:
        await asyncio.sleep(reply.delay)
    if reply.error is not None:
        error = RemoteError(reply.error[1], reply.error[0])
        error.code = "scripted_error"
        raise error
    return reply.text()


def _sampled(ids: tuple[int, ...], ended: bool, logprob: float = 0.0, version: int = 0) -> Sampled:
    logprobs = (logprob,) * len(ids)
    return Sampled(
        ids, logprobs, logprobs, StopReason.STOP if ended else StopReason.LENGTH, version
    )


async def _hand_out(
    sampled: Sampled,
    pieces: Iterable[tuple[int, ...]],
    on_token: OnToken,
    on_logprobs: OnLogprobs | None,
) -> None:
    """Hand out the tokens piece by piece."""
    logprobs = iter(token_logprobs(sampled))
    for piece in pieces:
        if on_logprobs is not None:
            on_logprobs([next(logprobs) for _ in piece])
        on_token(piece)
        await asyncio.sleep(0)
