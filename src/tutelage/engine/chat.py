"""A chat client over an engine: messages in, calls out, every token on record.

One `ChatSession` serves one attempt. It renders the first prompt; after that, when the messages
extend what it already knows by its own reply and new observations, it appends those observations'
tokens to the recorded ids, so nothing sampled is ever encoded again. A conversation that does not
extend (another agent, an edited history) is rendered afresh and becomes a training row of its own.
`rollouts/rows.py` makes rows from the calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tutelage.engine.protocol import AsyncEngine, Request
from tutelage.policy.codec import Codec
from tutelage.seeds import SeedTree
from tutelage.types import Call, Message, Sampling, StopReason, ToolSpec


@dataclass(frozen=True, slots=True)
class _Thread:
    """The latest call of one agent: the messages it answered, with its reply, and their ids."""

    messages: tuple[Message, ...]
    tools: tuple[str, ...]
    ids: tuple[int, ...]
    ended: bool


class ChatSession:
    """A `ChatClient` for one attempt; `calls` is its record."""

    def __init__(
        self, engine: AsyncEngine, codec: Codec, *, seeds: SeedTree, name: str, order: int = 0
    ) -> None:
        self.calls: list[Call] = []
        self._engine, self._codec, self._seeds = engine, codec, seeds
        self._name, self._order = name, order
        self._started = 0
        self._agents: dict[str, None] = {}
        """Whose conversations the engine may keep, in order of appearance."""
        self._threads: dict[str, _Thread] = {}

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        sampling: Sampling,
        agent: str = "main",
    ) -> Call:
        """Send one request and record it; see `ChatClient`."""
        given, names = tuple(messages), tuple(t.name for t in tools)
        prompt = self._continue(agent, given, names)
        if prompt is None:
            prompt = self._codec.render(given, tools)
        # Taken before anything is awaited: agents of one attempt may call at the same time.
        index, self._started = self._started, self._started + 1
        self._agents[agent] = None
        seeds = self._seeds.child("call", index)
        sampled = await self._engine.sample(
            Request(prompt, sampling, seeds.value(), self._order, f"{self._name}/{agent}")
        )
        parsed = self._codec.parse(
            sampled.token_ids, lambda i: seeds.child("tool", i).id("call")[:21]
        )
        call = Call(
            id=seeds.id("call"),
            agent=agent,
            index=index,
            messages=given,
            prompt_ids=prompt,
            sampled=sampled,
            reply=parsed.message,
            sampling=sampling,
            parse_errors=parsed.errors,
        )
        self.calls.append(call)
        closed = sampled.stop_reason is StopReason.STOP and (
            sampled.token_ids[-1] in self._codec.eos_ids
        )
        self._threads[agent] = _Thread(
            (*given, parsed.message), names, prompt + sampled.token_ids, closed
        )
        return call

    def close(self) -> None:
        """Give the engine's slots back."""
        for agent in self._agents:
            self._engine.release(f"{self._name}/{agent}")

    def _continue(
        self, agent: str, given: tuple[Message, ...], tools: tuple[str, ...]
    ) -> tuple[int, ...] | None:
        """The recorded ids plus the new observations' ids, when `given` extends the record."""
        thread = self._threads.get(agent)
        if thread is None or not thread.ended or thread.tools != tools:
            return None
        known = len(thread.messages)
        if len(given) <= known or given[:known] != thread.messages:
            return None
        more = self._codec.observation(thread.messages[-1], given[known:])
        return None if more is None else thread.ids + more
