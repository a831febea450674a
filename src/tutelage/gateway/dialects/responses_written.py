"""What responses answer: the object, its items, and the events of a stream.

The events are those that every SDK needs. `responses.py` reads the requests, `blocks.py` says which
parts a turn has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tutelage.engine.asked import DETAILS
from tutelage.gateway.dialects.blocks import BlockStream, TurnBlock, cut_block, whole_turn
from tutelage.gateway.errors import ApiError
from tutelage.gateway.reply import DONE, ChatReply, Piece, cut_by, event, with_bytes
from tutelage.types import JSON, THOUGHTS, Call, Sampling

PREFIX = "resp_"
_CODES = {"rate_limit_error": "rate_limit_exceeded", "invalid_request_error": "invalid_prompt"}
"""What a response that failed says of an error, by the type that errors have elsewhere."""
_IDS = {"thought": "rs_", "text": "msg_", "refusal": "msg_", "call": "fc_"}


def written(reply: ChatReply) -> JSON:
    """The `response` object."""
    return _finished(reply, _turn(reply, reply.choices[0]))


def _turn(reply: ChatReply, choice: Call) -> list[TurnBlock]:
    """The blocks of a turn; one that says nothing is an empty text."""
    return whole_turn(reply, choice, details=True) or [
        TurnBlock("text", 0, "", reply.logprobs(choice) or [])
    ]


def _finished(reply: ChatReply, blocks: Sequence[TurnBlock]) -> JSON:
    """The object with the items that these blocks are."""
    cut = cut_by(reply.choices[0])
    prompt, sampled = reply.usage
    left = cut_block(reply, blocks)
    more = next((told.more for told in reply.answered()), {})
    tier = {"service_tier": more["service_tier"]} if more.get("service_tier") else {}
    cached = reply.detail("prompt", "cached_tokens")
    return {
        **_object(reply, "incomplete" if cut else "completed"),
        **tier,
        "incomplete_details": {"reason": cut} if cut else None,
        "output": [
            _item(reply, block, "incomplete" if block is left else "completed") for block in blocks
        ],
        "usage": None
        if reply.uncounted
        else {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {
                "reasoning_tokens": reply.detail("completion", "reasoning_tokens")
            },
            "total_tokens": prompt + sampled,
        },
    }


def _object(reply: ChatReply, status: str) -> JSON:
    """The object without what comes at the end."""
    return {
        "id": reply.answer.id,
        "object": "response",
        "created_at": reply.answer.created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": reply.request.model,
        "output": [],
        "reasoning": {"effort": None, "summary": None},
        **_drawn(reply),
        "usage": None,
        **reply.request.echo,
    }


def _drawn(reply: ChatReply) -> JSON:
    """From which distribution it was sampled. A run in training has its own, which is known at the
    end; what was left to another server is not known."""
    names, passed = ("temperature", "top_p"), reply.request.passed
    if not reply.choices and reply.answer.model.finishes:
        return dict.fromkeys(names)
    sampling = reply.choices[0].sampling if reply.choices else reply.request.sampling
    known = {name: getattr(sampling, name) for name in names}
    if passed is None:
        return known
    unsaid = {n: None if known[n] == getattr(Sampling(), n) else known[n] for n in names}
    return unsaid | {n: passed[n] for n in names if passed.get(n) is not None}


def _id(reply: ChatReply, block: TurnBlock) -> str:
    """The id of a block's item. A refusal is a message too, and no text has its id."""
    own = reply.answer.id.replace(PREFIX, _IDS[block.kind], 1)
    if block.kind == "refusal":
        return f"{own}-refusal-{block.number}"
    return own if block.kind != "call" and block.number == 0 else f"{own}-{block.number}"


def _item(reply: ChatReply, block: TurnBlock, status: str) -> JSON:
    """A block as an item of the output."""
    item: JSON = {"id": _id(reply, block)}
    if block.kind == "call":
        item |= {"call_id": block.id, "name": block.name}
        if block.custom:
            return item | {"type": "custom_tool_call", "input": block.text}
        return item | {"type": "function_call", "status": status, "arguments": block.text}
    silent = status == "in_progress" or (block.kind == "thought" and not block.text)
    content = [] if silent else [_part(block)]
    if block.kind == "thought":
        if block.source not in ("", THOUGHTS[0]):  # a client sends it back, and so it goes back
            item["encrypted_content"] = block.source
        if block.details:
            item[DETAILS] = block.details
        return item | {"type": "reasoning", "status": status, "summary": [], "content": content}
    return item | {"type": "message", "status": status, "role": "assistant", "content": content}


def _part(block: TurnBlock) -> JSON:
    """The part of the content that a block is."""
    if block.kind == "thought":
        return {"type": "reasoning_text", "text": block.text}
    if block.kind == "refusal":
        return {"type": "refusal", "refusal": block.text}
    logprobs = with_bytes(block.entries)
    annotations = list(map(_annotation, block.annotations))
    out: JSON = {"type": "output_text", "text": block.text, "annotations": annotations}
    return out | {"logprobs": logprobs}


def _annotation(told: JSON) -> JSON:
    """An annotation of a chat completion, whose fields stand under its type there."""
    match told:
        case {"type": str(kind)} if isinstance(told.get(kind), dict):
            return {"type": kind, **told[kind]}
        case _:
            return told


_EVENTS = {
    "thought": "response.reasoning_text",
    "text": "response.output_text",
    "refusal": "response.refusal",
    "call": "response.function_call_arguments",
}


def _name(block: TurnBlock) -> str:
    """What its events are called."""
    return "response.custom_tool_call_input" if block.custom else _EVENTS[block.kind]


class ResponseEvents:
    """The events of a stream, each with its `sequence_number`; see `Writer` and `BlockWriter`."""

    tells_fields = True

    def __init__(self, reply: ChatReply) -> None:
        self._reply = reply
        self._number = 0
        self._begun = False
        self._blocks = BlockStream(self, details=True)

    def text(self, index: int, new: Piece) -> bytes:
        """More text of the message, or of a thought or calls."""
        out = self._begin()
        if new.fields:
            return out + self._blocks.piece(new)
        return out + self._blocks.text("text", new.text, new.logprobs or ())

    def finish(self, reply: ChatReply, rests: Sequence[Piece]) -> bytes:
        """What is left of the items, and the whole response."""
        self._reply = reply
        turn = _turn(reply, reply.choices[0])
        out = self._begin()
        if not (self._blocks.blocks or turn[0].text or turn[0].kind != "text"):
            out += self._blocks.text("text", "")
        out += self._blocks.finish(rests[0], turn)
        final = _finished(reply, self._blocks.blocks)
        kind = "response.incomplete" if final["status"] == "incomplete" else "response.completed"
        return out + self._events((kind, {"response": final})) + DONE

    def failed(self, error: ApiError) -> bytes:
        """What a stream that breaks ends with."""
        fields = {"code": error.code, "message": error.message, "param": error.param}
        final = _object(self._reply, "failed")
        code = _CODES.get(error.type, "server_error")
        final["error"] = {"code": code, "message": fields["message"]}
        return self._events(("error", fields), ("response.failed", {"response": final}))

    def begin(self, index: int, block: TurnBlock) -> bytes:
        """A new item."""
        empty = replace(block, begin="", entries=[], annotations=[], details=[])
        item = _item(self._reply, empty, "in_progress")
        added = ("response.output_item.added", {"output_index": index, "item": item})
        if block.kind == "call":
            return self._events(added)
        part = {**self._where(index, block), "part": _part(empty)}
        return self._events(added, ("response.content_part.added", part))

    def more(self, index: int, block: TurnBlock) -> bytes:
        """More of its text or arguments."""
        new, where = block.news(), self._where(index, block)
        told: JSON = {**where, "delta": new}
        if block.kind == "text":
            entries = block.new_entries()
            told["logprobs"] = with_bytes(entries)
            return self._events((_EVENTS["text"] + ".delta", told)) if new or entries else b""
        return self._events((_name(block) + ".delta", told)) if new else b""

    def end(self, index: int, block: TurnBlock) -> bytes:
        """It has ended."""
        cut = cut_block(self._reply, self._blocks.blocks)
        item = _item(self._reply, block, "incomplete" if block is cut else "completed")
        where = self._where(index, block)
        done = ("response.output_item.done", {"output_index": index, "item": item})
        if block.kind == "call":
            said = "input" if block.custom else "arguments"
            named = {} if block.custom else {"name": block.name}
            whole = {**where, **named, said: block.text}
            return self._events((_name(block) + ".done", whole), done)
        part = _part(block)
        whole = {k: v for k, v in part.items() if k in ("text", "logprobs", "refusal")}
        added = (
            {**where, "annotation_index": i, "annotation": annotation}
            for i, annotation in enumerate(part.get("annotations", ()))
        )
        return self._events(
            *((_EVENTS["text"] + ".annotation.added", each) for each in added),
            (_name(block) + ".done", {**where, **whole}),
            ("response.content_part.done", {**where, "part": part}),
            done,
        )

    def _where(self, index: int, block: TurnBlock) -> JSON:
        where: JSON = {"item_id": _id(self._reply, block), "output_index": index}
        return where if block.kind == "call" else {**where, "content_index": 0}

    def _begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        running = {"response": _object(self._reply, "in_progress")}
        return self._events(("response.created", running), ("response.in_progress", running))

    def _events(self, *events: tuple[str, JSON]) -> bytes:
        out = b""
        for kind, data in events:
            out += event({"type": kind, "sequence_number": self._number, **data}, kind)
            self._number += 1
        return out
