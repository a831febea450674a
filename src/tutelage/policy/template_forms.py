"""Convert messages and tools to the form that chat templates expect; `codec.py` renders them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from tutelage.bounded import parse_json
from tutelage.types import JSON, Message, ToolSpec


def template_forms(
    messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
) -> tuple[list[JSON], list[JSON]]:
    """Convert messages and tools to the OpenAI format, with tool-call arguments as objects.

    Arguments that are not a valid JSON object stay text.
    """
    forms: list[JSON] = []
    for message in messages:
        form = message.to_dict()
        form["content"] = form["content"] or ""
        for call in form.get("tool_calls", ()):
            with suppress(ValueError):
                arguments = parse_json(call["function"]["arguments"])
                if isinstance(arguments, dict):
                    call["function"]["arguments"] = arguments
        forms.append(form)
    return forms, [tool.to_dict() for tool in tools]
