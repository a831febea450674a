"""Synthetic requests over tools whose parameters are known, with the arguments that they ask for.

A request is one way to ask for a tool (`ways.json`, by the words of its description) with values
of the kinds that its parameters take. Where a parameter takes a text, a list or a date that another
tool gives, that tool comes first, and the request names what it needs: "how many words does
notes/todo.txt have?" needs a tool that reads and one that counts. `synthetic.py` has requests
over tools whose parameters are not known.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from tutelage.orchestration.data.synthetic import phrases_of
from tutelage.orchestration.data.workflows import Workflow
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool
from tutelage.orchestration.plan.dag import Node, Plan
from tutelage.orchestration.plan.parameters import Parameter, gives, parameters, templates
from tutelage.seeds import SeedTree

Part = Literal["known", "new"]
"""Requests of part `new` have values, and some ways to ask, that part `known` has not."""
_TRIES = 20
_DEPTH = 2
_QUESTION = r"(what|how|which|when|where|who|is|are|do|does|on|in|i|number|today|[^a-z])\b"


@dataclass(slots=True)
class _Draft:
    """A request that grows: its nodes, and what is drawn."""

    draw: random.Random
    part: Part
    nodes: list[Node]
    units: list[str] = field(default_factory=list[str])
    """Two that a quantity can be told in."""

    def pick(self, name: str) -> str:
        listed: Sequence[str] = _words()[name]
        own = [each for i, each in enumerate(listed) if (i % 4 == 3) is (self.part == "new")]
        return self.draw.choice(own or listed)


@dataclass(frozen=True, slots=True)
class _Known:
    """A tool with what requests need of it."""

    tool: CatalogTool
    takes: tuple[Parameter, ...]
    """Its required parameters."""
    gives: str
    ways: tuple[str, ...]
    implied: tuple[str, ...]
    """Ways that leave out the first parameter, a date that is today's."""
    changes: bool
    """Whether what it makes of a text is meant to take that text's place."""


@cache
def _words() -> Mapping[str, Any]:
    place = files("tutelage.orchestration.data") / "ways.json"
    return json.loads(place.read_text(encoding="utf-8"))


def tool_requests(catalog: Catalog, count: int, seeds: SeedTree, part: Part) -> list[Workflow]:
    """At most `count` different requests, as many for each tool; fewer where there are no more."""
    known = [_known(tool) for tool in catalog.tools]
    found: dict[str, Workflow] = {}
    for number in range(count):
        for attempt in range(_TRIES):
            draw = seeds.child(number, attempt).python()
            workflow = _request(known, known[number % len(known)], draw, part)
            if workflow.instruction not in found:
                found[workflow.instruction] = workflow
                break
    return list(found.values())


def _known(tool: CatalogTool) -> _Known:
    text = re.sub(r"[_\W]+", " ", f"{tool.name} {tool.description[:60]}").lower()
    needed = tuple(each for each in parameters(tool) if each.required)
    takes = needed or parameters(tool)[:1]
    ways: list[str] = []
    implied: list[str] = []
    changes = False
    for group in _words()["groups"]:
        if any(re.search(rf"\b{word}s?\b", text) for word in group["words"]):
            fit = [way for way in group["ways"] if _fits(way, len(takes))]
            ways += fit
            implied += group.get("implied", ()) if fit else ()
            changes = changes or bool(fit and group.get("changes"))
    if len(ways) < 4:
        own = phrases_of(tool)
        ways += own if len(takes) < 2 else [f"{way} and {{1}}" for way in own]
    return _Known(tool, takes, gives(tool), tuple(ways), tuple(implied), changes)


def _fits(way: str, count: int) -> bool:
    return {int(each) for each in re.findall(r"\{(\d)\}", way)} == set(range(count))


def _request(known: Sequence[_Known], first: _Known, draw: random.Random, part: Part) -> Workflow:
    draft = _Draft(draw, part, [])
    text = _clause(draft, known, first, _DEPTH)
    writers = [each for each in known if _writes(each) and each.tool.name != first.tool.name]
    if (
        first.changes
        and writers
        and draft.nodes[0].tool != first.tool.name
        and draw.random() < 0.55
    ):
        _write_back(draft, draw.choice(writers))
    elif (
        writers
        and first.gives in ("text", "list", "numbers", "number")
        and draw.random() < (0.6 if first.changes else 0.2)
    ):
        text += _save(draft, draw.choice(writers))
    elif draw.random() < 0.15:
        text += draw.choice(_words()["joins"]) + _clause(draft, known, draw.choice(known), 1)
    asks = "?" in text or re.match(_QUESTION, text)
    text = ("" if asks else draw.choice(_words()["openings"])) + text
    text += draw.choice(("", "", ".", "?", "!"))
    text = re.sub(r"\?(?=.)", "", text)
    text = text[:1].upper() + text[1:] if draw.random() < 0.8 else text
    return Workflow(Plan(text, tuple(draft.nodes)))


def _clause(draft: _Draft, known: Sequence[_Known], tool: _Known, depth: int) -> str:
    """One way to ask for a tool; its nodes, those that it needs first, are added."""
    values: list[str] = []
    arguments: dict[str, object] = {}
    days = [each for each in known if each.gives == "date" and not each.takes]
    implied = bool(tool.implied and days) and draft.draw.random() < 0.3
    for place, parameter in enumerate(tool.takes):
        if implied and place == 0:
            told, value = "", f"<node-{len(draft.nodes)}>"
            draft.nodes.append(Node(days[0].tool.name, description=days[0].tool.description))
        elif implied:
            told, value = _literal(draft, tool, parameter)
        else:
            told, value = _given(draft, known, tool, parameter, depth)
        values.append(told)
        if value is not None:
            arguments[parameter.name] = value
    draft.nodes.append(Node(tool.tool.name, arguments, description=tool.tool.description))
    if implied:
        return draft.draw.choice(tool.implied).replace("{1}", values[1])
    own = [w for i, w in enumerate(tool.ways) if draft.part == "new" or i % 5 != 4]
    way = draft.draw.choice(own or tool.ways)
    for place, told in enumerate(values):
        way = way.replace(f"{{{place}}}", told)
    return re.sub(r"\{\d\}", "it", way)


def _given(
    draft: _Draft, known: Sequence[_Known], tool: _Known, parameter: Parameter, depth: int
) -> tuple[str, object]:
    """How a parameter is spoken of, and its argument: a literal, or another tool's result."""
    draw = draft.draw
    sources = [
        each for each in known
        if each.gives in _wanted(parameter) and each.tool.name != tool.tool.name
        and not any(each.gives in _wanted(other) for other in each.takes)
        and (depth > 1 or not any(other.takes_text for other in each.takes))
    ]  # fmt: skip
    often = 0.35 if "date" in parameter.kinds else 0.75
    if sources and depth > 0 and draw.random() < often:
        source = draw.choice(sources)
        told = _source(draft, known, source, depth - 1)
        return told, f"<node-{len(draft.nodes) - 1}>"
    return _literal(draft, tool, parameter)


def _source(draft: _Draft, known: Sequence[_Known], source: _Known, depth: int) -> str:
    """What is said of a tool that comes first: no more than what it works on."""
    values: list[str] = []
    arguments: dict[str, object] = {}
    for parameter in source.takes:
        told, value = _given(draft, known, source, parameter, depth)
        values.append(told)
        if value is not None:
            arguments[parameter.name] = value
    draft.nodes.append(Node(source.tool.name, arguments, description=source.tool.description))
    if not values:
        return draft.pick("todays") if source.gives == "date" else "it"
    if source.gives == "numbers":
        return draft.draw.choice((f"the numbers in {values[0]}", f"all numbers of {values[0]}",
                                  f"the amounts in {values[0]}", values[0]))  # fmt: skip
    return values[0]


def _wanted(parameter: Parameter) -> tuple[str, ...]:
    if "date" in parameter.kinds:
        return ("date",)
    if "numbers" in parameter.kinds and "array" in parameter.types:
        return ("numbers",) if parameter.types == frozenset({"array"}) else ()
    return ("text",) if parameter.takes_text and not parameter.kinds else ()


def _literal(draft: _Draft, tool: _Known, parameter: Parameter) -> tuple[str, object]:
    """A value of the parameter's kinds, in words and as an argument; None where none can be had."""
    listed = _listed(draft, tool, parameter)
    if listed is not None:
        return listed
    make = next((make for kind, make in _MAKERS.items() if kind in parameter.kinds), None)
    if make is not None:
        return make(draft, parameter)
    if "string" in parameter.types or not parameter.types:
        text = draft.pick("things")
        return draft.draw.choice((f"'{text}'", f'"{text}"')), text
    return "it", None


def _listed(draft: _Draft, tool: _Known, parameter: Parameter) -> tuple[str, object] | None:
    """A value that the tool's own texts list; None where they list none."""
    draw, kinds = draft.draw, parameter.kinds
    made = templates(tool.tool) if kinds & {"path", "url"} else ()
    if made:
        template = draw.choice(made)
        city = draft.pick("cities")
        word = template.split("/")[1]
        told = f"the {word} in {city}" if template.count("/") > 1 else f"the {word}"
        return told, re.sub(r"[A-Z]{2,}", city, template)
    if parameter.words & {"unit", "units"}:
        if not draft.units:
            draft.units = draw.sample(draw.choice(_words()["units"]), 2)
        value = draft.units[-1]
        draft.units.reverse()
        return value, value
    if parameter.options and not kinds - {"name"}:
        value = draw.choice(parameter.options)
        return str(value), value
    if "sql" in kinds or parameter.types == frozenset({"object"}):
        nouns = re.findall(r"\w{4,}", tool.tool.description)
        return " ".join(draw.sample(nouns, min(2, len(nouns)))), None
    return None


def _quantity(draft: _Draft, parameter: Parameter) -> tuple[str, object]:
    draw = draft.draw
    if parameter.types == frozenset({"array"}):
        values = [draw.randrange(1, 900) for _ in range(draw.randrange(2, 5))]
        return ", ".join(map(str, values[:-1])) + f" and {values[-1]}", values
    whole = "integer" in parameter.types or draw.random() < 0.6
    value = draw.randrange(2, 400) if whole else round(draw.uniform(1, 90), 1)
    return str(value), value


def _pattern(draft: _Draft, _: Parameter) -> tuple[str, object]:
    ending, draw = draft.pick("endings"), draft.draw
    if draw.random() < 0.7:
        told = (f"the {ending} files", f"{ending} files", f"my {ending} files", f"*.{ending}")
        return draw.choice(told), f"*.{ending}"
    text = f"{draft.pick('folders')}/*"
    return text, text


def _path(draft: _Draft, parameter: Parameter) -> tuple[str, object]:
    folder = draft.pick("folders")
    if parameter.words & {"folder", "directory"}:
        return folder, folder
    path = f"{draft.pick('names')}.{draft.pick('endings')}"
    if draft.draw.random() < 0.75:
        path = f"{folder}/{path}"
    return draft.draw.choice(_words()["wrap"]).replace("{0}", path), path


def _date(draft: _Draft, _: Parameter) -> tuple[str, object]:
    draw = draft.draw
    year, month, day = draw.randrange(1980, 2031), draw.randrange(1, 13), draw.randrange(1, 29)
    value = f"{year}-{month:02}-{day:02}"
    name = "January February March April May June July August September October November December"
    told = (value, value, f"{day} {name.split()[month - 1]} {year}")
    return draw.choice(told), value


def _expression(draft: _Draft, _: Parameter) -> tuple[str, object]:
    draw = draft.draw
    text = str(draw.randrange(2, 500))
    for _operator in range(draw.choice((1, 1, 2))):
        text += f" {draw.choice('+-*/')} {draw.randrange(2, 99)}"
    text = text.replace(" ", "") if draw.random() < 0.2 else text
    return text, text


def _name(draft: _Draft, _: Parameter) -> tuple[str, object]:
    return (person := draft.pick("people")), person


_MAKERS: Mapping[str, Callable[[_Draft, Parameter], tuple[str, object]]] = {
    "date": _date, "expression": _expression, "numbers": _quantity, "number": _quantity,
    "pattern": _pattern, "path": _path, "name": _name,
}  # fmt: skip


def _writes(known: _Known) -> bool:
    """Whether a tool puts a text in a place."""
    return sum(each.takes_text and not each.kinds for each in known.takes) == 1 and sum(
        bool(each.kinds & {"path", "file"}) for each in known.takes
    ) == 1 and len(known.takes) == 2  # fmt: skip


def _write_back(draft: _Draft, writer: _Known) -> None:
    path = next(iter(draft.nodes[0].arguments.values()), None)
    if str(path).startswith(("/", "<")):
        return
    place, text = sorted(writer.takes, key=lambda each: each.takes_text)
    arguments = {place.name: path, text.name: f"<node-{len(draft.nodes) - 1}>"}
    draft.nodes.append(Node(writer.tool.name, arguments, description=writer.tool.description))


def _save(draft: _Draft, writer: _Known) -> str:
    place, text = sorted(writer.takes, key=lambda each: each.takes_text)
    told, path = _path(draft, place)
    arguments = {place.name: path, text.name: f"<node-{len(draft.nodes) - 1}>"}
    draft.nodes.append(Node(writer.tool.name, arguments, description=writer.tool.description))
    verb = draft.draw.choice(("save", "write", "put", "store", "keep"))
    into = draft.draw.choice(("in", "into", "to"))
    return f"{draft.draw.choice(_words()['joins'])}{verb} {draft.pick('it')} {into} {told}"
