"""An assistant's turn as blocks: a thought, a text, and calls, one after the other.

Responses and messages tell a turn so, as items and as content blocks. Calls come whole at the end.
`ReplyStream` hands out the pieces of thoughts and texts, and a dialect's writer says how a block is
told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tutelage.gateway.completions import PendingCompletion, Piece
from tutelage.gateway.reply import cut_by, shown_content
from tutelage.replies import thought_of
from tutelage.types import JSON, Call

Kind = Literal["thought", "text", "call"]


@dataclass(slots=True)
class TurnBlock:
    """A part of a turn, as far as it is known. The text of a call is its arguments."""

    kind: Kind
    text: str = ""
    entries: list[JSON] = field(default_factory=list[JSON])
    """What is said of the tokens of a text."""
    number: int = 0
    """Its place among the calls."""
    source: str = ""
    """The field in which another server told a thought."""
    id: str = ""
    name: str = ""


def whole_turn(reply: PendingCompletion, choice: Call) -> list[TurnBlock]:
    """Return the blocks of a finished turn that say something."""
    thought, source = thought_of(choice.reply.extra)
    said = shown_content(reply, choice) or str(choice.reply.extra.get("refusal") or "")
    blocks = [
        TurnBlock("thought", thought, source=source),
        TurnBlock("text", said, reply.logprobs(choice) or []),
    ]
    calls = (
        TurnBlock("call", c.arguments, number=i, id=c.id, name=c.name)
        for i, c in enumerate(choice.reply.tool_calls)
    )
    return [*(block for block in blocks if block.text), *calls]


def cut_block(reply: PendingCompletion, blocks: Sequence[TurnBlock]) -> TurnBlock | None:
    """Return the block of a turn in which it was cut off, None for one that is whole.

    A call that is not whole is text, which is told before the calls that are.
    """
    if not (blocks and reply.calls and cut_by(reply.calls[0])):
        return None
    texts = [block for block in blocks if block.kind == "text"]
    return (texts or blocks)[-1]


class BlockWriter(Protocol):
    """How a dialect writes a block, as bytes to send."""

    def begin(self, index: int, block: TurnBlock) -> bytes:
        """Return what says that the `index`-th block has begun."""
        ...

    def more(self, index: int, block: TurnBlock, new: str, entries: Sequence[JSON]) -> bytes:
        """Return what says that there is more of it, or that more is said of its tokens."""
        ...

    def end(self, index: int, block: TurnBlock) -> bytes:
        """Return what says that it has ended."""
        ...


class BlockStream:
    """The blocks of a turn as it comes."""

    def __init__(self, writer: BlockWriter) -> None:
        self.blocks: list[TurnBlock] = []
        self._writer, self._open = writer, False

    def add(self, kind: Kind, new: str, entries: Sequence[JSON] = (), source: str = "") -> bytes:
        """Take more of a thought or a text; an empty one begins it."""
        out = b""
        if not (self._open and self.blocks[-1].kind == kind):
            out = self.end() + self._begin(TurnBlock(kind, source=source))
        block = self.blocks[-1]
        block.text += new
        block.entries += entries
        return out + self._writer.more(len(self.blocks) - 1, block, new, entries)

    def finish(self, rest: Piece, turn: Sequence[TurnBlock]) -> bytes:
        """Take the whole `turn`, of whose text the `rest` has not gone out; then all blocks have
        ended."""
        told, out = {block.kind for block in self.blocks}, b""
        for block in turn:
            if block.kind == "call":
                out += self.end() + self._begin(block)
                out += self._writer.more(len(self.blocks) - 1, block, block.text, ())
            elif block.kind == "text" and (rest.text or rest.logprobs):
                out += self.add("text", rest.text, rest.logprobs or ())
            elif block.kind not in told:
                out += self.add(block.kind, block.text, source=block.source)
        return out + self.end()

    def end(self) -> bytes:
        """End the block that is open, if one is."""
        if not self._open:
            return b""
        self._open = False
        return self._writer.end(len(self.blocks) - 1, self.blocks[-1])

    def _begin(self, block: TurnBlock) -> bytes:
        self.blocks.append(block)
        self._open = True
        return self._writer.begin(len(self.blocks) - 1, block)
