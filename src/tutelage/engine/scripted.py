"""Chat client that plays a script in place of a model.

It needs neither a codec nor torch: its tokens are bytes. It takes a line that fits the request's
tools and `tool_choice`, and truncates it at a stop string. `script.py` has scripts;
`testing/scripted.py` has an engine that plays one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Unpack

from tutelage.engine.options import option_fields
from tutelage.engine.script import Script, ScriptedReply
from tutelage.errors import RemoteError
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
    from tutelage.engine.protocol import OnPrompt, OnToken

_LINES, _SHOWN = 10, 200
"""Number of script lines, and of characters of a request, that an error shows."""


class ByteCodec:
    """Codec that uses UTF-8 bytes as token ids instead of a tokenizer. Token 256 ends a turn."""

    end = 256
    eos_ids = frozenset({end})
    call_format = "hermes"
    strips = False
    think_tags = ThinkTags()

    def decode(self, ids: Sequence[int]) -> str:
        """Decode token ids to text."""
        return bytes(i for i in ids if i != self.end).decode("utf-8", "replace")

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
    ) -> tuple[int, ...]:
        """Render a conversation as token ids: the role and content of each message, one per
        line."""
        return tuple("\n".join([f"{m.role}: {m.content or ''}" for m in messages]).encode())


class ScriptedClient:
    """Chat client that returns scripted replies. Tokens are bytes, each with log-probability 0."""

    codec = ByteCodec()

    def __init__(
        self,
        script: Script | Iterable[ScriptedReply | str],
        *,
        seeds: SeedTree | None = None,
        name: str = "scripted",
        keep: int | None = None,
    ) -> None:
        """Create a client that replays `script` from its start and keeps at most `keep` calls.

        The limit is for servers that run indefinitely.
        """
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
        on_prompt: OnPrompt | None = None,
        **options: Unpack[ChatOptions],
    ) -> Call:
        """Return the next scripted reply that fits the request. Raises `RemoteError` 404 if there
        is none.

        `seed` has no effect.
        """
        index, self._started = self._started, self._started + 1
        reply = self._take_reply(messages, options)
        raw, sampling = options.get("prompt"), options["sampling"]
        prompt = tuple(raw.encode()) if isinstance(raw, str) else raw
        if prompt is None:
            prompt = self.codec.render(messages)
        if on_prompt is not None:
            on_prompt(len(prompt))
        if sampling.max_thinking_tokens == 0:
            # Without thinking the thought is left out; an unclosed one is the complete line.
            thought, answer = split_thought(reply.content or "", self.codec.think_tags)
            if thought:
                reply = replace(reply, content=answer or (None if reply.tool_calls else ""))
        text, content = (await scripted_text(reply)).encode(), (reply.content or "").encode()
        # Stop strings are searched in the content only: the text of calls is generated.
        stops = [(content.find(s.encode()), len(s.encode())) for s in sampling.stop]
        stop = min((at + length for at, length in stops if at >= 0), default=None)
        stopped = stop is not None and stop <= sampling.max_tokens
        ids = (*text, self.codec.end)[: stop if stopped else sampling.max_tokens]
        complete = ids[-1:] == (self.codec.end,)
        reason = StopReason.STOP if stopped or complete else StopReason.LENGTH
        sampled = Sampled(ids, (0.0,) * len(ids), (0.0,) * len(ids), reason, 0)
        if on_token is not None:
            # Send word by word, so that a streaming client sees several pieces.
            ends = [at for at, i in enumerate(ids, 1) if i in (10, 32) or at == len(ids)]
            for start, end in zip([0, *ends], ends, strict=False):
                on_token(ids[start:end])
                await asyncio.sleep(0)
        seeds, calls, text_part = self._seeds.child("call", index), reply.tool_calls, reply.content
        if not complete:  # truncated, or ended by a stop string
            cut = content[: len(ids)].decode("utf-8", "ignore")
            calls, text_part = (), None if text_part is None else cut
        tool_calls = [ToolCall(seeds.child("tool", i).id("call"), *c) for i, c in enumerate(calls)]
        message = Message("assistant", text_part, tuple(tool_calls))
        call = Call(
            id=seeds.id("call"),
            index=index,
            messages=tuple(messages),
            prompt_ids=prompt,
            sampled=sampled,
            reply=message,
            thought=split_thought(message.content or "", self.codec.think_tags)[0],
            **option_fields(options),
        )
        self.calls.append(call)
        return call

    def _take_reply(self, messages: Sequence[Message], options: ChatOptions) -> ScriptedReply:
        """Return the first unused reply that fits the text since the assistant's last turn."""
        new = [*takewhile(lambda message: message.role != "assistant", reversed(messages))]
        text = "\n".join(message.content or "" for message in reversed(new))
        tools = sorted(tool.name for tool in options.get("tools", ()))
        constraint = options.get("constraint") or Constraint()
        lines = self._script.replies
        matches = [i for i, line in enumerate(lines) if line.fits(text, tools, constraint)]
        if not matches:
            raise RemoteError(
                f"no reply in {self._script.source} matches the request, which has tool_choice="
                f"{constraint.tool_choice!r}, parallel_tool_calls={constraint.parallel_tool_calls}"
                f", tools {', '.join(tools) or 'none'} and the text {text[-_SHOWN:]!r}; the script "
                f"has {', '.join(line.to_short_json() for line in lines[:_LINES])}",
                404,
            )
        if self._used.issuperset(matches):
            self._used.clear()
        index = next(i for i in matches if i not in self._used)
        self._used.add(index)
        return lines[index]


async def scripted_text(reply: ScriptedReply) -> str:
    """Return a scripted reply's text after its delay, or raise its error."""
    if reply.delay > 0:
        await asyncio.sleep(reply.delay)
    if reply.error is not None:
        error = RemoteError(reply.error[1], reply.error[0])
        error.code = "scripted_error"
        raise error
    return reply.text()
