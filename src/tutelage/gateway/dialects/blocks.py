"""An assistant's turn as blocks: thoughts, texts, a refusal and calls, one after the other.

Responses and messages tell a turn so, as items and as content blocks. Of our own policy the text
comes first and the calls at the end; another server's pieces come as that sends them, and a block
whose rest may still come holds back those after it. `ReplyStream` hands out the pieces, and a
dialect's writer says how a block is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, Literal, Protocol, cast

from tutelage.bounded import parse_arguments
from tutelage.engine.asked import DETAILS
from tutelage.engine.pieces import joined_details
from tutelage.gateway.reply import ChatReply, Piece, cut_by, shown_content
from tutelage.replies import thought_of
from tutelage.types import JSON, Call

Kind = Literal["thought", "text", "refusal", "call"]


@dataclass(slots=True)
class TurnBlock:
    """A part of a turn, as far as it is known. The text of a call is its arguments. It is kept as
    the pieces that came: a copy for each would cost the square of a long one."""

    kind: Kind
    number: int
    """Its place among the blocks of its kind."""
    begin: InitVar[str] = ""
    """What is known of its text."""
    entries: list[JSON] = field(default_factory=list[JSON])
    """What is said of the tokens of a text."""
    annotations: list[JSON] = field(default_factory=list[JSON])
    """Where another server has a text from, in the words of chat completions."""
    source: str = ""
    """The field in which a thought came."""
    details: list[Any] = field(default_factory=list[Any])
    """What came beside the text of a thought, which its server wants back."""
    id: str = ""
    name: str = ""
    custom: bool = False
    size: int = field(default=0, init=False)
    """Characters of the text."""
    told: int = 0
    """How much of the text has gone out."""
    seen: int = 0
    """How much of it was read and is no object yet."""
    entries_told: int = 0
    _pieces: list[str] = field(default_factory=list[str], init=False)
    _untold: list[str] = field(default_factory=list[str], init=False)

    def __post_init__(self, begin: str) -> None:
        self.add(begin)

    @property
    def text(self) -> str:
        """The text so far."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def add(self, text: str) -> None:
        """More of the text."""
        self._pieces.append(text)
        self._untold.append(text)
        self.size += len(text)

    def become(self, text: str) -> None:
        """The whole text, which begins with what has gone out."""
        self._pieces, self._untold, self.size = [text], [text[self.told :]], len(text)

    def news(self) -> str:
        """The text that has not gone out, which then has."""
        new, self.told = "".join(self._untold), self.size
        self._untold = []
        return new

    def new_entries(self) -> list[JSON]:
        """The same of its tokens."""
        new, self.entries_told = self.entries[self.entries_told :], len(self.entries)
        return new

    @property
    def named(self) -> bool:
        """Whether it can be begun: a call once it is known which it is. Its name may come in
        pieces, the last with the first of its arguments."""
        return self.kind != "call" or bool(self.id and self.name and self.size)

    @property
    def whole(self) -> bool:
        """Whether no more of it can come once another has begun."""
        if self.kind != "call":
            return True
        try:
            return isinstance(parse_arguments(self.text), dict)
        except ValueError:
            return False


def annotations_of(fields: Mapping[str, Any]) -> list[JSON]:
    """What a message or delta of another server says of its text; what is no object is left out."""
    told = fields.get("annotations")
    listed = cast("list[Any]", told) if isinstance(told, list) else []
    return [cast("JSON", each) for each in listed if isinstance(each, dict)]


def details_of(fields: Mapping[str, Any]) -> list[Any]:
    """What comes beside the text of a thought among the fields of a message or delta."""
    told = fields.get(DETAILS)
    return cast("list[Any]", told) if isinstance(told, list) else []


def whole_turn(reply: ChatReply, choice: Call, *, details: bool = False) -> list[TurnBlock]:
    """The blocks of a finished turn that say something; with `details` of thoughts, if these are
    told."""
    thought, source = thought_of(choice.reply.extra)
    content, refusal = shown_content(reply, choice) or "", choice.reply.extra.get("refusal")
    cited = annotations_of(choice.reply.extra)
    told = details_of(choice.reply.extra) if details else []
    said = [
        TurnBlock("thought", 0, thought, source=source, details=told),
        TurnBlock("text", 0, content, reply.logprobs(choice) or [], cited),
        TurnBlock("refusal", 0, refusal if isinstance(refusal, str) else ""),
    ]
    calls = (
        TurnBlock("call", i, c.arguments, id=c.id, name=c.name, custom=bool(c.custom))
        for i, c in enumerate(choice.reply.tool_calls)
    )
    return [*(block for block in said if block.text or block.details), *calls]


def cut_block(reply: ChatReply, blocks: Sequence[TurnBlock]) -> TurnBlock | None:
    """The block of a turn in which it was cut off, None for one that is whole.

    Of our own policy a call that is not whole is text, which is told before the calls that are.
    """
    if not (blocks and reply.choices and cut_by(reply.choices[0])):
        return None
    texts = [] if reply.answered() else [block for block in blocks if block.kind == "text"]
    last = (texts or blocks)[-1]
    return None if last.kind == "call" and last.whole else last


class BlockWriter(Protocol):
    """How a dialect writes a block, as bytes to send."""

    def begin(self, index: int, block: TurnBlock) -> bytes:
        """A block has begun, the `index`-th."""
        ...

    def more(self, index: int, block: TurnBlock) -> bytes:
        """There is more of it, or more is said of its tokens."""
        ...

    def end(self, index: int, block: TurnBlock) -> bytes:
        """It has ended."""
        ...


class BlockStream:
    """The blocks of a turn as it comes."""

    def __init__(self, writer: BlockWriter, *, details: bool = False) -> None:
        """`details` says whether those of thoughts are told."""
        self._details = details
        self.blocks: list[TurnBlock] = []
        self._writer = writer
        self._at = 0
        """The first block that has not ended."""
        self._begun = 0
        self._calls: dict[int, TurnBlock] = {}
        self._loose: list[JSON] = []
        """What is said of tokens that are no text, until there is some."""
        self._noted: list[JSON] = []
        """Annotations that came before the text that they are of."""
        self._annotated = 0
        """How many have come."""

    def text(self, kind: Kind, text: str, entries: Sequence[JSON] = (), source: str = "") -> bytes:
        """More of a thought, a text or a refusal; an empty one begins it."""
        block = self._last(kind)
        block.add(text)
        block.source = source or block.source
        if kind == "text":
            block.entries += [*self._loose, *entries]
            block.annotations += self._noted
            self._loose, self._noted = [], []
        return self._flush()

    def piece(self, new: Piece) -> bytes:
        """A piece that another server said, which is no text."""
        self._loose += new.logprobs or ()
        out = b""
        self._annotate(annotations_of(new.fields))
        thought, source = thought_of(new.fields)
        if thought:
            out += self.text("thought", thought, source=source)
        if self._details and (details := details_of(new.fields)):
            out += self._detail(details)
        refusal = new.fields.get("refusal")
        if isinstance(refusal, str) and refusal:
            out += self.text("refusal", refusal)
        for part in new.fields.get("tool_calls") or ():
            out += self._part(part)
        return out

    def finish(self, rest: Piece, turn: Sequence[TurnBlock]) -> bytes:
        """What has not gone out of the whole `turn`, of whose text the `rest` is left; then all
        blocks have ended."""
        told = {block.kind for block in self.blocks}
        known = [self._calls[at] for at in sorted(self._calls)]
        out = b""
        for block in turn:
            if block.kind == "call":
                at = block.number
                self._is(known[at] if at < len(known) else self._new("call"), block)
            elif block.kind == "text":
                out += self._rest(rest)
                texts = [each for each in self.blocks if each.kind == "text"]
                if texts:
                    left = block.annotations[self._annotated :]
                    texts[-1].annotations += [*self._noted, *left]
            elif block.kind not in told:
                if block.details:
                    out += self._detail(block.details)
                out += self.text(block.kind, block.text, source=block.source)
        return out + self._flush(ended=True)

    def _detail(self, details: list[Any]) -> bytes:
        """More that comes beside the text of a thought."""
        block = self._last("thought")
        block.details = joined_details(block.details, details)
        return self._flush()

    def _annotate(self, annotations: Sequence[JSON]) -> None:
        """Note what is said of the text that comes, or comes next."""
        self._annotated += len(annotations)
        still = bool(self.blocks) and self.blocks[-1].kind == "text"
        (self.blocks[-1].annotations if still else self._noted).extend(annotations)

    def _rest(self, rest: Piece) -> bytes:
        """The end of the text; without any, what is left to say of tokens: of a text that is open
        it is told with that, of one that has ended the blocks have it, for the whole at the end."""
        entries = rest.logprobs or ()
        if rest.text or (entries and not self.blocks):
            return self.text("text", rest.text, entries)
        texts = [block for block in self.blocks if block.kind == "text"]
        if texts:
            texts[-1].entries += [*self._loose, *entries]
            self._loose = []
        return b""

    def _is(self, block: TurnBlock, call: TurnBlock) -> None:
        """A call is the one that came out."""
        block.id, block.name, block.custom = call.id, call.name, call.custom
        block.become(call.text)

    def _part(self, part: JSON) -> bytes:
        at = int(part.get("index") or 0)
        block = self._calls.get(at)
        if block is None:
            block = self._calls[at] = self._new("call")
        block.custom = block.custom or bool(part.get("custom"))
        said = part.get("custom") or part.get("function") or {}
        block.id = str(part.get("id") or block.id)
        block.name += said.get("name") or ""
        block.add(said.get("input" if block.custom else "arguments") or "")
        return self._flush()

    def _last(self, kind: Kind) -> TurnBlock:
        last = self.blocks[-1] if self.blocks else None
        return last if last is not None and last.kind == kind else self._new(kind)

    def _new(self, kind: Kind) -> TurnBlock:
        self.blocks.append(TurnBlock(kind, sum(block.kind == kind for block in self.blocks)))
        return self.blocks[-1]

    def _flush(self, *, ended: bool = False) -> bytes:
        """What can go out of the first block that has not ended, and of those after it."""
        out = b""
        while self._at < len(self.blocks):
            block, last = self.blocks[self._at], self._at + 1 == len(self.blocks)
            if not (ended or block.named):
                break
            if self._begun == self._at:
                self._begun += 1
                out += self._writer.begin(self._at, block)
            out += self._writer.more(self._at, block)
            if not ended and (last or not block.whole):
                break
            out += self._writer.end(self._at, block)
            self._at += 1
        return out
