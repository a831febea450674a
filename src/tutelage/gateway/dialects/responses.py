"""OpenAI's Responses API, `POST /v1/responses`: its object, items and stream events.

A conversation is kept with its last answer, so `previous_response_id` restores the messages exactly
as recorded. Items that a client sends back are merged again: a thought, a message and the calls
beside it form one assistant turn. `chat_completions.py` is the other API of OpenAI.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, Field, StrictBool, StrictInt, StrictStr

from tutelage.gateway.completions import AnswerCache, Delta, PendingCompletion
from tutelage.gateway.dialects.blocks import BlockWriter, TurnBlock, truncated_block, turn_blocks
from tutelage.gateway.dialects.dialect import Dialect
from tutelage.gateway.dialects.field_errors import missing_field
from tutelage.gateway.dialects.reading import (
    CALL_FIELDS,
    MAX_MESSAGES,
    MAX_TOOLS,
    PARTS,
    UNSUPPORTED,
    Arguments,
    Content,
    FunctionTool,
    Items,
    MessageObject,
    OutputOptions,
    RequestReader,
    TopLogprobs,
    call_fields,
    read_parts,
    reply_schema,
    validate,
)
from tutelage.gateway.errors import ApiError, bad_request
from tutelage.gateway.reply import DONE, event, truncation_reason
from tutelage.gateway.request import ChatRequest
from tutelage.types import JSON, THOUGHTS, Message, Sampling, ToolCall

if TYPE_CHECKING:
    from tutelage.gateway.session import AttemptSession

PREFIX = "resp_"
_LOGPROBS = "message.output_text.logprobs"
_CODES = {"rate_limit_error": "rate_limit_exceeded", "invalid_request_error": "invalid_prompt"}
"""Error codes of failed responses, by OpenAI's error type."""
_IDS = {"thought": "rs_", "text": "msg_", "call": "fc_"}
_EVENTS = {
    "thought": "response.reasoning_text",
    "text": "response.output_text",
    "call": "response.function_call_arguments",
}

_ECHOED: Mapping[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "user": None,
}
"""Request fields that the reply repeats, with their defaults."""


class _Request(RequestReader):
    refused: ClassVar[Mapping[str, Sequence[Any]]] = {
        **UNSUPPORTED,
        "prompt_logprobs": (),
        "background": (False,),
        "conversation": (),
        "prompt": (),
        "context_management": ([],),
        "messages": (),
        "n": (1,),
    }
    schema_name = "text.format"
    input: Annotated[
        list[Any],
        BeforeValidator(lambda v: [{"role": "user", "content": v}] if isinstance(v, str) else v),
    ] = Field(default_factory=list[Any], max_length=MAX_MESSAGES)
    instructions: StrictStr | None = None
    previous_response_id: StrictStr | None = None
    tools: Items[FunctionTool] = Field(default_factory=list[FunctionTool], max_length=MAX_TOOLS)
    text: OutputOptions | None = None
    max_output_tokens: StrictInt | None = Field(None, ge=1)
    store: StrictBool = True
    top_logprobs: TopLogprobs = 0
    include: list[StrictStr] = Field(default_factory=list[str])


def _parse(body: JSON, defaults: Sampling, cache: AnswerCache) -> ChatRequest:
    """Parse a Responses request. Raises `ApiError`."""
    request = validate(_Request, body)
    if request.top_logprobs and _LOGPROBS not in request.include:
        raise bad_request(f"`top_logprobs` requires `include`: [{_LOGPROBS!r}]", "top_logprobs")
    history: tuple[Message, ...] = ()
    if (previous := request.previous_response_id) is not None:
        at = ("previous_response_id", "previous_response_not_found")
        previous_reply = _find_response(cache, previous, *at)
        history = (*(previous_reply.request.conversation or ()), previous_reply.calls[0].reply)
    conversation = (*history, *_parse_items(request.input, cache))
    if not conversation:
        raise bad_request("`input` must not be empty", "input")
    echo = {n: default if body.get(n) is None else body[n] for n, default in _ECHOED.items()}
    if isinstance(echo["tool_choice"], dict):
        echo["tool_choice"] = {"type": "function", "name": request.tool_choice}
    # Instructions apply to one request only.
    instructions = request.instructions
    system = () if instructions is None else (Message("system", instructions),)
    return request.make_request(
        (*system, *conversation),
        request.tools,
        request.sampling(defaults, request.max_output_tokens),
        reply_schema(request.text and request.text.format, "text.format.schema"),
        logprobs=_LOGPROBS in request.include,
        top_logprobs=request.top_logprobs,
        conversation=conversation if request.store else None,
        items=tuple(i for i in request.input if i.get("type") != "item_reference"),
        echo=echo,
    )


def _write_reply(reply: PendingCompletion) -> JSON:
    """Return the reply as a `response` object."""
    return _complete_response(reply, _output_blocks(reply))


def _count_tokens(path: Mapping[str, str], body: JSON, attempt: AttemptSession) -> JSON:
    """Count a request's prompt tokens; the request may omit the model."""
    body = body if body.get("model") else {**body, "model": attempt.models()[0]}
    parse = partial(_parse, body, attempt.sampling, attempt.ledger)
    tokens = attempt.count_tokens(body["model"], parse)
    return {"object": "response.input_tokens", "input_tokens": tokens}


def _get_response(path: Mapping[str, str], query: JSON, attempt: AttemptSession) -> JSON:
    return _write_reply(_find_response(attempt.ledger, path["response"]))


def _list_input_items(path: Mapping[str, str], query: JSON, attempt: AttemptSession) -> JSON:
    """List the input items of a response, newest first unless `order` is asc."""
    items = _input_items(_find_response(attempt.ledger, path["response"]))
    ordered = items if query.get("order") == "asc" else items[::-1]
    first, last = (ordered[at]["id"] if ordered else None for at in (0, -1))
    ends = {"first_id": first, "last_id": last, "has_more": False}
    return {"object": "list", "data": ordered, **ends}


# ---------------------------------------------------------------- cached responses


def _find_response(
    cache: AnswerCache, response_id: str, param: str | None = None, code: str | None = None
) -> PendingCompletion:
    """Return the finished response with the given id. Raises `ApiError` if it is not cached."""
    answer = cache.get_finished(response_id)
    if answer is None or answer.request.conversation is None:
        message = (
            f"response {response_id!r} not found in this attempt; it may have been created with "
            "`store`: false or by another attempt, have expired, or still be in progress"
        )
        raise ApiError(404, message, param=param, code=code)
    return answer


def _find_item(cache: AnswerCache, item_id: str) -> JSON | None:
    """Return the input or output item with the given id from the cached responses, or None."""
    for response_id in reversed(cache):
        reply = cache.get_finished(response_id)
        if reply is not None and reply.request.conversation is not None:
            for item in (*_input_items(reply), *_write_reply(reply)["output"]):
                if item["id"] == item_id:
                    return item
    return None


def _input_items(reply: PendingCompletion) -> list[JSON]:
    """Return the input items of a request, with ids and with content as a list of parts."""
    items: list[JSON] = []
    for i, item in enumerate(reply.request.items):
        out: JSON = {"type": "message", "id": f"{reply.id}-in-{i}", **item}
        if out["type"] == "message":
            out.setdefault("status", "completed")
            if isinstance(text := out.get("content"), str):
                sampled = out.get("role") == "assistant"
                kind, more = ("output_text", {"annotations": []}) if sampled else ("input_text", {})
                out["content"] = [{"type": kind, "text": text, **more}]
        items.append(out)
    return items


# ---------------------------------------------------------------- reading items


class _Item(BaseModel):
    type: (
        Literal[
            "message", "function_call", "function_call_output", "item_reference", "reasoning",
            "custom_tool_call", "custom_tool_call_output",
        ]
        | None
    ) = None  # fmt: skip
    id: StrictStr | None = None


class _Message(MessageObject):
    role: Literal["system", "developer", "user", "assistant"]
    content: Content | None = None


class _FunctionCall(MessageObject):
    call_id: StrictStr
    name: StrictStr
    arguments: Arguments


class _CallOutput(MessageObject):
    call_id: StrictStr
    output: Content | None = None


class _Thought(MessageObject):
    content: list[JSON] = Field(default_factory=list[JSON])
    encrypted_content: Any = None


def _parse_items(items: Iterable[Any], cache: AnswerCache) -> tuple[Message, ...]:
    """Convert input items to messages.

    A thought, a message and the calls beside it form one assistant turn.
    """
    messages: list[Message] = []
    thought: JSON = {}
    for i, item in enumerate(items):
        path = f"input[{i}]"
        head = validate(_Item, item, path)
        if head.type == "item_reference":
            item = _find_item(cache, head.id or "")
            if item is None:
                message = f"item {head.id!r} not found in this attempt"
                raise ApiError(404, message, param=f"{path}.id")
            head = validate(_Item, item, path)
        if head.type == "reasoning":
            # Upstream servers may use a returned thought; templates here do not.
            reasoning = validate(_Thought, item, path)
            name = reasoning.encrypted_content
            name = name if name in THOUGHTS else THOUGHTS[0]
            text = "".join(str(part.get("text") or "") for part in reasoning.content)
            thought[name] = thought.get(name, "") + text
            continue
        new = _parse_item(head.type, item, path)
        if new.role == "assistant" and thought:
            new = replace(new, extra={**new.extra, **thought})
        thought = {}
        last = messages[-1] if messages else new
        same_turn = bool(messages) and last.role == new.role == "assistant"
        # LiteLLM sends the text of a turn after its calls; two texts are two turns.
        if same_turn and (new.tool_calls or last.tool_calls):
            new = _merge_turns(messages.pop(), new)
        messages.append(new)
    return tuple(messages)


def _parse_item(kind: str | None, item: Any, path: str) -> Message:
    """Convert an input item to a message, or to a part of an assistant turn."""
    if kind in ("custom_tool_call", "custom_tool_call_output"):
        raise bad_request(f"`{path}` calls a custom tool, which this model does not support", path)
    if kind == "function_call":
        parsed = validate(_FunctionCall, item, path)
        call = ToolCall(parsed.call_id, parsed.name, parsed.arguments)
        fields = {k: v for k, v in (parsed.model_extra or {}).items() if k != "type"}
        return Message("assistant", None, (call,), extra=call_fields([(parsed.call_id, fields)]))
    if kind == "function_call_output":
        result = validate(_CallOutput, item, path)
        extra_fields = {k: v for k, v in (result.model_extra or {}).items() if k != "type"}
        extra_fields |= read_parts(item, "output")
        return Message("tool", result.output or "", tool_call_id=result.call_id, extra=extra_fields)
    message = validate(_Message, item, path)
    extra = (message.model_extra or {}) | read_parts(item, "content")
    if message.content is None and message.role != "assistant":
        raise missing_field(f"{path}.content")
    if message.role != "developer":
        return Message(message.role, message.content or "", extra=extra)
    # Chat templates have no developer role.
    return Message("system", message.content or "", extra={**extra, "role": "developer"})


def _merge_turns(turn: Message, other: Message) -> Message:
    """Merge two parts of one assistant turn."""
    extra: JSON = {**turn.extra, **other.extra}
    for name in turn.extra.keys() & other.extra.keys():
        first, second = turn.extra[name], other.extra[name]
        if name == CALL_FIELDS:
            extra[name] = {**first, **second}
        elif name in (*THOUGHTS, PARTS):
            extra[name] = first + second
    text = (turn.content or "") + (other.content or "")
    return Message("assistant", text or None, turn.tool_calls + other.tool_calls, extra=extra)


# ---------------------------------------------------------------- writing


def _output_blocks(reply: PendingCompletion) -> list[TurnBlock]:
    """Return the blocks of a reply, or one empty text block if there are none."""
    choice = reply.calls[0]
    return turn_blocks(reply, choice) or [TurnBlock("text", "", reply.logprobs(choice) or [])]


def _complete_response(reply: PendingCompletion, blocks: Sequence[TurnBlock]) -> JSON:
    """Return the finished response object, with one output item per block."""
    reason, cut = truncation_reason(reply.calls[0]), truncated_block(reply, blocks)
    prompt, completion = reply.usage
    return {
        **_response_object(reply, "incomplete" if reason else "completed"),
        "incomplete_details": {"reason": reason} if reason else None,
        "output": [
            _item(reply, block, "incomplete" if block is cut else "completed") for block in blocks
        ],
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + completion,
        },
    }


def _response_object(reply: PendingCompletion, status: str) -> JSON:
    """Return a response object without output and usage.

    Training runs set their own sampling parameters, which are known only at the end.
    """
    sampling = reply.calls[0].sampling if reply.calls else reply.request.sampling
    is_final = bool(reply.calls) or not reply.model.finishes
    return {
        "id": reply.id,
        "object": "response",
        "created_at": reply.created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": reply.request.model,
        "output": [],
        "temperature": sampling.temperature if is_final else None,
        "top_p": sampling.top_p if is_final else None,
        "usage": None,
        **reply.request.echo,
    }


def _item_id(reply: PendingCompletion, block: TurnBlock) -> str:
    own = reply.id.replace(PREFIX, _IDS[block.kind], 1)
    return f"{own}-{block.number}" if block.kind == "call" else own


def _item(reply: PendingCompletion, block: TurnBlock, status: str) -> JSON:
    """Convert a block of a turn to an output item."""
    item: JSON = {"id": _item_id(reply, block), "status": status}
    if block.kind == "call":
        fields = {"call_id": block.id, "name": block.name, "arguments": block.text}
        return item | {"type": "function_call", **fields}
    empty = status == "in_progress" or (block.kind == "thought" and not block.text)
    item["content"] = [] if empty else [_content_part(block)]
    if block.kind == "text":
        return item | {"type": "message", "role": "assistant"}
    if block.source not in ("", THOUGHTS[0]):  # the client returns it, for the upstream server
        item["encrypted_content"] = block.source
    return item | {"type": "reasoning", "summary": []}


def _content_part(block: TurnBlock) -> JSON:
    """Convert a block of a turn to a content part."""
    if block.kind == "thought":
        return {"type": "reasoning_text", "text": block.text}
    logprobs = [_format_entry(entry) for entry in block.entries]
    return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": logprobs}


def _format_entry(entry: JSON) -> JSON:
    """Return a log-probability entry with `bytes` as a list, which is empty for a partial
    character."""
    others = [{**other, "bytes": other["bytes"] or []} for other in entry["top_logprobs"]]
    return {**entry, "bytes": entry["bytes"] or [], "top_logprobs": others}


class _EventWriter(BlockWriter):
    """Writer of the numbered stream events of a response."""

    _number = 0

    def write(self, index: int, delta: Delta) -> bytes:
        """Return the events for a text or thinking delta."""
        kind = "thought" if delta.thought else "text"
        return self._begin() + self.add(kind, delta.text, source=delta.thought)

    def write_end(self, deltas: Sequence[Delta]) -> bytes:
        """Return the final events: the remaining items and the complete response."""
        out = self._begin() + self.add_remaining(deltas[0], _output_blocks(self._reply))
        final = _complete_response(self._reply, self.blocks)
        kind = "response.incomplete" if final["status"] == "incomplete" else "response.completed"
        return out + self._encode((kind, {"response": final})) + DONE

    def write_error(self, error: ApiError) -> bytes:
        """Return the last events of a failed stream."""
        fields = {"code": error.code, "message": error.message, "param": error.param}
        final = _response_object(self._reply, "failed")
        code = _CODES.get(error.type, "server_error")
        final["error"] = {"code": code, "message": error.message}
        return self._encode(("error", fields), ("response.failed", {"response": final}))

    def begin(self, index: int, block: TurnBlock) -> bytes:
        """Return the events that start an output item."""
        empty = replace(block, text="", entries=[])
        item = _item(self._reply, empty, "in_progress")
        added = ("response.output_item.added", {"output_index": index, "item": item})
        if block.kind == "call":
            return self._encode(added)
        part = {**self._position(index, block), "part": _content_part(empty)}
        return self._encode(added, ("response.content_part.added", part))

    def extend(self, index: int, block: TurnBlock, text: str, logprobs: Sequence[JSON]) -> bytes:
        """Return the event for new text or arguments of an output item."""
        data: JSON = {**self._position(index, block), "delta": text}
        if block.kind == "text":
            data["logprobs"] = [_format_entry(entry) for entry in logprobs]
        return self._encode((_EVENTS[block.kind] + ".delta", data)) if text or logprobs else b""

    def end(self, index: int, block: TurnBlock) -> bytes:
        """Return the events that end an output item."""
        cut = truncated_block(self._reply, self.blocks)
        item = _item(self._reply, block, "incomplete" if block is cut else "completed")
        position = self._position(index, block)
        done = ("response.output_item.done", {"output_index": index, "item": item})
        if block.kind == "call":
            data = {**position, "name": block.name, "arguments": block.text}
            return self._encode((_EVENTS["call"] + ".done", data), done)
        part = _content_part(block)
        data = {k: v for k, v in part.items() if k in ("text", "logprobs")}
        return self._encode(
            (_EVENTS[block.kind] + ".done", {**position, **data}),
            ("response.content_part.done", {**position, "part": part}),
            done,
        )

    def _position(self, index: int, block: TurnBlock) -> JSON:
        position: JSON = {"item_id": _item_id(self._reply, block), "output_index": index}
        return position if block.kind == "call" else {**position, "content_index": 0}

    def _begin(self) -> bytes:
        if self._number:
            return b""
        running = {"response": _response_object(self._reply, "in_progress")}
        return self._encode(("response.created", running), ("response.in_progress", running))

    def _encode(self, *events: tuple[str, JSON]) -> bytes:
        out = b""
        for kind, data in events:
            out += event({"type": kind, "sequence_number": self._number, **data}, kind)
            self._number += 1
        return out


RESPONSES = Dialect(
    name="responses",
    path="/v1/responses",
    prefix=PREFIX,
    prompt_field="input",
    request=_Request,
    read=_parse,
    write_reply=_write_reply,
    writer=_EventWriter,
    paths={
        "/v1/responses/input_tokens": {"POST": _count_tokens},
        "/v1/responses/{response}": {"GET": _get_response},
        "/v1/responses/{response}/input_items": {"GET": _list_input_items},
    },
)
