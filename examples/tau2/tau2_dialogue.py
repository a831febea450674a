"""The dialogue of a customer service agent with a simulated customer, one message at a time.

The protocol is tau2-bench's: the assistant greets, the customer answers; the assistant then either
calls tools or writes to the customer, who ends the talk with a stop word. Both are plain clients of
Chat Completions. What they talk about, and who grades it, is a `World`: `tau2_benchmark.py` is the
real one, `tau2_small.py` a small one. `train_tau2_agent.py` has the agent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx2

from tutelage import LLM

JSON = dict[str, Any]

GREETING = "Hi! How can I help you today?"
STOP_WORDS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")
MAX_ERRORS = 10
"""Failed tool calls of one dialogue, after which it is over."""


class World(Protocol):
    """One task: what both sides are told, the tools over a database of its own, and the grade."""

    @property
    def assistant_prompt(self) -> str:
        """The assistant's system prompt, policy included."""
        ...

    @property
    def user_prompt(self) -> str:
        """The customer's system prompt: guidelines and the task's scenario."""
        ...

    @property
    def tools(self) -> Sequence[JSON]:
        """The assistant's tools, in the form of Chat Completions."""
        ...

    def call(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """Run a tool on the database; its result as text, and whether it failed."""
        ...

    def evaluate(self, messages: Sequence[JSON]) -> Mapping[str, float]:
        """Grade a dialogue that the customer ended: `reward`, and its named parts."""
        ...


@dataclass(slots=True)
class Dialogue:
    """What was said, in the form of Chat Completions, and why it ended."""

    messages: list[JSON] = field(default_factory=list[JSON])
    stop: str = "max_steps"
    """`user_stop`, `max_steps`, `too_many_errors` or `agent_error` (an empty message)."""


@dataclass(frozen=True, slots=True)
class Client:
    """A model behind an OpenAI-compatible endpoint; its URL and key say whose calls these are."""

    llm: LLM
    http: httpx2.AsyncClient

    async def complete(self, messages: Sequence[JSON], tools: Sequence[JSON] = ()) -> JSON:
        """The next message. Raises `httpx2.HTTPStatusError` with the server's words."""
        body: JSON = {"model": self.llm.model, "messages": list(messages)}
        body |= {"max_tokens": self.llm.max_tokens} if self.llm.max_tokens else {}
        body |= {"tools": list(tools)} if tools else {}
        done = await self.http.post(
            f"{self.llm.endpoint}/chat/completions",
            json=body,
            headers={"authorization": f"Bearer {self.llm.api_key}"},
        )
        if done.is_error:
            raise httpx2.HTTPStatusError(done.text, request=done.request, response=done)
        return done.json()["choices"][0]["message"]


async def talk(world: World, assistant: Client, user: Client, *, max_steps: int = 20) -> Dialogue:
    """Play one dialogue of at most `max_steps` messages after the greeting."""
    dialogue = Dialogue([{"role": "assistant", "content": GREETING}])
    said, errors = dialogue.messages, 0
    next_is_user = True
    for _ in range(max_steps):
        if next_is_user:
            reply = await user.complete(
                [{"role": "system", "content": world.user_prompt}, *_as_the_user_sees(said)]
            )
            text = reply.get("content") or ""
            said.append({"role": "user", "content": text})
            if any(word in text for word in STOP_WORDS):
                dialogue.stop = "user_stop"
                return dialogue
            next_is_user = False
            continue
        system = {"role": "system", "content": world.assistant_prompt}
        reply = await assistant.complete([system, *said], world.tools)
        calls = reply.get("tool_calls") or []
        if not calls and not (reply.get("content") or "").strip():
            dialogue.stop = "agent_error"
            return dialogue
        said.append({"role": "assistant", "content": reply.get("content")})
        if calls:
            said[-1]["tool_calls"] = calls
        for call in calls:
            text, failed = world.call(call["id"], call["function"]["name"], arguments_of(call))
            said.append({"role": "tool", "tool_call_id": call["id"], "content": text})
            errors += failed
        if errors >= MAX_ERRORS:
            dialogue.stop = "too_many_errors"
            return dialogue
        next_is_user = not calls
    return dialogue


def arguments_of(call: Mapping[str, Any]) -> JSON:
    """The arguments of a tool call; what is no JSON object counts as none, and the tool says so."""
    try:
        found = json.loads(call["function"]["arguments"])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _as_the_user_sees(messages: Sequence[JSON]) -> list[JSON]:
    """The talk from the other side: roles are swapped, tools are not seen."""
    other = {"assistant": "user", "user": "assistant"}
    return [
        {"role": other[m["role"]], "content": m["content"]}
        for m in messages
        if m["role"] in other and not m.get("tool_calls")
    ]
