"""A chat client and an engine that say what they are told: only the model is replaced.

The engine stands below the codec: it keeps the promises of `Engine` that callers rely on
(context overflow, `max_tokens`, the end-of-turn token, tokens told one by one), so agents, sessions
and runners are tested through their real path. The client stands above it and needs neither a codec
nor torch: its tokens are bytes. The client takes a line that `tool_choice` and the request's schema
allow, and ends it at a stop string; the engine, which sees tokens alone, says its lines in their
order, and whole.
`script.py` has scripts; `testing/tiny.py` has a real engine over a very small model.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Unpack, cast

from tutelage.engine.logprobs import token_logprobs
from tutelage.engine.options import recorded_options
from tutelage.engine.script import Script, ScriptedReply
from tutelage.errors import ContextOverflowError, EngineError, RemoteError
from tutelage.replies import ThinkTags, split_thought
from tutelage.seeds import SeedTree
from tutelage.types import (
    Call,
    ChatOptions,
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
        self.version = version
        self._codec, self._max_length, self._logprob = codec, max_length, logprob
        self._end = int(cast("int", codec.tokenizer.eos_token_id))
        self._answer = script if callable(script) else partial(self._next, iter(script))

    @property
    def max_length(self) -> int:
        """The most tokens that prompt and answer can have together."""
        return self._max_length

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
        room = self._max_length - len(request.prompt_ids)
        if room <= 0:
            raise ContextOverflowError(
                f"the prompt has {len(request.prompt_ids)} tokens, which exceeds the context of "
                f"{self._max_length}; pass ScriptedEngine a larger `max_length`"
            )
        self.requests.append(request)
        reply = self._answer(request)
        if inspect.isawaitable(reply):
            reply = await reply
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, ScriptedReply):
            reply = await _text(reply)
        ids = (*self._codec.encode(reply), self._end) if isinstance(reply, str) else reply
        limit = min(room, request.sampling.max_tokens)
        sampled = _sampled(ids, limit, self._codec.eos_ids, None, self._logprob, self.version)
        if request.on_token is not None:
            await _hand_out(sampled, request.on_token, request.on_logprobs, None)
        return sampled

    def _next(self, replies: Iterator[Reply], request: Request) -> Reply:
        for reply in replies:
            return reply
        raise EngineError(
            f"the script has no more replies: {request.session!r} asked for number "
            f"{len(self.requests)}; pass ScriptedEngine more replies, or a function"
        )

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
        self._play = (script if isinstance(script, Script) else Script(script)).player()
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
        """Return the next reply that fits; `seed` has no say in a script."""
        index, self._started = self._started, self._started + 1
        reply = self._play(messages, options.get("constraint"), options.get("tools", ()))
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
        sampled = _sampled((*text, self.codec.end), sampling.max_tokens, self.codec.eos_ids, stop)
        if on_token is not None:
            # Word by word, so that a streaming client sees several pieces.
            await _hand_out(sampled, on_token, on_logprobs, (32, 10, self.codec.end))
        seeds, calls = self._seeds.child("call", index), enumerate(reply.tool_calls)
        message = Message(
            "assistant",
            reply.content,
            tuple(ToolCall(seeds.child("tool", i).id("call"), *call) for i, call in calls),
        )
        if sampled.token_ids[-1:] != (self.codec.end,):  # cut, or stopped by a string
            cut = content[: len(sampled.token_ids)].decode("utf-8", "ignore")
            message = Message("assistant", None if reply.content is None else cut)
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


def _sampled(
    ids: Sequence[int],
    limit: int,
    ends: Collection[int],
    stop: int | None,
    logprob: float = 0.0,
    version: int = 0,
) -> Sampled:
    """Return the tokens that fit, as an engine reports them; a stop string ends after `stop`."""
    stopped = stop is not None and stop <= limit
    ids = tuple(ids[: stop if stopped else limit])
    ended = stopped or (bool(ids) and ids[-1] in ends)
    logprobs = (logprob,) * len(ids)
    reason = StopReason.STOP if ended else StopReason.LENGTH
    return Sampled(ids, logprobs, logprobs, reason, version)


async def _hand_out(
    sampled: Sampled,
    on_token: OnToken,
    on_logprobs: OnLogprobs | None,
    ends: Collection[int] | None,
) -> None:
    """Hand out the tokens in pieces that end with one of `ends`; None: one at a time."""
    begin, ids, logprobs = 0, sampled.token_ids, token_logprobs(sampled)
    for at, token in enumerate(ids, 1):
        if ends is None or token in ends or at == len(ids):
            if on_logprobs is not None:
                on_logprobs(logprobs[begin:at])
            on_token(ids[begin:at])
            begin = at
            await asyncio.sleep(0)
