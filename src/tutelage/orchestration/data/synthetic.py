"""Synthetic workflows over a tool graph: plans with the instructions that ask for them.

A workflow is grown node by node: a tool joins when the types of earlier results fit what it
takes, so single calls, chains and graphs with forks and joins all occur.
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal, cast

from tutelage.errors import ConfigError
from tutelage.orchestration.data.workflows import Workflow, sorted_workflow
from tutelage.orchestration.plan.catalog import Catalog, tools_of
from tutelage.seeds import SeedTree

Shape = Literal["single", "chain", "dag"]

SHARES: Mapping[Shape, float] = {"single": 0.15, "chain": 0.45, "dag": 0.4}
"""How often each shape is drawn."""
_TRIES = 60
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
_HIDDEN = 0.15
"""How often a step is only implied by the name of its result."""
_ANYTHING = ("this", "the file", "what I sent you", "the input", "my data")
SHORT = 3
"""Nodes of a short workflow at most."""
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
    )


def graph_of(catalog: Catalog) -> ToolGraph:
    """A tool graph for any catalog, with phrases made from names and descriptions."""
    base = builtin_graph()
    phrases: dict[str, tuple[str, ...]] = {}
    results: dict[str, tuple[str, ...]] = {}
    for tool in catalog.tools:
        # `Image Downloader`, `get_weather` and `getWeather` as plain words.
        spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", tool.name)
        name = re.sub(r"[^A-Za-z0-9]+", " ", spaced).strip().lower()
        results[tool.name] = (f"what {name} gives",)
        made = [f"use {name} on {{0}}", f"{name} with {{0}}"]
        first = re.split(r"(?<=[.!?])\s", tool.description.strip())[0].rstrip(".")
        if first:
            verb, _, rest = first.partition(" ")
            # "Downloads an image" is asked for as "download an image".
            verb = verb[:-1] if verb.endswith("s") and not verb.endswith("ss") else verb
            clause = f"{verb.lower()} {rest}".replace("{", "(").replace("}", ")")
            made += [f"{clause}, from {{0}}", f"{clause}, for {{0}}"]
        phrases[tool.name] = tuple(made)
    return ToolGraph(catalog, phrases, results, _followers(catalog), base.words)


def generate(
    graph: ToolGraph, count: int, seeds: SeedTree, *, max_nodes: int = 6
) -> list[Workflow]:
    """Return `count` workflows of at most `max_nodes` nodes with different instructions. Raises
    `ConfigError` for a graph with too few tools for them."""
    made = distinct(graph, count, seeds, max_nodes, SHARES)
    if len(made) < count:
        raise ConfigError(
            f"the tool graph gives only {len(made)} different instructions and {count} are "
            f"asked for; lower synthetic_augmentations or add tools"
        )
    return made


def generate_plain(
    graph: ToolGraph, count: int, seeds: SeedTree, shares: Mapping[Shape, float] = SHARES
) -> list[Workflow]:
    """Return at most `count` short workflows in plain words: fewer where the graph has no more.

    People ask for one, two or three things at a time, one after another, without openings and
    asides. Learned beside those of `generate`, they keep a planner from reading more into a short
    instruction than is there.
    """
    plain = replace(graph, words={**graph.words, **PLAIN})
    return distinct(plain, count, seeds, SHORT, shares)


def distinct(
    graph: ToolGraph, count: int, seeds: SeedTree, max_nodes: int, shares: Mapping[Shape, float]
) -> list[Workflow]:
    """Return workflows whose instructions differ, without those for which few draws gave none."""
    made: dict[str, Workflow] = {}
    for number in range(count):
        for attempt in range(_TRIES):
            draw = seeds.child(number, attempt).python()
            shape = draw.choices(list(shares), list(shares.values()))[0]
            low = {"single": 1, "chain": 2, "dag": 3}[shape]
            size = (
                1 if shape == "single" else draw.randint(min(low, max_nodes), max(low, max_nodes))
            )
            workflow = worded(graph, draw, _grow(graph, draw, shape, min(size, max_nodes)))
            if workflow.instruction not in made:
                made[workflow.instruction] = workflow
                break
    return list(made.values())


# ------------------------------------------------------------------ the graph


def _followers(catalog: Catalog) -> dict[str, tuple[str, ...]]:
    """Return the tools that can take what each tool gives, by types; any other tool where no types
    are known."""
    followers: dict[str, list[str]] = {name: [] for name in catalog.names}
    typed = any(tool.outputs for tool in catalog.tools)
    for before, after in itertools.permutations(catalog.tools, 2):
        if not typed or {*map(str.lower, before.outputs)} & {*map(str.lower, after.inputs)}:
            followers[before.name].append(after.name)
    return {name: tuple(after) for name, after in followers.items()}


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
        parents = [parent]
        # A tool that takes two inputs gets a second parent that fits.
        others = [i for i, (t, _) in enumerate(nodes) if i != parent and tool in graph.followers[t]]
        if shape != "chain" and len(graph.catalog[tool].inputs) > 1 and others:
            parents = sorted([parent, draw.choice(others)])
        nodes.append((tool, parents))
    return nodes


def worded(
    graph: ToolGraph, draw: random.Random, nodes: Sequence[tuple[str, list[int]]]
) -> Workflow:
    """Return the workflow of nodes, each a tool with its parents, with an instruction."""
    words = graph.words
    chosen = [draw.choice(graph.results[tool]) for tool, _ in nodes]
    nouns = list(chosen)
    for i, noun in enumerate(chosen):
        if chosen.count(noun) > 1:  # counted, so that each can be named
            ordinal = _ORDINALS[min(chosen[:i].count(noun), 5)]
            nouns[i] = noun.replace("the ", f"the {ordinal} ", 1)
    hidden: set[int] = set()  # steps without a clause: the only parent of the next, which names it
    for index, (_, parents) in enumerate(nodes[:-1]):
        children = [child for child, (_, before) in enumerate(nodes) if index in before]
        only = children == [index + 1] and nodes[index + 1][1] == [index]
        if only and len(parents) < 2 and index - 1 not in hidden and draw.random() < _HIDDEN:
            hidden.add(index)
    text = draw.choice(words["openings"])
    spoken: int | None = None
    named: set[int] = set()
    for index, (tool, parents) in enumerate(nodes):
        inputs: list[str] = []
        for parent in parents:
            pronoun = parent not in named and parent == spoken and draw.random() < 0.6
            inputs.append(draw.choice(words["pronouns"]) if pronoun else nouns[parent])
        kinds = graph.catalog[tool].inputs
        while len(inputs) < max(1, min(2, len(kinds))):
            kind = kinds[len(inputs)] if len(inputs) < len(kinds) else "text"
            inputs.append(draw.choice(words["objects"].get(kind.lower(), _ANYTHING)))
        if index in hidden:
            nouns[index] = f"{nouns[index]} of {inputs[0]}"
            named.add(index)
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
    text = re.sub(r"\{(\w+)\}", lambda found: draw.choice(words["slots"][found[1]]), text).strip()
    workers = [graph.workers[tool] for tool, _ in nodes] if graph.workers else None
    return sorted_workflow(
        text[:1].upper() + text[1:], [t for t, _ in nodes], [p for _, p in nodes], workers=workers
    )


def split(
    workflows: Sequence[Workflow], share: float, seeds: SeedTree
) -> tuple[list[Workflow], list[Workflow]]:
    """(kept, held out): `share` of the workflows is drawn out, at least one of two or more."""
    count = min(len(workflows) - 1, max(1, round(share * len(workflows)))) if share > 0 else 0
    out = set(seeds.python().sample(range(len(workflows)), count))
    kept = [w for i, w in enumerate(workflows) if i not in out]
    return kept, [w for i, w in enumerate(workflows) if i in out]
