"""Reading of `POST /v1/responses`: input items, and the conversation that they go on with.

A conversation is kept by the response that ended it, so `previous_response_id` brings the messages
back exactly as they were recorded. Items that come back instead are put together again: a message
and the function calls after it are one assistant turn. `chat_request.py` is the other API,
`responses_reply.py` writes the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tutelage.gateway import fields
from tutelage.gateway.asked import Ask, constraint_of
from tutelage.gateway.chat_request import json_schema, plain_format, top_p
from tutelage.gateway.problems import ApiError, invalid
from tutelage.types import JSON, Message, Sampling, ToolCall, ToolSpec

_KNOWN = frozenset(
    {
        "model", "input", "instructions", "previous_response_id", "tools", "tool_choice",
        "parallel_tool_calls", "text", "temperature", "top_p", "top_k", "max_output_tokens",
        "stream", "stream_options", "store", "include", "top_logprobs", "seed", "stop",
    }
)  # fmt: skip
_HARMLESS = frozenset(
    {
        "user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "max_tool_calls",
    }
)  # fmt: skip
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "truncation": ("disabled",),
    "conversation": (),
    "prompt": (),
    "reasoning": ({}, {"effort": "none"}, {"effort": None}, {"effort": None, "summary": None}),
    "context_management": ([],),
}
_LOGPROBS = "message.output_text.logprobs"
_HARMLESS_INCLUDES = frozenset(
    {
        _LOGPROBS,
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
    }
)
"""What may be asked for where there can be none: then none is sent."""
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


@dataclass(frozen=True, slots=True)
class ResponseAsk:
    """A request of the Responses API: what to sample, and what its answer repeats."""

    ask: Ask
    conversation: tuple[Message, ...]
    """The messages without the instructions, which hold for one request only."""
    store: bool
    echo: JSON
    """Fields of the response that repeat the request."""


class Stored(Protocol):
    """What earlier responses of the attempt left."""

    def conversation(self, response_id: str) -> tuple[Message, ...] | None:
        """The messages up to and with that response, None when it is not known."""
        ...

    def item(self, item_id: str) -> JSON | None:
        """An output item."""
        ...


def read_response(body: JSON, defaults: Sampling, stored: Stored) -> ResponseAsk:
    """The request. Raises `ApiError`."""
    fields.check_known(body, _KNOWN, _HARMLESS, _NEUTRAL)
    tools = _tools(body)
    schema = _text_format(body)
    choice = _tool_choice(body.get("tool_choice"), tools)
    parallel = fields.flag(body, "parallel_tool_calls", True)
    if fields.integer(body, "top_logprobs", 0, 20):
        raise invalid("`top_logprobs` above 0 cannot be honoured", "top_logprobs")
    options = body.get("stream_options")
    if options is not None:
        given = fields.mapping(options, "stream_options")
        fields.only(given, ("include_obfuscation",), "stream_options")
    conversation = _conversation(body, stored)
    instructions = body.get("instructions")
    first: tuple[Message, ...] = ()
    if instructions is not None:
        first = (Message("system", fields.text(instructions, "instructions")),)
    limit = fields.integer(body, "max_output_tokens", 1)
    ask = Ask(
        model=fields.text(fields.required(body, "model"), "model"),
        messages=first + conversation,
        sampling=Sampling(
            temperature=fields.number(body, "temperature", defaults.temperature, 0, 2),
            top_p=top_p(body, defaults),
            top_k=max(0, fields.integer(body, "top_k", -1) or defaults.top_k),
            max_tokens=limit or defaults.max_tokens,
            stop=fields.stops(body) or defaults.stop,
        ),
        tools=tools,
        constraint=constraint_of(choice, parallel, schema, tools),
        seed=fields.integer(body, "seed", -(1 << 63), (1 << 63) - 1),
        stream=fields.flag(body, "stream"),
        logprobs=_LOGPROBS in _includes(body),
    )
    echo: JSON = {
        "instructions": instructions,
        "max_output_tokens": limit,
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": parallel,
        "previous_response_id": body.get("previous_response_id"),
        "store": fields.flag(body, "store", True),
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "truncation": "disabled",
        "user": body.get("user"),
    }
    return ResponseAsk(ask, conversation, bool(echo["store"]), echo)


def _includes(body: JSON) -> list[Any]:
    value = body.get("include")
    if value is None:
        return []
    listed = fields.array(value, "include")
    for i, word in enumerate(listed):
        if not isinstance(word, str) or word not in _HARMLESS_INCLUDES:
            raise invalid(f"`include[{i}]` = {fields.shown(word)} is not supported", "include")
    return listed


def _conversation(body: JSON, stored: Stored) -> tuple[Message, ...]:
    before: tuple[Message, ...] = ()
    previous = body.get("previous_response_id")
    if previous is not None:
        found = stored.conversation(fields.text(previous, "previous_response_id"))
        if found is None:
            raise ApiError(
                404,
                f"no response {previous!r} of this attempt is stored; it may have been made with "
                "`store`: false, by another attempt, or long ago",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        before = found
    value = body.get("input")
    if isinstance(value, str):
        return (*before, Message("user", value))
    if value is None:
        new: tuple[Message, ...] = ()
    else:
        new = read_items(fields.array(value, "input"), stored)
    fields.check_conversation(before + new, "input")
    return before + new


def read_items(items: Sequence[Any], stored: Stored) -> tuple[Message, ...]:
    """Input items as messages; a message and the calls that follow it make one assistant turn."""
    messages: list[Message] = []
    open_turn = False
    for i, raw in enumerate(items):
        item, path = fields.mapping(raw, f"input[{i}]"), f"input[{i}]"
        if item.get("type") == "item_reference":
            item = _referenced(item, path, stored)
        of = item.get("type", "message")
        if of == "reasoning":
            continue  # another model's thoughts, which this one's template has no place for
        if of == "function_call":
            call = _call(item, path)
            if open_turn:
                last = messages.pop()
                kept = last.content or None
                messages.append(Message("assistant", kept, (*last.tool_calls, call)))
            else:
                messages.append(Message("assistant", None, (call,)))
            open_turn = True
            continue
        message = _message(item, path) if of == "message" else _output(item, of, path)
        messages.append(message)
        open_turn = message.role == "assistant"
    return tuple(messages)


def _referenced(item: JSON, path: str, stored: Stored) -> JSON:
    wanted = fields.text(item.get("id"), f"{path}.id")
    found = stored.item(wanted)
    if found is None:
        raise ApiError(404, f"no item {wanted!r} of this attempt is stored", param=f"{path}.id")
    return found


def _message(item: JSON, path: str) -> Message:
    fields.only(item, ("type", "id", "role", "content", "status", "phase"), path)
    given = item.get("role")
    role = _ROLES.get(given) if isinstance(given, str) else None
    if role is None:
        raise invalid(
            f"`{path}.role` = {fields.shown(given)} must be one of {', '.join(_ROLES)}",
            f"{path}.role",
        )
    return Message(role, fields.content(item.get("content"), f"{path}.content") or "")


def _call(item: JSON, path: str) -> ToolCall:
    return ToolCall(
        fields.text(item.get("call_id"), f"{path}.call_id"),
        fields.text(item.get("name"), f"{path}.name"),
        fields.arguments(item.get("arguments"), f"{path}.arguments"),
    )


def _output(item: JSON, of: Any, path: str) -> Message:
    if of != "function_call_output":
        raise invalid(
            f"`{path}.type` = {fields.shown(of)} is not supported by this server",
            f"{path}.type",
            "unsupported_value",
        )
    said = fields.content(item.get("output"), f"{path}.output")
    return Message(
        "tool", said or "", tool_call_id=fields.text(item.get("call_id"), f"{path}.call_id")
    )


def _tools(body: JSON) -> tuple[ToolSpec, ...]:
    value = body.get("tools")
    if value is None:
        return ()
    found: list[ToolSpec] = []
    for i, raw in enumerate(fields.array(value, "tools")):
        data = fields.mapping(raw, f"tools[{i}]")
        if data.get("type") != "function":
            raise invalid(
                f"`tools[{i}].type` = {fields.shown(data.get('type'))}: this server knows "
                "functions",
                f"tools[{i}].type",
                "unsupported_value",
            )
        found.append(fields.tool_spec(data, f"tools[{i}]"))
    tools = tuple(found)
    fields.check_tools(tools)
    return tools


def _tool_choice(value: Any, tools: tuple[ToolSpec, ...]) -> str:
    named = None
    if isinstance(value, dict):
        data: Mapping[str, Any] = value
        if data.get("type") != "function":
            raise invalid(
                f"`tool_choice.type` = {fields.shown(data.get('type'))} is not supported",
                "tool_choice",
                "unsupported_value",
            )
        named = fields.text(data.get("name"), "tool_choice.name")
    return fields.chosen_tool(value, named, tools)


def _text_format(body: JSON) -> JSON | None:
    value = body.get("text")
    if value is None:
        return None
    data = fields.mapping(value, "text")
    fields.only(data, ("format", "verbosity"), "text")
    if data.get("verbosity") not in (None, "medium"):
        raise invalid("`text.verbosity` cannot be honoured by this server", "text.verbosity")
    if data.get("format") is None:
        return None
    wanted = fields.mapping(data["format"], "text.format")
    if wanted.get("type") == "json_schema":
        return json_schema(wanted, "text.format")
    return plain_format(wanted, "text.format")
