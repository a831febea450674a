"""Responses: `POST /v1/responses`, its object and the events of its stream.

A conversation is kept by the response that ended it, so `previous_response_id` brings the messages
back exactly as they were recorded. Items that come back instead are put together again: a message
and the function calls after it are one assistant turn. `stored.py` keeps what was answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, Field, StrictBool, StrictInt, StrictStr

from tutelage.gateway.dialects.dialect import Path
from tutelage.gateway.dialects.reading import (
    MAX_TOOLS,
    Arguments,
    Content,
    FunctionTool,
    Items,
    MessageObject,
    RequestObject,
    RequestReader,
    TopLogprobs,
    read,
    reply_schema,
    tool_specs,
)
from tutelage.gateway.dialects.stored import StoredResponses, stored_paths
from tutelage.gateway.errors import ApiError, invalid
from tutelage.gateway.http import DONE, event
from tutelage.gateway.reply import ChatReply, Piece, cut_by, shown_content, with_bytes
from tutelage.gateway.request import ChatRequest
from tutelage.types import JSON, Call, Message, Sampling, ToolCall

_LOGPROBS = "message.output_text.logprobs"
_Include = Literal[
    "message.output_text.logprobs", "reasoning.encrypted_content",
    "web_search_call.action.sources", "code_interpreter_call.outputs",
    "computer_call_output.output.image_url", "file_search_call.results",
    "message.input_image.image_url",
]  # fmt: skip
"""What may be asked for where there can be none: then none is sent."""
_CODES = {"rate_limit_error": "rate_limit_exceeded", "invalid_request_error": "invalid_prompt"}
"""What a response that failed says of an error, by the type that errors have elsewhere."""


class _Item(BaseModel):
    type: (
        Literal["message", "function_call", "function_call_output", "item_reference", "reasoning"]
        | None
    ) = None
    id: StrictStr | None = None


class _Message(MessageObject):
    role: Literal["system", "developer", "user", "assistant"]
    content: Content = ""


class _FunctionCall(BaseModel):
    call_id: StrictStr
    name: StrictStr
    arguments: Arguments


class _FunctionCallOutput(BaseModel):
    call_id: StrictStr
    output: Content | None = None


class _Format(RequestObject):
    harmless = ("name", "description", "strict")
    type: Literal["text", "json_object", "json_schema"]
    wanted: JSON | None = Field(None, alias="schema")


class _Text(RequestObject):
    harmless = ("verbosity",)
    format: _Format | None = None


class _StreamOptions(RequestObject):
    harmless = ("include_obfuscation",)


class _Reasoning(RequestObject):
    harmless = ("summary", "generate_summary")
    neutral: ClassVar[Mapping[str, Sequence[Any]]] = {"effort": ("none",)}


class _Request(RequestReader):
    harmless = (
        "user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "max_tool_calls",
    )  # fmt: skip
    neutral: ClassVar[Mapping[str, Sequence[Any]]] = {
        "background": (False,),
        "conversation": (),
        "prompt": (),
        "context_management": ([],),
    }
    input: Annotated[
        list[Any],
        BeforeValidator(lambda v: [{"role": "user", "content": v}] if isinstance(v, str) else v),
    ] = Field(default_factory=list[Any])
    instructions: StrictStr | None = None
    previous_response_id: StrictStr | None = None
    tools: Items[FunctionTool] = Field(default_factory=list[FunctionTool], max_length=MAX_TOOLS)
    text: _Text | None = None
    reasoning: _Reasoning | None = None
    max_output_tokens: StrictInt | None = Field(None, ge=1)
    stream_options: _StreamOptions | None = None
    store: StrictBool = True
    truncation: Literal["auto", "disabled"] = "disabled"
    top_logprobs: TopLogprobs = 0
    include: Items[_Include] = Field(default_factory=list[_Include])


class Responses:
    """The dialect; see `Dialect`."""

    name = "responses"
    path = "/v1/responses"
    prefix = "resp_"
    prompt_field = "input"
    request = _Request

    def __init__(self) -> None:
        self.paths: Mapping[str, Mapping[str, Path]] = stored_paths(self.writer)

    def read(self, body: JSON, defaults: Sampling, stored: StoredResponses) -> ChatRequest:
        """The request. Raises `ApiError`."""
        request = read(_Request, body)
        if request.top_logprobs and _LOGPROBS not in request.include:
            raise invalid(f"`top_logprobs` needs `include`: [{_LOGPROBS!r}]", "top_logprobs")
        tools = tool_specs(request.tools)
        wanted = None if request.text is None else request.text.format
        schema = wanted and reply_schema(wanted.type, wanted.wanted, "text.format.schema")
        conversation = _conversation(request, stored)
        instructions = request.instructions
        return ChatRequest(
            model=request.model,
            # Instructions hold for one request only.
            messages=conversation
            if instructions is None
            else (Message("system", instructions), *conversation),
            sampling=request.sampling(defaults, request.max_output_tokens),
            tools=tools,
            constraint=request.constraint(tools, schema),
            seed=request.seed,
            stream=request.stream,
            truncate=request.truncation == "auto",
            logprobs=_LOGPROBS in request.include,
            top_logprobs=request.top_logprobs,
            conversation=conversation if request.store else None,
            items=tuple(i for i in request.input if i.get("type") != "item_reference"),
            echo={
                "instructions": instructions,
                "max_output_tokens": request.max_output_tokens,
                "metadata": body.get("metadata") or {},
                "parallel_tool_calls": request.parallel_tool_calls,
                "previous_response_id": request.previous_response_id,
                "store": request.store,
                "text": body.get("text") or {"format": {"type": "text"}},
                "tool_choice": body.get("tool_choice") or "auto",
                "tools": body.get("tools") or [],
                "truncation": request.truncation,
                "user": body.get("user"),
            },
        )

    def written(self, reply: ChatReply) -> JSON:
        """The `response` object."""
        (choice,) = reply.choices
        cut = cut_by(choice)
        prompt, sampled = reply.usage
        return {
            **_object(reply, "incomplete" if cut else "completed"),
            "incomplete_details": {"reason": cut} if cut else None,
            "output": _items(reply, choice),
            "usage": {
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": sampled,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": prompt + sampled,
            },
        }

    def writer(self, reply: ChatReply) -> _Events:
        """The stream of a reply."""
        return _Events(reply, self.written)

    def error(self, error: ApiError) -> JSON:
        """OpenAI's error object."""
        return error.body()


# ---------------------------------------------------------------- reading


def _conversation(given: _Request, stored: StoredResponses) -> tuple[Message, ...]:
    before: tuple[Message, ...] = ()
    previous = given.previous_response_id
    if previous is not None:
        found = stored.find(previous)
        if found is None:
            words = (
                f"no response {previous!r} of this attempt is stored; it may have been made with "
                "`store`: false, by another attempt, or long ago"
            )
            where, code = "previous_response_id", "previous_response_not_found"
            raise ApiError(404, words, param=where, code=code)
        before = found.conversation
    if whole := before + _messages(given.input, stored):
        return whole
    raise invalid("`input` must not be empty", "input")


def _messages(items: Iterable[Any], stored: StoredResponses) -> tuple[Message, ...]:
    """Input items as messages; a message and the calls beside it make one assistant turn."""
    messages: list[Message] = []
    open_turn = False
    for i, item in enumerate(items):
        at = f"input[{i}]"
        head = read(_Item, item, at)
        if head.type == "item_reference":
            item = stored.item(head.id or "")
            if item is None:
                words = f"no item {head.id!r} of this attempt is stored"
                raise ApiError(404, words, param=f"{at}.id")
            head = read(_Item, item, at)
        if head.type == "reasoning":
            continue  # another model's thoughts, which this one's template has no place for
        if head.type == "function_call":
            called = read(_FunctionCall, item, at)
            last = messages.pop() if open_turn else Message("assistant")
            calls = (*last.tool_calls, ToolCall(called.call_id, called.name, called.arguments))
            messages.append(Message("assistant", last.content or None, calls))
        elif head.type == "function_call_output":
            answer = read(_FunctionCallOutput, item, at)
            messages.append(Message("tool", answer.output or "", tool_call_id=answer.call_id))
        else:
            message = read(_Message, item, at)
            # Templates know a developer's message as a system message.
            role = "system" if message.role == "developer" else message.role
            content, calls = message.content, tuple[ToolCall, ...]()
            if open_turn and role == "assistant" and messages[-1].tool_calls:
                last = messages.pop()  # LiteLLM sends the text of a turn after its calls
                content, calls = (last.content or "") + content, last.tool_calls
            said = content or None if calls else content
            messages.append(Message(role, said, calls, extra=message.model_extra or {}))
        open_turn = messages[-1].role == "assistant"
    return tuple(messages)


# ---------------------------------------------------------------- writing


def _object(reply: ChatReply, status: str) -> JSON:
    """The object without what comes at the end."""
    sampling = reply.request.sampling
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
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "usage": None,
        **reply.request.echo,
    }


def _items(reply: ChatReply, choice: Call) -> list[JSON]:
    """The turn as items: a message when it says something, then its function calls."""
    items: list[JSON] = []
    content = shown_content(choice)
    if content is not None:
        status = "completed" if cut_by(choice) is None else "incomplete"
        part = _part(content, with_bytes(reply.logprobs(choice)))
        items.append({**_begun_message(reply), "status": status, "content": [part]})
    own = reply.answer.id.replace(Responses.prefix, "fc_", 1)
    return items + [
        {
            "id": f"{own}-{i}",
            "type": "function_call",
            "status": "completed",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
        }
        for i, call in enumerate(choice.reply.tool_calls)
    ]


def _begun_message(reply: ChatReply) -> JSON:
    return {
        "id": reply.answer.id.replace(Responses.prefix, "msg_", 1),
        "type": "message",
        "status": "in_progress",
        "role": "assistant",
        "content": [],
    }


def _part(text: str, logprobs: Sequence[JSON] = ()) -> JSON:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


class _Events:
    """The events of a stream, each with its `sequence_number`; see `Writer`."""

    def __init__(self, reply: ChatReply, written: Callable[[ChatReply], JSON]) -> None:
        self._reply, self._written = reply, written
        self._number = 0
        self._begun = self._talking = False
        self._message = _begun_message(reply)
        self._where: JSON = {"item_id": self._message["id"], "output_index": 0, "content_index": 0}

    def text(self, index: int, new: Piece) -> bytes:
        """More text of the message."""
        said = {**self._where, "delta": new.text, "logprobs": with_bytes(new.logprobs)}
        begun = self._begin() + self._talk()
        return begun + self._events(("response.output_text.delta", said))

    def finish(self, reply: ChatReply, rests: Sequence[Piece]) -> bytes:
        """What is left of the message, the function calls, and the whole response."""
        final = self._written(reply)
        out = self._begin()
        for index, item in enumerate(final["output"]):
            if item["type"] == "message":
                left = rests[0].text or rests[0].logprobs
                out += self.text(0, rests[0]) if left else self._talk()
                out += self._said(item)
            else:
                out += self._called(item, index)
        kind = "response.incomplete" if final["status"] == "incomplete" else "response.completed"
        return out + self._events((kind, {"response": final})) + DONE

    def failed(self, error: ApiError) -> bytes:
        """What a stream that breaks ends with."""
        fields = {"code": error.code, "message": error.message, "param": error.param}
        final = _object(self._reply, "failed")
        code = _CODES.get(error.type, "server_error")
        final["error"] = {"code": code, "message": fields["message"]}
        return self._events(("error", fields), ("response.failed", {"response": final}))

    def _begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        running = {"response": _object(self._reply, "in_progress")}
        return self._events(("response.created", running), ("response.in_progress", running))

    def _talk(self) -> bytes:
        """Open the message; it is always the first item."""
        if self._talking:
            return b""
        self._talking = True
        return self._events(
            ("response.output_item.added", {"output_index": 0, "item": self._message}),
            ("response.content_part.added", {**self._where, "part": _part("")}),
        )

    def _said(self, item: JSON) -> bytes:
        (part,) = item["content"]
        whole = {"text": part["text"], "logprobs": part["logprobs"]}
        return self._events(
            ("response.output_text.done", {**self._where, **whole}),
            ("response.content_part.done", {**self._where, "part": part}),
            ("response.output_item.done", {"output_index": 0, "item": item}),
        )

    def _called(self, item: JSON, index: int) -> bytes:
        where: JSON = {"item_id": item["id"], "output_index": index}
        begun = {**item, "arguments": "", "status": "in_progress"}
        said = item["arguments"]
        named = {"name": item["name"], "arguments": said}
        return self._events(
            ("response.output_item.added", {"output_index": index, "item": begun}),
            ("response.function_call_arguments.delta", {**where, "delta": said}),
            ("response.function_call_arguments.done", {**where, **named}),
            ("response.output_item.done", {"output_index": index, "item": item}),
        )

    def _events(self, *events: tuple[str, JSON]) -> bytes:
        out = b""
        for kind, data in events:
            out += event({"type": kind, "sequence_number": self._number, **data}, kind)
            self._number += 1
        return out
