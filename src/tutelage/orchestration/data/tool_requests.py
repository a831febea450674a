"""Synthetic requests over tools whose parameters are known, with the arguments that they ask for.

A request is one way to ask for a tool (`ways.json`, by the words of its description) with values
of the kinds that its parameters take. Where a parameter takes a text, a list or a date that another
tool gives, that tool comes first, and the request names what it needs: "how many words does
notes/todo.txt have?" needs a tool that reads and one that counts. `synthetic.py` has requests
over tools whose parameters are not known.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tutelage.orchestration.data.request_values import (
    Draft,
    Known,
    Part,
    date_value,
    literal,
    path_value,
    words_of_requests,
)
from tutelage.orchestration.data.synthetic import phrases_of
from tutelage.orchestration.data.workflows import Workflow
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool
from tutelage.orchestration.plan.dag import Node, Plan
from tutelage.orchestration.plan.parameters import Parameter, gives, parameters, templates
from tutelage.orchestration.plan.queries import query_for, tables_of
from tutelage.seeds import SeedTree

_TRIES = 20
_DEPTH = 2
HELD = 0.6
"""How often a request of part `new` asks in a way that part `known` never does."""
_QUESTION = r"(what|how|which|when|where|who|is|are|do|does|on|in|i|number|today|[^a-z])\b"


def tool_requests(catalog: Catalog, count: int, seeds: SeedTree, part: Part) -> list[Workflow]:
    """At most `count` different requests, as many for each tool; fewer where there are no more."""
    known = [_known(tool) for tool in catalog.tools]
    writers = [each for each in known if _writes(each)]
    found: dict[str, Workflow] = {}
    for number in range(count):
        for attempt in range(_TRIES):
            draw = seeds.child(number, attempt).python()
            workflow = _request(known, writers, known[number % len(known)], draw, part)
            if workflow.instruction not in found:
                found[workflow.instruction] = workflow
                break
    return list(found.values())


def _known(tool: CatalogTool) -> Known:
    groups = _groups(tool)
    needed = tuple(each for each in parameters(tool) if each.required)
    takes = needed or parameters(tool)[:1]
    ways: list[str] = []
    held: list[str] = []
    implied: list[str] = []
    changes = ""
    past: list[str] = []
    for group in groups:
        fit = [way for way in group["ways"] if _fits(way, len(takes))]
        ways += fit
        held += [way for way in group.get("held", ()) if _fits(way, len(takes))]
        implied += group.get("implied", ()) if fit else ()
        past += group.get("past", ()) if fit else ()
        changes = changes or (group.get("changes", "") if fit else "")
    if len(ways) < 4:
        own = phrases_of(tool)
        ways += own if len(takes) < 2 else [f"{way} and {{1}}" for way in own]
    return Known(
        tool, takes, gives(tool), tuple(ways), tuple(implied), tuple(held), tuple(past), changes
    )


def _groups(tool: CatalogTool) -> list[Mapping[str, Any]]:
    """What a tool is asked for by: the words of its name and those that its description begins
    with, and only where they tell nothing, the words after those."""
    name, words = tool.name.replace("_", " "), re.findall(r"\w+", tool.description)
    found: list[Mapping[str, Any]] = []
    for count in (3, 12):
        text = f"{name} {' '.join(words[:count])}".lower()
        found = [group for group in words_of_requests()["groups"] if _speaks(group, text)]
        if found:
            break
    return found


def _speaks(group: Mapping[str, Any], text: str) -> bool:
    return any(re.search(rf"\b{word}s?\b", text) for word in group["words"])


def _fits(way: str, count: int) -> bool:
    return {int(each) for each in re.findall(r"\{(\d)\}", way)} == set(range(count))


def _request(
    known: Sequence[Known],
    writers: Sequence[Known],
    first: Known,
    draw: random.Random,
    part: Part,
) -> Workflow:
    draft = Draft(draw, part, [])
    text = _clause(draft, known, first, _DEPTH)
    writers = [each for each in writers if each.tool.name != first.tool.name]
    changed = first.changes and draft.nodes[0].tool != first.tool.name
    if changed and writers and draw.random() < (0.4 if first.changes == "said" else 0.55):
        # "Replace a by b in x" means that x is to change; what is only put in order is shown.
        _write_back(draft, draw.choice(writers))
        if first.changes == "said" or draw.random() < 0.5:
            text += draft.pick("in_place")
    elif changed and (first.changes == "unless" or draw.random() < 0.5):
        text += draft.pick("only_shown")
    elif (
        writers
        and first.gives in ("text", "list", "numbers", "number")
        and draw.random() < (0.6 if first.changes else 0.2)
    ):
        text += _save(draft, draw.choice(writers))
    elif draw.random() < 0.15:
        more = Draft(draw, part, list(draft.nodes))
        clause = _clause(more, known, draw.choice(known), 1)
        names = [node.tool for node in more.nodes]
        if len(set(names)) == len(names):
            draft.nodes, text = (
                more.nodes,
                text + draw.choice(words_of_requests()["joins"]) + clause,
            )
    return Workflow(Plan(_said(draft, text), tuple(draft.nodes)))


def _said(draft: Draft, text: str) -> str:
    """A request as it is said: what opens and ends it, and now and then a sentence before it."""
    draw = draft.draw
    asks = "?" in text or re.match(_QUESTION, text)
    text = draw.choice(words_of_requests()["asking" if asks else "openings"]) + text
    text = re.sub(r"\?(?=.)", "", text) + draw.choice(words_of_requests()["closings"])
    text = re.sub(r"\?(?=.)", "", text) + draw.choice(("", "", ".", "?", "!"))
    text = text[:1].upper() + text[1:] if draw.random() < 0.8 else text
    if draw.random() < 0.12:
        name = "before_it_held" if draft.part == "new" else "before_it"
        text = draw.choice(words_of_requests()[name]) + text
    return text


def _clause(draft: Draft, known: Sequence[Known], tool: Known, depth: int) -> str:
    """One way to ask for a tool; its nodes, those that it needs first, are added."""
    draw = draft.draw
    special = _special(draft, known, tool)
    if special is not None:
        return special
    values: list[str] = []
    arguments: dict[str, object] = {}
    days = [each for each in known if each.gives == "date" and not each.takes]
    implied = bool(tool.implied and days) and draft.draw.random() < 0.3
    for place, parameter in enumerate(tool.takes):
        if implied and place == 0:
            told, value = "", f"<node-{len(draft.nodes)}>"
            draft.nodes.append(Node(days[0].tool.name, description=days[0].tool.description))
        elif implied:
            told, value = literal(draft, tool, parameter)
        else:
            told, value = _given(draft, known, tool, parameter, depth)
        values.append(told)
        if value is not None:
            arguments[parameter.name] = value
    draft.nodes.append(Node(tool.tool.name, arguments, description=tool.tool.description))
    if implied:
        return draft.draw.choice(tool.implied).replace("{1}", values[1])
    own = tool.held if draft.part == "new" and draw.random() < HELD else ()
    few = [w for i, w in enumerate(tool.ways) if draft.part == "new" or tool.held or i % 5 != 4]
    if _writes(tool) and any("<node" in str(value) for value in arguments.values()):
        few = [*few, *words_of_requests()["copies"] * 2]
    way = draw.choice(own or few or tool.ways)
    for place, told in enumerate(values):
        way = way.replace(f"{{{place}}}", told)
    return re.sub(r"\{\d\}", "it", way)


def _special(draft: Draft, known: Sequence[Known], tool: Known) -> str | None:
    """Ways that only some tools have: to ask for a page, for rows, or for a time that is past."""
    draw, asked = draft.draw, None
    if tool.past and draw.random() < 0.2:
        return _of_the_past(draft, known, tool)
    if made := templates(tool.tool):
        asked = _page(draft, draw.choice(made)) if draw.random() < 0.6 else None
    elif tables := tables_of(tool.tool):
        asked = _query(draft, draw.choice([*tables.items()]))
    if asked is None:
        return None
    text, value = asked
    arguments = {} if value is None else {tool.takes[0].name: value}
    draft.nodes.append(Node(tool.tool.name, arguments, description=tool.tool.description))
    return text


def _of_the_past(draft: Draft, known: Sequence[Known], tool: Known) -> str | None:
    days = next((each for each in known if each.gives == "date" and not each.takes), None)
    if days is None or len(tool.takes) != 2:
        return None
    today = f"<node-{len(draft.nodes)}>"
    draft.nodes.append(Node(days.tool.name, description=days.tool.description))
    first, second = tool.takes
    arguments: dict[str, object]
    if "date" in second.kinds:
        told, value = date_value(draft, first)
        arguments = {first.name: value, second.name: today}
    else:
        number = draft.draw.randrange(2, 200)
        told = str(number)
        arguments = {first.name: today, second.name: -number}
    draft.nodes.append(Node(tool.tool.name, arguments, description=tool.tool.description))
    return re.sub(r"\{\d\}", told, draft.draw.choice(tool.past))


def _page(draft: Draft, template: str) -> tuple[str, object] | None:
    """A question that a listed page answers."""
    topic = words_of_requests()["topics"].get(template.split("/")[1])
    if topic is None:
        return None
    held = draft.part == "new" and draft.draw.random() < HELD
    city = draft.pick("cities")
    text = draft.draw.choice(topic["held" if held else "asks"]).replace("{0}", city)
    return text, re.sub(r"[A-Z]{2,}", city, template)


def _query(draft: Draft, table: tuple[str, Sequence[str]]) -> tuple[str, object]:
    """A question over a table, and its query."""
    words, draw, (name, columns) = words_of_requests()["queries"], draft.draw, table
    column = draw.choice(columns)
    kinds = ["tables", "one", "one", *([column] * 4 if column in words else [])]
    kinds += ["places", "places"] if {"city", "town", "place"} & {*columns} else []
    kinds += ["most"] if {"amount", "price"} & {*columns} else []
    ways = words[draw.choice(kinds)]
    if draft.part == "new" and draw.random() < 0.4:
        ways = words["held"]
    amount = "amount" if "amount" in columns else "price"
    filled = {"column": column, "table": name, "amount": amount, "name": draft.pick("people"),
              "place": draft.pick("cities")}  # fmt: skip
    text = re.sub(r"\{(\w+)\}", lambda found: filled[found[1]], draw.choice(ways))
    return text, query_for(text, {name: tuple(columns)})


def _given(
    draft: Draft, known: Sequence[Known], tool: Known, parameter: Parameter, depth: int
) -> tuple[str, object]:
    """How a parameter is spoken of, and its argument: a literal, or another tool's result."""
    draw, wanted = draft.draw, _wanted(parameter)
    used = {tool.tool.name, *(node.tool for node in draft.nodes)}
    sources = [
        each for each in known
        if each.gives in wanted and each.tool.name not in used
        and not any(each.gives in _wanted(other) for other in each.takes)
        and (depth > 1 or not any(other.takes_text for other in each.takes))
    ]  # fmt: skip
    often = 0.35 if "date" in parameter.kinds else 0.75
    alone = "date" in parameter.kinds and len(tool.takes) == 1 and depth > 0
    dated = _dated(draft, known, tool) if alone else []
    if dated and draw.random() < 0.15:
        source, told, query = draw.choice(dated)
        draft.nodes.append(Node(source, query))
        return told, f"<node-{len(draft.nodes) - 1}>"
    if sources and depth > 0 and draw.random() < often:
        source = draw.choice(sources)
        told = _source(draft, known, source, depth - 1)
        return told, f"<node-{len(draft.nodes) - 1}>"
    return literal(draft, tool, parameter)


def _dated(
    draft: Draft, known: Sequence[Known], tool: Known
) -> list[tuple[str, str, dict[str, object]]]:
    """Dates that stand in a table, as (tool, how it is spoken of, its arguments)."""
    found: list[tuple[str, str, dict[str, object]]] = []
    for each in known:
        if each.tool.name == tool.tool.name or any(n.tool == each.tool.name for n in draft.nodes):
            continue
        for name, columns in tables_of(each.tool).items():
            for column in sorted({"birthday", "date", "day"} & {*columns}):
                told = f"the {column} of {draft.pick('people')}"
                query = query_for(told, {name: tuple(columns)})
                if query is not None:
                    found.append((each.tool.name, told, {each.takes[0].name: query}))
    return found


def _source(draft: Draft, known: Sequence[Known], source: Known, depth: int) -> str:
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


def _writes(known: Known) -> bool:
    """Whether a tool puts a text in a place."""
    return sum(each.takes_text and not each.kinds for each in known.takes) == 1 and sum(
        bool(each.kinds & {"path", "file"}) for each in known.takes
    ) == 1 and len(known.takes) == 2  # fmt: skip


def _write_back(draft: Draft, writer: Known) -> None:
    path = next(iter(draft.nodes[0].arguments.values()), None)
    if str(path).startswith(("/", "<")):
        return
    place, text = sorted(writer.takes, key=lambda each: each.takes_text)
    arguments = {place.name: path, text.name: f"<node-{len(draft.nodes) - 1}>"}
    draft.nodes.append(Node(writer.tool.name, arguments, description=writer.tool.description))


def _save(draft: Draft, writer: Known) -> str:
    place, text = sorted(writer.takes, key=lambda each: each.takes_text)
    told, path = path_value(draft, place)
    arguments = {place.name: path, text.name: f"<node-{len(draft.nodes) - 1}>"}
    draft.nodes.append(Node(writer.tool.name, arguments, description=writer.tool.description))
    verb = draft.draw.choice(("save", "write", "put", "store", "keep"))
    into = draft.draw.choice(("in", "into", "to"))
    return (
        f"{draft.draw.choice(words_of_requests()['joins'])}{verb} {draft.pick('it')} {into} {told}"
    )
