"""Values of parameters in words and as arguments, for synthetic requests over tools.

A value is drawn from lists (`ways.json`) by the kinds that a parameter takes: a path, a date, a
number with its unit, what a tool's own texts list. `tool_requests.py` puts them into requests.
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

from tutelage.orchestration.plan.catalog import CatalogTool
from tutelage.orchestration.plan.dag import Node
from tutelage.orchestration.plan.parameters import Parameter, templates

Part = Literal["known", "new"]
"""Requests of part `new` have values, and some ways to ask, that part `known` has not."""


@dataclass(slots=True)
class Draft:
    """A request that grows: its nodes, and what is drawn."""

    draw: random.Random
    part: Part
    nodes: list[Node]
    units: list[str] = field(default_factory=list[str])
    """Two that a quantity can be told in."""

    def pick(self, name: str) -> str:
        listed: Sequence[str] = words_of_requests()[name]
        own = [each for i, each in enumerate(listed) if (i % 4 == 3) is (self.part == "new")]
        return self.draw.choice(own or listed)


@dataclass(frozen=True, slots=True)
class Known:
    """A tool with what requests need of it."""

    tool: CatalogTool
    takes: tuple[Parameter, ...]
    """Its required parameters."""
    gives: str
    ways: tuple[str, ...]
    implied: tuple[str, ...]
    """Ways that leave out the first parameter, a date that is today's."""
    held: tuple[str, ...]
    """Further ways, of part `new` alone."""
    past: tuple[str, ...]
    """Ways to ask for a date that was, as far from today as the number says, and for the time from
    a date until today."""
    changes: str
    """Whether what it makes of a text is meant to take that text's place: `unless` the request says
    that it is only shown, only where it is `said`, or not at all."""


@cache
def words_of_requests() -> Mapping[str, Any]:
    place = files("tutelage.orchestration.data") / "ways.json"
    return json.loads(place.read_text(encoding="utf-8"))


def literal(draft: Draft, tool: Known, parameter: Parameter) -> tuple[str, object]:
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


def _listed(draft: Draft, tool: Known, parameter: Parameter) -> tuple[str, object] | None:
    """A value that the tool's own texts list; None where they list none."""
    draw, kinds = draft.draw, parameter.kinds
    made = templates(tool.tool) if kinds & {"path", "url"} else ()
    if made:
        template = draw.choice(made)
        city = draft.pick("cities")
        word = template.split("/")[1]
        told = "the {word} in {0}" if template.count("/") > 1 else "the {word}"
        topic = words_of_requests()["topics"].get(word)
        told = draw.choice(topic["nouns"]) if topic else told
        told = told.replace("{word}", word).replace("{0}", city)
        return told, re.sub(r"[A-Z]{2,}", city, template)
    if parameter.words & {"unit", "units"}:
        if not draft.units:
            draft.units = draw.sample(draw.choice(words_of_requests()["units"]), 2)
        value = draft.units[-1]
        draft.units.reverse()
        return value, value
    if parameter.options and not kinds - {"name"}:
        value = draw.choice(parameter.options)
        return str(value), value
    if "sql" in kinds or parameter.types == frozenset({"object"}):
        return (
            f"{draft.pick('people')}, {draft.pick('cities')}, {date_value(draft, parameter)[0]}",
            None,
        )
    return None


def _quantity(draft: Draft, parameter: Parameter) -> tuple[str, object]:
    draw = draft.draw
    if parameter.types == frozenset({"array"}):
        values = [draw.randrange(1, 900) for _ in range(draw.randrange(2, 5))]
        return ", ".join(map(str, values[:-1])) + f" and {values[-1]}", values
    whole = "integer" in parameter.types or draw.random() < 0.6
    value = draw.randrange(2, 400) if whole else round(draw.uniform(1, 90), 1)
    return str(value), value


def _pattern(draft: Draft, _: Parameter) -> tuple[str, object]:
    ending, draw = draft.pick("endings"), draft.draw
    if draw.random() < 0.7:
        told = (f"the {ending} files", f"{ending} files", f"my {ending} files", f"*.{ending}")
        return draw.choice(told), f"*.{ending}"
    text = f"{draft.pick('folders')}/*"
    return text, text


def path_value(draft: Draft, parameter: Parameter) -> tuple[str, object]:
    folder = draft.pick("folders")
    draw = draft.draw
    if parameter.words & {"folder", "directory"}:
        return draw.choice((folder, folder, f"the {folder} folder", f"my {folder}")), folder
    if parameter.about & {"folder", "directory"} and draw.random() < 0.35:
        return draw.choice((folder, f"the {folder} folder", f"the folder {folder}")), folder
    path = f"{draft.pick('names')}.{draft.pick('endings')}"
    if draw.random() < 0.75:
        path = f"{folder}/{path}"
    return draw.choice(words_of_requests()["wrap"]).replace("{0}", path), path


def date_value(draft: Draft, _: Parameter) -> tuple[str, object]:
    draw = draft.draw
    year, month, day = draw.randrange(1980, 2031), draw.randrange(1, 13), draw.randrange(1, 29)
    value = f"{year}-{month:02}-{day:02}"
    name = "January February March April May June July August September October November December"
    told = (value, value, f"{day} {name.split()[month - 1]} {year}")
    return draw.choice(told), value


def _expression(draft: Draft, _: Parameter) -> tuple[str, object]:
    draw = draft.draw
    text = str(draw.randrange(2, 500))
    for _operator in range(draw.choice((1, 1, 2))):
        text += f" {draw.choice('+-*/')} {draw.randrange(2, 99)}"
    text = text.replace(" ", "") if draw.random() < 0.2 else text
    return text, text


def _name(draft: Draft, _: Parameter) -> tuple[str, object]:
    return (person := draft.pick("people")), person


_MAKERS: Mapping[str, Callable[[Draft, Parameter], tuple[str, object]]] = {
    "date": date_value, "expression": _expression, "numbers": _quantity, "number": _quantity,
    "pattern": _pattern, "path": path_value, "name": _name,
}  # fmt: skip
