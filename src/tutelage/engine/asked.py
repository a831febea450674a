"""What another server is asked, in OpenAI's words.

A request of our own agents is written here from what it means. One that a client sent to the
gateway goes on as the client wrote it, or as its dialect wrote it for chat completions: only what
was decided here since is set in it. `remote.py` is the client that sends both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from tutelage.types import JSON, THOUGHTS, UNBOUNDED, ChatOptions, Constraint, Message, Sampling

_LIMITS = ("max_tokens", "max_completion_tokens")
PARTS, CALL_FIELDS = "content_parts", "tool_call_fields"
"""The names under which a message on record has its content in parts, in the words of chat
completions, and by the ids of its tool calls what came beside them."""
DETAILS = "reasoning_details"
"""What some servers tell of a thought, and want back unchanged."""
_WITH_A_MESSAGE = (*THOUGHTS, DETAILS, "refusal", "role", "function_call", "audio")
"""What of another dialect's message is sent beside its content."""
_IN_A_PART = ("type", "text", "refusal", "image_url", "input_audio", "file")


def written(messages: Sequence[Message], options: ChatOptions) -> JSON:
    """The fields of a request."""
    sampling, tools = options["sampling"], options.get("tools", ())
    body: JSON = {
        "messages": [_message(m, m.extra.keys() - {PARTS, CALL_FIELDS}) for m in messages],
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    if sampling.max_tokens < UNBOUNDED:  # else the server's own limit holds
        body["max_tokens"] = sampling.max_tokens
    if sampling.top_k:
        body["top_k"] = sampling.top_k
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if (seed := options.get("seed")) is not None:
        body["seed"] = seed
    if tools:
        body["tools"] = [t.to_dict() for t in tools]
    if (constraint := options.get("constraint")) is not None:
        body |= _constraint_fields(constraint, bool(tools))
    return body


def passed_on(passed: Mapping[str, Any], messages: Sequence[Message], options: ChatOptions) -> JSON:
    """The fields of a request that a client sent, as they came; its messages too, unless its
    dialect has others. Where it says nothing the defaults of its attempt hold, if they are any; the
    seed is that of its choice, and a limit of tokens is no longer than the attempt's."""
    sampling, silent = options["sampling"], Sampling()
    body: JSON = dict(passed)
    if "messages" not in body:
        body["messages"] = [_message(m, m.extra.keys() & set(_WITH_A_MESSAGE)) for m in messages]
    for name in ("temperature", "top_p", "top_k"):
        value = getattr(sampling, name)
        if body.get(name) is None and value != getattr(silent, name):
            body[name] = value
    if sampling.stop and not body.get("stop"):
        body["stop"] = list(sampling.stop)
    if (seed := options.get("seed")) is not None:
        body["seed"] = seed
    named = [name for name in _LIMITS if body.get(name) is not None]
    if not named and sampling.max_tokens < UNBOUNDED:
        body["max_tokens"] = sampling.max_tokens
    for name in named:
        if isinstance(body[name], int):  # what is no number is for the server to refuse
            body[name] = min(body[name], sampling.max_tokens)
    return body


def _message(message: Message, extra: Collection[str]) -> JSON:
    """A message with this of what came with it, and in parts where not all of them are text."""
    out = message.to_dict() | {name: message.extra[name] for name in extra}
    found: object = message.extra.get(PARTS)
    parts = cast("list[Any]", found) if isinstance(found, list) else []
    objects = [cast("JSON", part) for part in parts if isinstance(part, dict)]
    if any(part.get("type") not in ("text", "refusal") for part in objects):
        # A part goes without what is not of chat completions.
        content: list[Any] = []
        for part in parts:
            fields = cast("JSON", part).items() if isinstance(part, dict) else ()
            known = {name: value for name, value in fields if name in _IN_A_PART}
            content.append(known if isinstance(part, dict) else part)
        out["content"] = content
    return out


def _constraint_fields(constraint: Constraint, tools: bool) -> JSON:
    fields: JSON = {}
    choice = constraint.tool_choice
    if tools and choice in ("none", "required"):
        fields["tool_choice"] = choice
    elif tools and choice != "auto":
        fields["tool_choice"] = {"type": "function", "function": {"name": choice}}
    if tools and not constraint.parallel_tool_calls:
        fields["parallel_tool_calls"] = False
    if constraint.min_tokens:
        fields["min_tokens"] = constraint.min_tokens
    schema = constraint.json_schema
    if schema == {"type": "object"}:
        fields["response_format"] = {"type": "json_object"}
    elif schema is not None:
        wanted = {"name": "reply", "schema": schema, "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": wanted}
    return fields
