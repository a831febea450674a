"""What the requests of several dialects have in common: tools, formats, sampling.

The same things stand in other places: chat completions keep a function and a format one level
deeper than responses do, which `inner` says. `fields.py` reads the values.
"""

from __future__ import annotations

from tutelage.gateway.fields import Fields, shown, unsupported
from tutelage.gateway.problems import invalid
from tutelage.types import JSON, Message, Sampling, ToolSpec

MAX_TOOLS = 1024
MAX_STOPS = 16
MAX_NAME = 256
SEEDS = (-(1 << 63), (1 << 63) - 1)


def read_tools(body: Fields, inner: str | None) -> tuple[ToolSpec, ...]:
    """The function tools. Refuses two of one name, and an absurd number of them."""
    found: list[ToolSpec] = []
    for tool in body.objects("tools"):
        of = tool.get("type")
        if of != "function":
            where = tool.at("type")
            raise unsupported(where, f"`{where}` = {shown(of)}: this server knows functions")
        found.append(_tool_spec(tool if inner is None else tool.inner(inner)))
    if len(found) > MAX_TOOLS:
        raise invalid(f"`tools` has {len(found)} entries; {MAX_TOOLS} are allowed", "tools")
    names = [t.name for t in found]
    if len(set(names)) != len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise invalid(f"`tools` has two tools named {twice!r}", "tools")
    return tuple(found)


def _tool_spec(function: Fields) -> ToolSpec:
    """`strict` is a promise that constrained decoding keeps where it applies."""
    function.only("type", "name", "description", "parameters", "strict")
    function.flag("strict")
    name = function.text("name", empty=False)
    if len(name) > MAX_NAME or not name.isprintable():
        where = function.at("name")
        raise invalid(f"`{where}` must be a printable name, not {shown(name)}", where)
    about = function.optional_text("description") or ""
    parameters = function.optional("parameters")
    if parameters is None:
        return ToolSpec(name, about, {"type": "object", "properties": {}})
    return ToolSpec(name, about, parameters.data)


def read_tool_choice(body: Fields, inner: str | None, tools: tuple[ToolSpec, ...]) -> str:
    """`tool_choice` in the words of `Constraint`."""
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        return _named_tool(body.inner("tool_choice"), inner, tools)
    if choice is None or choice == "auto":
        return "auto"
    if choice not in ("none", "required"):
        raise invalid(
            f"`tool_choice` = {shown(choice)} is not supported; use auto, none, required or "
            "name one function",
            "tool_choice",
        )
    if choice == "required" and not tools:
        raise invalid("`tool_choice` = 'required' needs `tools`", "tool_choice")
    return str(choice)


def _named_tool(choice: Fields, inner: str | None, tools: tuple[ToolSpec, ...]) -> str:
    of = choice.get("type")
    if of != "function":
        words = f"`tool_choice.type` = {shown(of)} is not supported"
        raise unsupported("tool_choice", words)
    name = (choice if inner is None else choice.inner(inner)).text("name")
    if name not in [t.name for t in tools]:
        raise invalid(f"`tool_choice` names {name!r}, which is not in `tools`", "tool_choice")
    return name


def read_format(wanted: Fields | None, inner: str | None) -> JSON | None:
    """The schema that the reply must have: none for `text`, any object's for `json_object`."""
    if wanted is None or wanted.get("type") == "text":
        return None
    of = wanted.get("type")
    if of == "json_schema":
        named = wanted if inner is None else wanted.inner(inner)
        named.only("type", "name", "description", "schema", "strict")
        return named.inner("schema").data
    if of == "json_object":
        return {"type": "object"}
    where = wanted.at("type")
    raise unsupported(where, f"`{where}` = {shown(of)} must be text, json_object or json_schema")


def read_sampling(body: Fields, defaults: Sampling, *limits: str) -> Sampling:
    """How to sample; `defaults` says what holds where the request is silent.

    `limits` are the names of the limit of tokens, the one that counts first.
    """
    temperature = body.number("temperature", defaults.temperature, 0, 2)
    top_p = body.number("top_p", defaults.top_p, 0, 1)
    if top_p <= 0:  # it would leave no token to draw
        raise invalid("`top_p` must be above 0; for greedy sampling use `temperature`: 0", "top_p")
    return Sampling(
        temperature=temperature,
        top_p=top_p,
        top_k=max(0, body.integer("top_k", -1) or defaults.top_k),
        max_tokens=next(filter(None, [body.integer(n, 1) for n in limits]), defaults.max_tokens),
        stop=body.texts("stop", most=MAX_STOPS) or defaults.stop,
    )


def check_conversation(messages: tuple[Message, ...], param: str) -> None:
    """Refuse a conversation without messages."""
    if not messages:
        raise invalid(f"`{param}` must not be empty", param)
