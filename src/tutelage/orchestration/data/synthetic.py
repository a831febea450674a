"""Synthetic workflows over a tool graph: plans with the instructions that ask for them.

A workflow is grown node by node: a tool joins when the types of earlier results fit what it takes
(or where the graph links it), so single calls, chains and graphs with forks and joins all occur.
Its instruction is put together from paraphrases of each step, which name earlier results by noun
or pronoun; what a plan is must be read from the words. The built-in graph has such words for its
tools; for any other catalog they are made from names and descriptions. Every draw is addressed by
the seed tree: workflow i of a seed is always the same.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal, cast

from tutelage.errors import ConfigError, DataError
from tutelage.orchestration.data.workflows import Workflow, sorted_workflow
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool, tools_of
from tutelage.seeds import SeedTree

Shape = Literal["single", "chain", "dag"]

SHARES: Mapping[Shape, float] = {"single": 0.15, "chain": 0.45, "dag": 0.4}
"""How often each shape is drawn."""
_EVERYDAY_SHARES: Mapping[Shape, float] = {"single": 0.4, "chain": 0.4, "dag": 0.2}
_TRIES = 60
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
_HIDDEN = 0.15
"""How often a step is only implied by the name of its result."""
SHORT = 3
"""Nodes of a short workflow at most."""
SINGLE = 6
"""How often an everyday sentence is used alone."""
PLAIN: Mapping[str, Any] = {
    "openings": ("", "", "", "Please "),
    "asides": ("",),
    "joins": {
        "next": (", ", ", then ", " and ", ". Then "),
        "aside": (", ", " and ", " and also ", ". Also, "),
        "last": (" and ", ", and "),
    },
}
"""How short ones are put together: as people write, one thing after another."""


@dataclass(frozen=True, slots=True)
class ToolGraph:
    """A catalog with what instructions are made of."""

    catalog: Catalog
    phrases: Mapping[str, tuple[str, ...]]
    """Ways to ask for each tool; `{0}` and `{1}` are its inputs, other braces are slots."""
    results: Mapping[str, tuple[str, ...]]
    """Nouns for what each tool gives."""
    followers: Mapping[str, tuple[str, ...]]
    """Tools that can take what a tool gives."""
    words: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Objects by type, slots, openings, asides, joins and pronouns."""
    workers: Mapping[str, str] = field(default_factory=dict[str, str])
    """The worker that an expert would choose for each tool; empty where nobody says."""
    asked: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Everyday sentences that ask for each tool in none of its own words."""


@cache
def builtin_graph() -> ToolGraph:
    """The tool graph that the package ships."""
    data = json.loads(
        (files("tutelage.orchestration.data") / "builtin_tools.json").read_text(encoding="utf-8")
    )
    rows = cast("list[dict[str, Any]]", data["nodes"])
    catalog = Catalog(tools_of(rows))
    return ToolGraph(
        catalog,
        {row["id"]: tuple(row["phrases"]) for row in rows},
        {row["id"]: tuple(row["results"]) for row in rows},
        _followers(catalog),
        {key: data[key] for key in ("objects", "slots", "openings", "asides", "joins", "pronouns")},
        {row["id"]: row["worker"] for row in rows},
        {tool: tuple(ways) for tool, ways in _everyday()["asked"].items()},
    )


@cache
def _everyday() -> Mapping[str, Any]:
    """How people ask in everyday words, and what they speak of."""
    place = files("tutelage.orchestration.data") / "everyday.json"
    return json.loads(place.read_text(encoding="utf-8"))


def graph_of(catalog: Catalog) -> ToolGraph:
    """A tool graph for any catalog, with phrases made from names and descriptions."""
    base = builtin_graph()
    phrases = {tool.name: phrases_of(tool) for tool in catalog.tools}
    results = {tool.name: (f"what {_words(tool.name)} gives",) for tool in catalog.tools}
    return ToolGraph(catalog, phrases, results, _followers(catalog), base.words)


def by_words(graph: ToolGraph) -> tuple[ToolGraph, ToolGraph]:
    """The graph twice, with everyday words: what is named in the second has other names than in the
    first, as what users speak of has, and it has sentences that the first lacks."""
    words = dict(graph.words)
    for key in ("objects", "slots"):
        more = _everyday()[key]
        words[key] = {name: [*listed, *more.get(name, ())] for name, listed in words[key].items()}
        words[key] |= {name: listed for name, listed in more.items() if name not in words[key]}
    whole = replace(graph, words=words)
    slots = cast("Mapping[str, Sequence[str]]", words["slots"])
    known = {name: _every(listed, other=False) for name, listed in slots.items()}
    new = {name: _every(listed, other=True) for name, listed in slots.items()}
    asked = {tool: _every(listed, other=False) for tool, listed in graph.asked.items()}
    return (
        replace(whole, words={**words, "slots": known}, asked=asked),
        replace(whole, words={**words, "slots": new}),
    )


def _every(listed: Sequence[str], *, other: bool) -> tuple[str, ...]:
    """Every fourth, or the others; all of a list that is too short."""
    return tuple(each for i, each in enumerate(listed) if (i % 4 == 3) is other) or tuple(listed)


def generate(
    graph: ToolGraph,
    count: int,
    seeds: SeedTree,
    *,
    max_nodes: int = 6,
    shares: Mapping[Shape, float] = SHARES,
) -> list[Workflow]:
    """`count` workflows of at most `max_nodes` nodes with different instructions.

    Raises `ConfigError` for a bound below 1, and when the graph has too few tools for them.
    """
    if max_nodes < 1:
        raise ConfigError(f"max_nodes is {max_nodes!r}; a workflow has at least one node")
    found: list[Workflow] = []
    for made in _distinct(graph, count, seeds, max_nodes, shares):
        if made is None:
            raise ConfigError(
                f"the tool graph gives only {len(found)} different instructions and {count} are "
                f"asked for; lower synthetic_augmentations or add tools"
            )
        found.append(made)
    return found


def generate_plain(
    graph: ToolGraph, count: int, seeds: SeedTree, *, everyday: bool = False
) -> list[Workflow]:
    """At most `count` short workflows in plain words: fewer where the graph has no more of them.

    People ask for one, two or three things at a time, one after another, without openings and
    asides. Learned beside those of `generate`, they keep a planner from reading more into a short
    instruction than is there. `everyday` sentences ask in none of a tool's own words, and more of
    the workflows are one alone.
    """
    words, phrases, shares = {**graph.words, **PLAIN}, graph.phrases, SHARES
    if everyday:
        phrases = {tool: (*own, *graph.asked.get(tool, ())) for tool, own in phrases.items()}
        slots = cast("Mapping[str, Sequence[str]]", graph.words["slots"])
        words["slots"], shares = {**_everyday()["slots"], **slots}, _EVERYDAY_SHARES
    plain = replace(graph, words=words, phrases=phrases)
    made = _distinct(plain, count, seeds, SHORT, shares)
    return [workflow for workflow in made if workflow is not None]


def generate_single(graph: ToolGraph, count: int, seeds: SeedTree) -> list[Workflow]:
    """At most `count` of the ways to ask for each tool in everyday words, each alone and with up to
    `SINGLE` objects.

    Drawn at random, a tool that is asked for in many ways would seldom be asked for in each.
    """
    plain = replace(graph, words={**graph.words, **PLAIN})
    ways = [(tool, way) for tool, listed in graph.asked.items() for way in listed] * SINGLE
    draw = seeds.python()
    draw.shuffle(ways)
    made = [
        _worded(replace(plain, phrases={tool: (way,)}), draw, [(tool, [])])
        for tool, way in ways[:count]
    ]
    return list({workflow.instruction: workflow for workflow in made}.values())


def _distinct(
    graph: ToolGraph, count: int, seeds: SeedTree, max_nodes: int, shares: Mapping[Shape, float]
) -> Iterator[Workflow | None]:
    """Workflows whose instructions differ; None where a few draws gave no new one."""
    seen: set[str] = set()
    for number in range(count):
        draws = (seeds.child(number, attempt).python() for attempt in range(_TRIES))
        made = (_workflow(graph, draw, max_nodes, shares) for draw in draws)
        fresh = next((workflow for workflow in made if workflow.instruction not in seen), None)
        if fresh is not None:
            seen.add(fresh.instruction)
        yield fresh


# ------------------------------------------------------------------ the graph


def _followers(catalog: Catalog) -> dict[str, tuple[str, ...]]:
    if catalog.links:
        pairs = [pair for pair in dict.fromkeys(catalog.links) if pair[0] != pair[1]]
    else:
        # Where nothing is known of the types, anything may follow anything.
        typed = any(tool.outputs for tool in catalog.tools)
        both = itertools.permutations(catalog.tools, 2)
        pairs = [(a.name, b.name) for a, b in both if not typed or _fits(a, b)]
    values: dict[str, list[str]] = {name: [] for name in catalog.names}
    for before, after in pairs:
        values[before].append(after)
    return {name: tuple(after) for name, after in values.items()}


def _fits(before: CatalogTool, after: CatalogTool) -> bool:
    names = {kind.lower() for kind in before.outputs}
    return any(kind.lower() in names for kind in after.inputs)


def _grow(
    graph: ToolGraph, draw: random.Random, shape: Shape, size: int
) -> list[tuple[str, list[int]]]:
    """Nodes as (tool, parents), each parent before its child; may be shorter than `size`."""
    nodes: list[tuple[str, list[int]]] = [(draw.choice(graph.catalog.names), [])]
    while len(nodes) < size:
        used, parent, next_tools = {tool for tool, _ in nodes}, len(nodes) - 1, list[str]()
        if shape == "chain" or draw.random() >= 0.2:
            parent = parent if shape == "chain" else draw.randrange(len(nodes))
            next_tools = [t for t in graph.followers[nodes[parent][0]] if t not in used]
        if not next_tools:
            unused = [t for t in graph.catalog.names if t not in used]
            if shape == "chain" or not unused:
                break
            nodes.append((draw.choice(unused), []))
            continue
        joining = [t for t in next_tools if len(graph.catalog[t].inputs) > 1]
        if shape == "dag" and joining and draw.random() < 0.4:
            next_tools = joining
        tool = draw.choice(next_tools)
        nodes.append((tool, _parents(graph, draw, nodes, tool, parent, shape)))
    return nodes


def _parents(
    graph: ToolGraph,
    draw: random.Random,
    nodes: Sequence[tuple[str, list[int]]],
    tool: str,
    parent: int,
    shape: Shape,
) -> list[int]:
    """The parent, and for a tool that takes two inputs of a graph a second one that fits."""
    others = [i for i, (t, _) in enumerate(nodes) if i != parent and tool in graph.followers[t]]
    alone = shape == "chain" or len(graph.catalog[tool].inputs) < 2 or not others
    return [parent] if alone else sorted([parent, draw.choice(others)])


def _workflow(
    graph: ToolGraph, draw: random.Random, max_nodes: int, shares: Mapping[Shape, float]
) -> Workflow:
    shape = draw.choices(list(shares), list(shares.values()))[0]
    low = {"single": 1, "chain": 2, "dag": 3}[shape]
    size = 1 if shape == "single" else draw.randint(min(low, max_nodes), max(low, max_nodes))
    return _worded(graph, draw, _grow(graph, draw, shape, min(size, max_nodes)))


def _worded(
    graph: ToolGraph, draw: random.Random, nodes: Sequence[tuple[str, list[int]]]
) -> Workflow:
    text = _instruction(graph, draw, nodes)
    workers = [graph.workers[tool] for tool, _ in nodes] if graph.workers else None
    return sorted_workflow(text, [t for t, _ in nodes], [p for _, p in nodes], workers=workers)


# ------------------------------------------------------------------ the words


def _instruction(
    graph: ToolGraph, draw: random.Random, nodes: Sequence[tuple[str, list[int]]]
) -> str:
    words = graph.words
    nouns = _nouns(graph, draw, [tool for tool, _ in nodes])
    hidden = _hidden(draw, nodes)
    objects: dict[int, str] = {}
    text = draw.choice(words["openings"])
    spoken: int | None = None
    for index, (tool, parents) in enumerate(nodes):
        inputs = [_named(nouns, objects, parent, spoken, words, draw) for parent in parents]
        kinds = graph.catalog[tool].inputs
        while len(inputs) < max(1, min(2, len(kinds))):
            kind = kinds[len(inputs)] if len(inputs) < len(kinds) else "text"
            inputs.append(draw.choice(words["objects"].get(kind.lower(), _ANYTHING)))
        if index in hidden:
            objects[index] = f"{nouns[index]} of {inputs[0]}"
            continue
        clause = draw.choice(graph.phrases[tool]).replace("{0}", inputs[0])
        clause = clause.replace("{1}", inputs[-1]).rstrip("?")
        if spoken is not None:
            kind = "next" if parents == [spoken] else "aside"
            if index == len(nodes) - 1 and kind == "next" and draw.random() < 0.5:
                kind = "last"
            text += draw.choice(words["joins"][kind])
        text += clause
        spoken = index
    text += draw.choice((".", "", "!", "?"))
    if draw.random() < 0.3:
        text += " " + draw.choice(words["asides"])
    text = re.sub(r"\{(\w+)\}", lambda found: draw.choice(words["slots"][found[1]]), text)
    text = text.strip()
    return text[:1].upper() + text[1:]


_ANYTHING = ("this", "the file", "what I sent you", "the input", "my data")


def _nouns(graph: ToolGraph, draw: random.Random, tools: Sequence[str]) -> list[str]:
    """A noun for each result; results that share one are counted, so that each can be named."""
    chosen = [draw.choice(graph.results[tool]) for tool in tools]
    return [
        noun
        if chosen.count(noun) == 1
        else noun.replace("the ", f"the {_ORDINALS[min(chosen[:i].count(noun), 5)]} ", 1)
        for i, noun in enumerate(chosen)
    ]


def _hidden(draw: random.Random, nodes: Sequence[tuple[str, list[int]]]) -> set[int]:
    """Steps that need no clause: the only parent of the next step, whose input their name is."""
    numbers: set[int] = set()
    for index, (_, parents) in enumerate(nodes[:-1]):
        children = [child for child, (_, before) in enumerate(nodes) if index in before]
        only = children == [index + 1] and nodes[index + 1][1] == [index]
        if only and len(parents) < 2 and index - 1 not in numbers and draw.random() < _HIDDEN:
            numbers.add(index)
    return numbers


def _named(
    nouns: Sequence[str],
    objects: Mapping[int, str],
    parent: int,
    spoken: int | None,
    words: Mapping[str, Any],
    draw: random.Random,
) -> str:
    """How a step speaks of an earlier result."""
    if parent not in objects and parent == spoken and draw.random() < 0.6:
        return draw.choice(words["pronouns"])
    return objects.get(parent, nouns[parent])


def _words(name: str) -> str:
    """`Image Downloader`, `get_weather` and `getWeather` as plain words."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return re.sub(r"[^A-Za-z0-9]+", " ", spaced).strip().lower()


def phrases_of(tool: CatalogTool) -> tuple[str, ...]:
    """Ways to ask for a tool, made from its name and its description; `{0}` is its input."""
    name = _words(tool.name)
    first = re.split(r"(?<=[.!?])\s", tool.description.strip())[0].rstrip(".")
    made = [f"use {name} on {{0}}", f"{name} with {{0}}"]
    if first:
        verb, _, rest = first.partition(" ")
        # "Downloads an image" is asked for as "download an image".
        verb = verb[:-1] if verb.endswith("s") and not verb.endswith("ss") else verb
        clause = f"{verb.lower()} {rest}".replace("{", "(").replace("}", ")")
        made += [f"{clause}, from {{0}}", f"{clause}, for {{0}}"]
    return tuple(made)


def split(
    workflows: Sequence[Workflow], share: float, seeds: SeedTree
) -> tuple[list[Workflow], list[Workflow]]:
    """(kept, held out): `share` of the workflows is drawn out, at least one of two or more.

    Raises `DataError` when there is nothing to split.
    """
    if not workflows:
        raise DataError("there are no workflows to split; give at least one")
    count = min(len(workflows) - 1, max(1, round(share * len(workflows)))) if share > 0 else 0
    out = set(seeds.python().sample(range(len(workflows)), count))
    kept = [w for i, w in enumerate(workflows) if i not in out]
    return kept, [w for i, w in enumerate(workflows) if i in out]
