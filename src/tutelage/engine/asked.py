"""What another server is asked, in OpenAI's words.

A request of our own agents is written here from what it means. One that a client sent to the
gateway goes on as the client wrote it: only what was decided here since is set in it. `remote.py`
is the client that sends both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tutelage.types import JSON, UNBOUNDED, ChatOptions, Constraint, Message, Sampling

_LIMITS = ("max_tokens", "max_completion_tokens")


def written(messages: Sequence[Message], options: ChatOptions) -> JSON:
    """The fields of a request."""
    sampling, tools = options["sampling"], options.get("tools", ())
    body: JSON = {
        "messages": [m.to_dict(extra=True) for m in messages],
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


def passed_on(passed: Mapping[str, Any], options: ChatOptions) -> JSON:
    """The fields of a request that a client sent, as they came. Where it says nothing the defaults
    of its attempt hold, if they are any; the seed is that of its choice, and a limit of tokens is
    no longer than the attempt's."""
    sampling, silent = options["sampling"], Sampling()
    body: JSON = dict(passed)
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
        body[name] = min(body[name], sampling.max_tokens)
    return body


def _constraint_fields(constraint: Constraint, tools: bool) -> JSON:
    fields: JSON = {}
    choice = constraint.tool_choice
    if tools and choice in ("none", "required"):
        fields["tool_choice"] = choice
    elif tools and choice != "auto":
        fields["tool_choice"] = {"type": "function", "function": {"name": choice}}
    if tools and not constraint.parallel_tool_calls:
        fields["parallel_tool_calls"] = False
    schema = constraint.json_schema
    if schema == {"type": "object"}:
        fields["response_format"] = {"type": "json_object"}
    elif schema is not None:
        wanted = {"name": "reply", "schema": schema, "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": wanted}
    return fields
