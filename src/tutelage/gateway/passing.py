"""A request that goes on to another server with all its fields.

Behind `--upstream` a request is read by its dialect, which is what is recorded and what refuses
nonsense here, and goes on as a chat completion: one of that dialect as it came, one of another in
the words that its dialect has for it (`Passing` in `dialects/dialect.py`). `engine/remote.py` is
the client that sends it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tutelage.types import JSON

_OURS = frozenset({"model", "n", "stream", "stream_options"})
"""What the gateway decides: the model's name there, one request for each choice, and how its
answer comes."""


def chat_body(body: JSON) -> JSON:
    """What of the body of a chat completion goes on."""
    return {name: value for name, value in body.items() if name not in _OURS}


def chat_body_of(body: JSON, own: Collection[str], told: Mapping[str, Any]) -> JSON:
    """What another dialect's request is as the body of a chat completion: all but its `own` fields,
    and what these say there (`told`), where they say something. The messages are those that were
    read of it."""
    rest = {name: value for name, value in chat_body(body).items() if name not in own}
    return {name: value for name, value in {**rest, **told}.items() if value is not None}


def function_tool(name: str, description: str, parameters: JSON, more: JSON) -> JSON:
    """A function as chat completions know it."""
    told: JSON = {"name": name, **({"description": description} if description else {})}
    return {"type": "function", "function": {**told, "parameters": parameters, **more}}


def schema_format(name: str, schema: JSON, more: JSON) -> JSON:
    """A schema of the reply as chat completions know it."""
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, **more}}
