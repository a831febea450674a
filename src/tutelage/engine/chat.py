"""A chat client over an engine: messages in, calls out, every token on record.

One `ChatSession` serves one attempt. It renders the first prompt; after that, when the messages
continue a recorded call by new observations (`history.py`), it appends those observations' tokens
to the recorded ids, so nothing sampled is ever encoded again. A conversation that does not continue
any (another agent, an edited history) is rendered afresh and becomes a training row of its own.
Calls may run at the same time (`lanes.py`). `rollouts/rows.py` makes rows from the calls.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from tutelage.engine.attendance import here, standing_in
from tutelage.engine.history import History, Said
from tutelage.engine.lanes import Lane, Lanes
from tutelage.engine.protocol import Engine, OnToken, Request
from tutelage.policy.codec import Codec, Parsed
from tutelage.seeds import SeedTree
from tutelage.types import Call, Constraint, Message, Sampled, Sampling, StopReason, ToolSpec

_SEED_BITS = 63


class ChatSession:
    """A `ChatClient` for one attempt; `calls` is its record, in the order in which they ended.

    It belongs to the rollout in whose context it was made, whatever task calls it later.
    """

    def __init__(
        self, engine: Engine, codec: Codec, *, seeds: SeedTree, name: str, order: int = 0
    ) -> None:
        self.calls: list[Call] = []
        self._engine, self._codec, self._seeds = engine, codec, seeds
        self._name, self._order = name, order
        self._lanes = Lanes()
        self._histories: dict[str, History] = {}
        self._homes: dict[str, int] = {}
        """The lane in which each agent began."""
        self._sessions: dict[str, None] = {}
        """Names of the conversations that the engine may keep, in order of appearance."""
        self._rollout = here()

    @property
    def codec(self) -> Codec:
        """How the tokens of its calls read; the gateway streams text with it."""
        return self._codec

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        sampling: Sampling,
        agent: str = "main",
        constraint: Constraint | None = None,
        seed: int | None = None,
        on_token: OnToken | None = None,
    ) -> Call:
        """Send one request and record it; see `ChatClient`.

        `on_token` is called in the event loop with newly sampled ids as they come, the end-of-turn
        token among them; what it raises is raised here. Raises `ConstraintError` for a constraint
        that cannot be enforced.
        """
        given, told = tuple(messages), tuple(tools)
        grammar = self._codec.grammar(told, constraint)
        history = self._histories.setdefault(agent, History())
        prompt, lane = self._prompt(history, given, told)
        # Taken before anything is awaited: other calls of the attempt may begin meanwhile.
        seeds = lane.begin(self._seeds)
        started, clock = time.time(), time.perf_counter()
        request = Request(
            prompt,
            sampling,
            seeds.value(_SEED_BITS) if seed is None else seed % (1 << _SEED_BITS),
            self._order,
            self._session(agent, lane),
            lane.number,
            grammar,
            on_token,
        )
        try:
            with standing_in(self._rollout):
                sampled = await self._engine.sample(request)
        finally:
            lane.busy = False
        parsed = self._parsed(sampled, seeds, _may_call(told, constraint))
        call = Call(
            id=seeds.id("call"),
            agent=agent,
            index=len(self.calls),
            messages=given,
            prompt_ids=prompt,
            sampled=sampled,
            reply=parsed.message,
            sampling=sampling,
            parse_errors=parsed.errors,
            tools=told,
            constraint=constraint,
            started=started,
            seconds=time.perf_counter() - clock,
        )
        self.calls.append(call)
        ids = prompt + sampled.token_ids
        history.add(Said(given, told, call.reply, ids, self._ended(sampled), lane.number))
        return call

    def close(self) -> None:
        """Give the engine's slots back."""
        for session in self._sessions:
            self._engine.release(session)

    def _prompt(
        self, history: History, given: tuple[Message, ...], tools: tuple[ToolSpec, ...]
    ) -> tuple[tuple[int, ...], Lane]:
        """The ids to sample after, and the lane to do it in.

        They are recorded ids plus those of new observations, when `given` continues a call.
        """
        found = history.find(given, tools)
        if found is not None:
            said, known = found
            more = self._codec.observation(said.reply, given[known:])
            if more is not None:
                return said.ids + more, self._lanes.choose(said.lane)
        return self._codec.render(given, tools), self._lanes.choose(None)

    def _parsed(self, sampled: Sampled, seeds: SeedTree, calls: bool) -> Parsed:
        return self._codec.parse(
            sampled.token_ids, lambda i: seeds.child("tool", i).id("call")[:21], calls=calls
        )

    def _session(self, agent: str, lane: Lane) -> str:
        """The conversation whose cache the engine keeps: an agent's own, or one beside it."""
        home = self._homes.setdefault(agent, lane.number)
        name = f"{self._name}/{agent}" + ("" if lane.number == home else f"/{lane.number}")
        self._sessions[name] = None
        return name

    def _ended(self, sampled: Sampled) -> bool:
        ids = sampled.token_ids
        return sampled.stop_reason is StopReason.STOP and ids[-1] in self._codec.eos_ids


def _may_call(tools: Sequence[ToolSpec], constraint: Constraint | None) -> bool:
    """Whether what looks like a call is one; a JSON document may well spell one in its strings."""
    if constraint is None:
        return True
    return constraint.tool_choice != "none" and (bool(tools) or constraint.json_schema is None)
