"""Messages and tools as chat templates get them; `codec.py` renders them."""

from __future__ import annotations

from collections.abc import Sequence

from tutelage.bounded import parse_json
from tutelage.types import JSON, Message, ToolSpec


def template_forms(
    messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
) -> tuple[list[JSON], list[JSON]]:
    """Messages and tools as templates get them."""
    return [_template_form(m) for m in messages], [t.to_dict() for t in tools]


def _template_form(message: Message) -> JSON:
    """The OpenAI form, but with arguments as an object where they are one: templates differ."""
    out = message.to_dict()
    out["content"] = out["content"] or ""
    for call in out.get("tool_calls", ()):
        try:
            arguments = parse_json(call["function"]["arguments"])
        except ValueError:
            continue
        if isinstance(arguments, dict):
            call["function"]["arguments"] = arguments
    return out
