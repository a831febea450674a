"""Reading of `POST /v1/chat/completions`.

Every field is honoured, known to be harmless, or refused with its name: an agent that believes it
samples at a penalty which nobody applies would be trained on something else than it runs.
`fields.py` reads the values; `responses_request.py` is the other API.
"""

from __future__ import annotations

from typing import Any

from tutelage.gateway import fields
from tutelage.gateway.asked import Ask, constraint_of
from tutelage.gateway.problems import invalid
from tutelage.types import JSON, Message, Sampling, ToolCall, ToolSpec

MAX_CHOICES = 128

_KNOWN = frozenset(
    {
        "model", "messages", "tools", "tool_choice", "parallel_tool_calls", "response_format",
        "stop", "seed", "temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens",
        "n", "logprobs", "top_logprobs", "stream", "stream_options", "return_token_ids",
    }
)  # fmt: skip
_HARMLESS = frozenset(
    {
        "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "prediction",
    }
)  # fmt: skip
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    "reasoning_effort": ("none",),
    "audio": (),
    "web_search_options": (),
    "functions": ([],),
    "function_call": ("auto", "none"),
}
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
"""Roles and how templates know them: a developer's message is a system message."""
_MESSAGE_FIELDS = frozenset(
    {
        "role", "content", "name", "tool_calls", "tool_call_id", "refusal", "annotations",
        "reasoning", "reasoning_content", "reasoning_details",
    }
)  # fmt: skip


def read_chat(body: JSON, defaults: Sampling) -> Ask:
    """The request; `defaults` says what holds where it is silent. Raises `ApiError`."""
    fields.check_known(body, _KNOWN, _HARMLESS, _NEUTRAL)
    tools = _tools(body)
    schema = _response_format(body)
    choice = _tool_choice(body.get("tool_choice"), tools)
    options = body.get("stream_options")
    stream = fields.flag(body, "stream")
    usage = False
    if options is not None:
        given = fields.mapping(options, "stream_options")
        fields.only(given, ("include_usage", "include_obfuscation"), "stream_options")
        usage = fields.flag(given, "include_usage", path="stream_options.include_usage")
        if not stream:
            raise invalid("`stream_options` needs `stream`: true", "stream_options")
    if fields.integer(body, "top_logprobs", 0, 20):
        raise invalid(
            "`top_logprobs` above 0 cannot be honoured: only the sampled token's log-probability "
            "is recorded; send `logprobs`: true without it",
            "top_logprobs",
            "unsupported_parameter",
        )
    messages = read_messages(fields.required(body, "messages"))
    fields.check_conversation(messages, "messages")
    return Ask(
        model=fields.text(fields.required(body, "model"), "model"),
        messages=messages,
        sampling=Sampling(
            temperature=fields.number(body, "temperature", defaults.temperature, 0, 2),
            top_p=top_p(body, defaults),
            top_k=max(0, fields.integer(body, "top_k", -1) or defaults.top_k),
            max_tokens=_max_tokens(body, defaults),
            stop=fields.stops(body) or defaults.stop,
        ),
        tools=tools,
        constraint=constraint_of(
            choice, fields.flag(body, "parallel_tool_calls", True), schema, tools
        ),
        seed=fields.integer(body, "seed", -(1 << 63), (1 << 63) - 1),
        n=fields.integer(body, "n", 1, MAX_CHOICES) or 1,
        stream=stream,
        include_usage=usage,
        logprobs=fields.flag(body, "logprobs"),
        token_ids=fields.flag(body, "return_token_ids"),
    )


def top_p(body: JSON, defaults: Sampling) -> float:
    """The nucleus; 0 would leave no token to draw."""
    value = fields.number(body, "top_p", defaults.top_p, 0, 1)
    if value <= 0:
        raise invalid("`top_p` must be above 0; for greedy sampling use `temperature`: 0", "top_p")
    return value


def read_messages(value: Any) -> tuple[Message, ...]:
    """The conversation."""
    return tuple(
        _message(fields.mapping(raw, f"messages[{i}]"), f"messages[{i}]")
        for i, raw in enumerate(fields.array(value, "messages"))
    )


def _message(data: JSON, path: str) -> Message:
    fields.only(data, _MESSAGE_FIELDS, path)
    given = data.get("role")
    role = _ROLES.get(given) if isinstance(given, str) else None
    if role is None:
        raise invalid(
            f"`{path}.role` = {fields.shown(given)} must be one of {', '.join(_ROLES)}",
            f"{path}.role",
        )
    said = fields.content(data.get("content"), f"{path}.content")
    name = data.get("name")
    if name is not None:
        fields.text(name, f"{path}.name")
    if role == "tool":
        answered = fields.text(data.get("tool_call_id"), f"{path}.tool_call_id")
        return Message(role, said or "", tool_call_id=answered, name=name)
    if role != "assistant":
        return Message(role, said or "", name=name)
    if said is None and data.get("refusal") is not None:
        said = fields.text(data["refusal"], f"{path}.refusal")
    calls = data.get("tool_calls")
    listed = fields.array(calls, f"{path}.tool_calls") if calls is not None else []
    read = tuple(_call(raw, f"{path}.tool_calls[{i}]") for i, raw in enumerate(listed))
    # An empty string beside calls is what some SDKs make of the null that they were sent.
    return Message(role, (said or None) if read else said or "", read, name=name)


def _call(raw: Any, path: str) -> ToolCall:
    data = fields.mapping(raw, path)
    if data.get("type", "function") != "function":
        raise invalid(f"`{path}.type` must be 'function'", f"{path}.type", "unsupported_value")
    function = fields.mapping(data.get("function"), f"{path}.function")
    return ToolCall(
        fields.text(data.get("id"), f"{path}.id"),
        fields.text(function.get("name"), f"{path}.function.name"),
        fields.arguments(function.get("arguments"), f"{path}.function.arguments"),
    )


def _tools(body: JSON) -> tuple[ToolSpec, ...]:
    value = body.get("tools")
    if value is None:
        return ()
    found: list[ToolSpec] = []
    for i, raw in enumerate(fields.array(value, "tools")):
        path = f"tools[{i}]"
        data = fields.mapping(raw, path)
        if data.get("type") != "function":
            raise invalid(
                f"`{path}.type` = {fields.shown(data.get('type'))}: this server knows functions",
                f"{path}.type",
                "unsupported_value",
            )
        function = fields.mapping(data.get("function"), f"{path}.function")
        found.append(fields.tool_spec(function, f"{path}.function"))
    tools = tuple(found)
    fields.check_tools(tools)
    return tools


def _tool_choice(value: Any, tools: tuple[ToolSpec, ...]) -> str:
    named = None
    if isinstance(value, dict):
        data: JSON = value
        if data.get("type") != "function":
            raise invalid(
                f"`tool_choice.type` = {fields.shown(data.get('type'))} is not supported",
                "tool_choice",
                "unsupported_value",
            )
        function = fields.mapping(data.get("function"), "tool_choice.function")
        named = fields.text(function.get("name"), "tool_choice.function.name")
    return fields.chosen_tool(value, named, tools)


def _response_format(body: JSON) -> JSON | None:
    value = body.get("response_format")
    if value is None:
        return None
    data = fields.mapping(value, "response_format")
    if data.get("type") == "json_schema":
        data = fields.mapping(data.get("json_schema"), "response_format.json_schema")
        return json_schema(data, "response_format.json_schema")
    return plain_format(data, "response_format")


def plain_format(data: JSON, path: str) -> JSON | None:
    """The schema of the formats `text` (none) and `json_object`."""
    if data.get("type") == "text":
        return None
    if data.get("type") == "json_object":
        return {"type": "object"}
    raise invalid(
        f"`{path}.type` = {fields.shown(data.get('type'))} must be text, json_object or "
        "json_schema",
        f"{path}.type",
        "unsupported_value",
    )


def json_schema(data: JSON, path: str) -> JSON:
    """The schema of a named format."""
    fields.only(data, ("type", "name", "description", "schema", "strict"), path)
    return fields.mapping(data.get("schema"), f"{path}.schema")


def _max_tokens(body: JSON, defaults: Sampling) -> int:
    newer = fields.integer(body, "max_completion_tokens", 1)
    older = fields.integer(body, "max_tokens", 1)
    return newer or older or defaults.max_tokens
