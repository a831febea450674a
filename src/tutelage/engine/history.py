"""Which recorded call an incoming history continues: by identity and tool-call ids, never by text.

Agents of this process hand back the very `Message` that they were given. Others send their own
rendering of it: frameworks dump arguments again and rewrite texts, but they keep the ids of tool
calls. So an assistant turn is a recorded one when it is the same object or names the same calls;
every other message must be equal, or the recorded tokens are not those of this history. One call
may be continued any number of times. `chat.py` asks here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tutelage.types import Message, ToolSpec


@dataclass(frozen=True, slots=True)
class Said:
    """A finished call: what was asked, the reply, and the ids of both."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    reply: Message
    ids: tuple[int, ...]
    ended: bool
    """Whether the reply ended with an end-of-turn token, so that something can follow it."""
    lane: int


class History:
    """The finished calls of one agent."""

    def __init__(self) -> None:
        self._by_object: dict[int, Said] = {}
        self._by_calls: dict[frozenset[str], Said] = {}

    def add(self, said: Said) -> None:
        """Record a call. Its reply is kept, so that no other object can take its place."""
        self._by_object[id(said.reply)] = said
        if said.reply.tool_calls:
            self._by_calls[_ids(said.reply)] = said

    def find(self, given: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[Said, int] | None:
        """The latest recorded call that `given` continues, and how many messages it accounts for.

        None when there is none, when what comes before its reply is not what was recorded, and when
        nothing can follow the reply.
        """
        for at in range(len(given) - 2, -1, -1):
            said = self._said(given[at]) if given[at].role == "assistant" else None
            if said is None:
                continue
            same = (
                said.ended
                and said.tools == tuple(tools)
                and len(said.messages) == at
                and all(map(_same, said.messages, given))
            )
            return (said, at + 1) if same else None
        return None

    def _said(self, turn: Message) -> Said | None:
        found = self._by_object.get(id(turn))
        if found is None and turn.tool_calls:
            found = self._by_calls.get(_ids(turn))
        return found


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
