"""An assistant turn as a sequence of blocks: thinking, text, and tool calls.

The Responses and Messages APIs represent a turn in this way, as items and as content blocks. Calls
are sent as a whole at the end. `BlockWriter` streams pieces of thoughts and texts, and a dialect's
writer formats the blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tutelage.gateway.completions import Delta, PendingCompletion
from tutelage.gateway.reply import Writer, truncation_reason, visible_content
from tutelage.replies import read_thought
from tutelage.types import JSON, Call

Kind = Literal["thought", "text", "call"]


@dataclass(slots=True)
class TurnBlock:
    """A block of an assistant turn, which may be incomplete. The text of a tool call is its
    arguments."""

    kind: Kind
    text: str = ""
    entries: list[JSON] = field(default_factory=list[JSON])
    """Log-probability entries of a text's tokens."""
    number: int = 0
    """Index among the tool calls."""
    source: str = ""
    """The field in which an upstream server sent a thought."""
    id: str = ""
    name: str = ""


def turn_blocks(reply: PendingCompletion, choice: Call) -> list[TurnBlock]:
    """Return the non-empty blocks of a finished assistant turn."""
    thought, source = read_thought(choice.reply.extra)
    text = visible_content(reply, choice) or str(choice.reply.extra.get("refusal") or "")
    blocks = [
        TurnBlock("thought", thought, source=source),
        TurnBlock("text", text, reply.logprobs(choice) or []),
    ]
    calls = (
        TurnBlock("call", c.arguments, number=i, id=c.id, name=c.name)
        for i, c in enumerate(choice.reply.tool_calls)
    )
    return [*(block for block in blocks if block.text), *calls]


def truncated_block(reply: PendingCompletion, blocks: Sequence[TurnBlock]) -> TurnBlock | None:
    """Return the block in which an assistant turn was truncated, or None if it is complete.

    An incomplete call is sent as text, before the complete calls.
    """
    if not (blocks and reply.calls and truncation_reason(reply.calls[0])):
        return None
    texts = [block for block in blocks if block.kind == "text"]
    return (texts or blocks)[-1]


class BlockWriter(Writer):
    """Writer that streams the blocks of an assistant turn one after another."""

    def __init__(self, reply: PendingCompletion) -> None:
        super().__init__(reply)
        self.blocks: list[TurnBlock] = []
        self._open = False

    def begin(self, index: int, block: TurnBlock) -> bytes:
        """Return the stream events that start the `index`-th block."""
        raise NotImplementedError

    def extend(self, index: int, block: TurnBlock, text: str, logprobs: Sequence[JSON]) -> bytes:
        """Return the stream events for new text or log-probability entries of a block."""
        raise NotImplementedError

    def end(self, index: int, block: TurnBlock) -> bytes:
        """Return the stream events that end a block."""
        raise NotImplementedError

    def add(self, kind: Kind, text: str, logprobs: Sequence[JSON] = (), source: str = "") -> bytes:
        """Append text, which may be empty, to a thinking or text block. Starts the block if
        needed."""
        out = b""
        if not (self._open and self.blocks[-1].kind == kind):
            out = self._end_block() + self._begin_block(TurnBlock(kind, source=source))
        block = self.blocks[-1]
        block.text += text
        block.entries += logprobs
        return out + self.extend(len(self.blocks) - 1, block, text, logprobs)

    def add_remaining(self, delta: Delta, blocks: Sequence[TurnBlock]) -> bytes:
        """Send the remaining text and the remaining blocks of a finished turn, and end all
        blocks."""
        sent_kinds, out = {block.kind for block in self.blocks}, b""
        for block in blocks:
            if block.kind == "call":
                out += self._end_block() + self._begin_block(block)
                out += self.extend(len(self.blocks) - 1, block, block.text, ())
            elif block.kind == "text" and (delta.text or delta.logprobs):
                out += self.add("text", delta.text, delta.logprobs or ())
            elif block.kind not in sent_kinds:
                out += self.add(block.kind, block.text, source=block.source)
        return out + self._end_block()

    def _begin_block(self, block: TurnBlock) -> bytes:
        self.blocks.append(block)
        self._open = True
        return self.begin(len(self.blocks) - 1, block)

    def _end_block(self) -> bytes:
        was_open, self._open = self._open, False
        return self.end(len(self.blocks) - 1, self.blocks[-1]) if was_open else b""
