"""What Anthropic's Messages answer: the object, its content blocks, the events of a stream, errors.

A thought of our own policy is split from the text, with a signature that is the text which was
sampled; one of a server behind has the name of the field in which that told it. `messages.py` reads
the requests, `blocks.py` says which parts a turn has.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence

from tutelage.bounded import parse_arguments
from tutelage.gateway.dialects.blocks import BlockStream, TurnBlock, whole_turn
from tutelage.gateway.dialects.unfinished import begins_an_object, ending, worth_a_look
from tutelage.gateway.errors import ApiError
from tutelage.gateway.reply import ChatReply, Piece, event, finish_reason, stopped_by
from tutelage.replies import ThoughtStream
from tutelage.types import JSON, Call

_OURS = "tutelage:"  # what a signature of this server begins with
_ENDS = {"tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}


def written(reply: ChatReply) -> JSON:
    """The `message` object."""
    (choice,) = reply.choices
    split = reply.thoughts()
    blocks: list[TurnBlock] = []
    for block in whole_turn(reply, choice):
        if block.kind != "text":
            blocks.append(block)
            continue
        thought, text = split.feed(block.text, last=True)
        if split.shown:
            blocks.append(TurnBlock("thought", 0, thought))
        blocks += [TurnBlock("text", 0, text)] if text else []
    return {
        **_object(reply),
        "content": [_written(block, split, reply) for block in blocks],
        **_ending(reply, choice),
    }


def _object(reply: ChatReply) -> JSON:
    """The object as it begins."""
    return {
        "id": reply.answer.id,
        "type": "message",
        "role": "assistant",
        "model": reply.request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(reply),
    }


def _usage(reply: ChatReply) -> JSON:
    """What was used. Tokens that another server had in its cache are counted by themselves."""
    prompt, sampled = reply.usage if reply.choices else (reply.answer.prompt_tokens, 0)
    cached = min(prompt, reply.detail("prompt", "cached_tokens"))
    thought = reply.detail("completion", "reasoning_tokens")
    return {
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "input_tokens": prompt - cached,
        "output_tokens": sampled,
        **({"output_tokens_details": {"thinking_tokens": thought}} if thought else {}),
    }


def _ending(reply: ChatReply, choice: Call) -> JSON:
    stop = stopped_by(reply, choice)
    reason = finish_reason(choice)
    if reason == "stop" and choice.reply.extra.get("refusal"):
        return {"stop_reason": "refusal", "stop_sequence": None}
    if reason == "stop" and stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    return {"stop_reason": _ENDS.get(reason, "end_turn"), "stop_sequence": None}


def _written(block: TurnBlock, split: ThoughtStream, reply: ChatReply) -> JSON:
    if block.kind == "thought":
        text = "" if reply.request.omits_thoughts else block.text
        return {"type": "thinking", "thinking": text, "signature": _signed(block, split)}
    if block.kind == "call":
        return {"type": "tool_use", "id": block.id, "name": block.name, "input": _input(block)}
    return {"type": "text", "text": block.text}


def _input(block: TurnBlock) -> JSON:
    """Arguments as an object. What the model wrote and is none is one field of it."""
    if not block.text.strip():
        return {}
    try:
        values = parse_arguments(block.text)
    except ValueError:
        values = block.text
    return values if isinstance(values, dict) else {"arguments": values}


def _rest(block: TurnBlock) -> str:
    """What of the arguments of a call has not gone out at its end."""
    if block.whole:
        return block.news()
    told, whole = block.text[: block.told], _input(block)
    return ending(told, whole) if told else json.dumps(whole, ensure_ascii=False)


def _signed(block: TurnBlock, split: ThoughtStream) -> str:
    return block.source or _OURS + base64.b64encode(split.raw.encode()).decode()


def sampled_text(signature: str) -> str:
    """The sampled text behind a signature of this server."""
    if not signature.startswith(_OURS):
        return ""
    try:
        return base64.b64decode(signature.removeprefix(_OURS), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


class MessageEvents:
    """The events of a stream; see `Writer` and `BlockWriter`."""

    tells_fields = True

    def __init__(self, reply: ChatReply) -> None:
        self._reply = reply
        self._split = reply.thoughts()
        self._begun = False
        self._blocks = BlockStream(self)

    def text(self, index: int, new: Piece) -> bytes:
        """More of a thought, of the text, or of tool uses."""
        if new.fields:
            return self._begin() + self._blocks.piece(new)
        return self._begin() + self._parts(*self._split.feed(new.text))

    def finish(self, reply: ChatReply, rests: Sequence[Piece]) -> bytes:
        """What is left, the tool uses, and the end."""
        (choice,) = reply.choices
        out = self._begin() + self._parts(*self._split.feed(rests[0].text, last=True))
        out += self._blocks.finish(Piece(""), whole_turn(reply, choice))
        ending = {"type": "message_delta", "delta": _ending(reply, choice), "usage": _usage(reply)}
        out += event(ending, "message_delta")
        return out + event({"type": "message_stop"}, "message_stop")

    def failed(self, error: ApiError) -> bytes:
        """What a stream that breaks ends with."""
        return event(error.anthropics_body(), "error")

    def begin(self, index: int, block: TurnBlock) -> bytes:
        """A new content block."""
        begun: JSON
        if block.kind == "call":
            begun = {"type": "tool_use", "id": block.id, "name": block.name, "input": {}}
        elif block.kind == "thought":
            begun = {"type": "thinking", "thinking": "", "signature": ""}
        else:
            begun = {"type": "text", "text": ""}
        data = {"type": "content_block_start", "index": index, "content_block": begun}
        return event(data, "content_block_start")

    def more(self, index: int, block: TurnBlock) -> bytes:
        """More of it. A tool's input is an object: what does not begin as one waits for its end."""
        if block.kind == "call":
            if block.custom or not worth_a_look(block.size, max(block.told, block.seen)):
                return b""
            if not begins_an_object(block.text):
                block.seen = block.size
                return b""
            new = block.news()
            delta = {"type": "input_json_delta", "partial_json": new}
        else:
            new, kind = block.news(), "thinking" if block.kind == "thought" else "text"
            if kind == "thinking" and self._reply.request.omits_thoughts:
                return b""
            delta = {"type": f"{kind}_delta", kind: new}
        return self._delta(index, delta) if new else b""

    def end(self, index: int, block: TurnBlock) -> bytes:
        """It has ended."""
        out = b""
        if block.kind == "thought":
            signature = _signed(block, self._split)
            out = self._delta(index, {"type": "signature_delta", "signature": signature})
        elif block.kind == "call" and (said := _rest(block)):
            out = self._delta(index, {"type": "input_json_delta", "partial_json": said})
        return out + event({"type": "content_block_stop", "index": index}, "content_block_stop")

    def _begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        return event({"type": "message_start", "message": _object(self._reply)}, "message_start")

    def _parts(self, thought: str, text: str) -> bytes:
        """More of what our own policy thinks and says; an empty thought is there to be restored."""
        empty = not (thought or self._blocks.blocks) and self._split.ended
        out = self._blocks.text("thought", thought) if thought or empty else b""
        return out + (self._blocks.text("text", text) if text else b"")

    def _delta(self, index: int, delta: JSON) -> bytes:
        data = {"type": "content_block_delta", "index": index, "delta": delta}
        return event(data, "content_block_delta")
