"""Generator of synthetic workflows: plans over a tool graph, with matching instructions.

A plan is built node by node: a tool can be added if its input types match the outputs of earlier
nodes, so single calls, chains and graphs with forks and joins occur. The instruction is composed of
paraphrases of each step, which refer to earlier results by noun or pronoun, so a planner has to
infer the plan from the text. The built-in graph has phrases for its tools; for other catalogs they
are made from names and descriptions. Draws come from the seed tree: workflow i of a seed is always
the same.
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
from tutelage.orchestration.data.workflows import Workflow, sort_workflow
from tutelage.orchestration.plan.catalog import Catalog, parse_tools
from tutelage.seeds import SeedTree

Shape = Literal["single", "chain", "dag"]

SHARES: Mapping[Shape, float] = {"single": 0.15, "chain": 0.45, "dag": 0.4}
"""Probability of each shape."""
_TRIES = 60
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
_HIDDEN = 0.15
"""Probability that a step is only implied by the name of its result."""
_ANYTHING = ("this", "the file", "what I sent you", "the input", "my data")
SHORT = 3
"""Maximum number of nodes of a short workflow."""
PLAIN: Mapping[str, Any] = {
    "openings": ("", "", "", "Please "),
    "asides": ("",),
    "joins": {
        "next": (", ", ", then ", " and ", ". Then "),
        "aside": (", ", " and ", " and also ", ". Also, "),
        "last": (" and ", ", and "),
    },
}
"""Phrases that join the steps of short instructions: a simple sequence, as people write it."""


@dataclass(frozen=True, slots=True)
class ToolGraph:
    """Tool catalog with phrases for generating instructions."""

    catalog: Catalog
    phrases: Mapping[str, tuple[str, ...]]
    """Paraphrases of a request for each tool; `{0}` and `{1}` are inputs, other braces slots."""
    results: Mapping[str, tuple[str, ...]]
    """Nouns for the result of each tool."""
    followers: Mapping[str, tuple[str, ...]]
    """Tools that accept the output of each tool."""
    words: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Vocabulary: objects by type, slots, openings, asides, joins and pronouns."""
    workers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Worker that an expert would choose for each tool; empty if unknown."""


@cache
def builtin_graph() -> ToolGraph:
    """Load the tool graph included in the package."""
    data = json.loads(
        (files("tutelage.orchestration.data") / "builtin_tools.json").read_text(encoding="utf-8")
    )
    rows = cast("list[dict[str, Any]]", data["nodes"])
    catalog = Catalog(parse_tools(rows))
    return ToolGraph(
        catalog,
        {row["id"]: tuple(row["phrases"]) for row in rows},
        {row["id"]: tuple(row["results"]) for row in rows},
        _followers(catalog),
        {key: data[key] for key in ("objects", "slots", "openings", "asides", "joins", "pronouns")},
        {row["id"]: row["worker"] for row in rows},
    )


def to_graph(catalog: Catalog) -> ToolGraph:
    """Build a tool graph for a catalog, with phrases from tool names and descriptions."""
    base = builtin_graph()
    phrases: dict[str, tuple[str, ...]] = {}
    results: dict[str, tuple[str, ...]] = {}
    for tool in catalog.tools:
        # Split `Image Downloader`, `get_weather` and `getWeather` into lower-case words.
        spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", tool.name)
        name = re.sub(r"[^A-Za-z0-9]+", " ", spaced).strip().lower()
        results[tool.name] = (f"what {name} gives",)
        made = [f"use {name} on {{0}}", f"{name} with {{0}}"]
        first = re.split(r"(?<=[.!?])\s", tool.description.strip())[0].rstrip(".")
        if first:
            verb, _, rest = first.partition(" ")
            # "Downloads an image" becomes "download an image".
            verb = verb[:-1] if verb.endswith("s") and not verb.endswith("ss") else verb
            clause = f"{verb.lower()} {rest}".replace("{", "(").replace("}", ")")
            made += [f"{clause}, from {{0}}", f"{clause}, for {{0}}"]
        phrases[tool.name] = tuple(made)
    return ToolGraph(catalog, phrases, results, _followers(catalog), base.words)


def generate(
    graph: ToolGraph, count: int, seeds: SeedTree, *, max_nodes: int = 6
) -> list[Workflow]:
    """Generate `count` workflows with distinct instructions and at most `max_nodes` nodes. Raises
    `ConfigError` if the graph has too few tools."""
    made = generate_distinct(graph, count, seeds, max_nodes, SHARES)
    if len(made) < count:
        raise ConfigError(
            f"the tool graph yields only {len(made)} distinct instructions, fewer than the "
            f"requested {count}; lower synthetic_augmentations or add tools"
        )
    return made


def generate_plain(
    graph: ToolGraph, count: int, seeds: SeedTree, shares: Mapping[Shape, float] = SHARES
) -> list[Workflow]:
    """Generate up to `count` short workflows with simple instructions.

    The workflows have one to three steps in sequence, without asides. Used with the
    workflows of `generate`, they prevent a planner from predicting too many nodes for short
    instructions.
    """
    plain = replace(graph, words={**graph.words, **PLAIN})
    return generate_distinct(plain, count, seeds, SHORT, shares)


def generate_distinct(
    graph: ToolGraph, count: int, seeds: SeedTree, max_nodes: int, shares: Mapping[Shape, float]
) -> list[Workflow]:
    """Generate up to `count` workflows with distinct instructions. A workflow is skipped after too
    many duplicates."""
    made: dict[str, Workflow] = {}
    for number in range(count):
        for attempt in range(_TRIES):
            draw = seeds.child(number, attempt).python()
            shape = draw.choices(list(shares), list(shares.values()))[0]
            low = {"single": 1, "chain": 2, "dag": 3}[shape]
            size = (
                1 if shape == "single" else draw.randint(min(low, max_nodes), max(low, max_nodes))
            )
            workflow = make_workflow(graph, draw, _sample(graph, draw, shape, min(size, max_nodes)))
            if workflow.instruction not in made:
                made[workflow.instruction] = workflow
                break
    return list(made.values())


# ------------------------------------------------------------------ tool graph


def _followers(catalog: Catalog) -> dict[str, tuple[str, ...]]:
    """Return, for each tool, the tools that accept its output types; all other tools if the catalog
    has no types."""
    followers: dict[str, list[str]] = {name: [] for name in catalog.names}
    typed = any(tool.outputs for tool in catalog.tools)
    for before, after in itertools.permutations(catalog.tools, 2):
        if not typed or {*map(str.lower, before.outputs)} & {*map(str.lower, after.inputs)}:
            followers[before.name].append(after.name)
    return {name: tuple(after) for name, after in followers.items()}


def _sample(
    graph: ToolGraph, rng: random.Random, shape: Shape, size: int
) -> list[tuple[str, list[int]]]:
    """Sample up to `size` nodes as (tool, parents), in topological order."""
    nodes: list[tuple[str, list[int]]] = [(rng.choice(graph.catalog.names), [])]
    while len(nodes) < size:
        used, parent, next_tools = {tool for tool, _ in nodes}, len(nodes) - 1, list[str]()
        if shape == "chain" or rng.random() >= 0.2:
            parent = parent if shape == "chain" else rng.randrange(len(nodes))
            next_tools = [t for t in graph.followers[nodes[parent][0]] if t not in used]
        if not next_tools:
            unused = [t for t in graph.catalog.names if t not in used]
            if shape == "chain" or not unused:
                break
            nodes.append((rng.choice(unused), []))
            continue
        joining = [t for t in next_tools if len(graph.catalog[t].inputs) > 1]
        if shape == "dag" and joining and rng.random() < 0.4:
            next_tools = joining
        tool = rng.choice(next_tools)
        parents = [parent]
        # A tool with two inputs gets a second matching parent.
        others = [i for i, (t, _) in enumerate(nodes) if i != parent and tool in graph.followers[t]]
        if shape != "chain" and len(graph.catalog[tool].inputs) > 1 and others:
            parents = sorted([parent, rng.choice(others)])
        nodes.append((tool, parents))
    return nodes


def make_workflow(
    graph: ToolGraph, rng: random.Random, nodes: Sequence[tuple[str, list[int]]]
) -> Workflow:
    """Create a workflow from nodes (tool, parents), with a generated instruction."""
    words = graph.words
    chosen = [rng.choice(graph.results[tool]) for tool, _ in nodes]
    nouns = list(chosen)
    for i, noun in enumerate(chosen):
        if chosen.count(noun) > 1:  # add an ordinal, so that the reference is unambiguous
            ordinal = _ORDINALS[min(chosen[:i].count(noun), 5)]
            nouns[i] = noun.replace("the ", f"the {ordinal} ", 1)
    hidden: set[int] = set()  # steps without a clause: the next step, their only child, names them
    for index, (_, parents) in enumerate(nodes[:-1]):
        children = [child for child, (_, before) in enumerate(nodes) if index in before]
        only = children == [index + 1] and nodes[index + 1][1] == [index]
        if only and len(parents) < 2 and index - 1 not in hidden and rng.random() < _HIDDEN:
            hidden.add(index)
    text = rng.choice(words["openings"])
    spoken: int | None = None
    named: set[int] = set()
    for index, (tool, parents) in enumerate(nodes):
        inputs: list[str] = []
        for parent in parents:
            pronoun = parent not in named and parent == spoken and rng.random() < 0.6
            inputs.append(rng.choice(words["pronouns"]) if pronoun else nouns[parent])
        kinds = graph.catalog[tool].inputs
        while len(inputs) < max(1, min(2, len(kinds))):
            kind = kinds[len(inputs)] if len(inputs) < len(kinds) else "text"
            inputs.append(rng.choice(words["objects"].get(kind.lower(), _ANYTHING)))
        if index in hidden:
            nouns[index] = f"{nouns[index]} of {inputs[0]}"
            named.add(index)
            continue
        clause = rng.choice(graph.phrases[tool]).replace("{0}", inputs[0])
        clause = clause.replace("{1}", inputs[-1]).rstrip("?")
        if spoken is not None:
            kind = "next" if parents == [spoken] else "aside"
            if index == len(nodes) - 1 and kind == "next" and rng.random() < 0.5:
                kind = "last"
            text += rng.choice(words["joins"][kind])
        text += clause
        spoken = index
    text += rng.choice((".", "", "!", "?"))
    if rng.random() < 0.3:
        text += " " + rng.choice(words["asides"])
    text = re.sub(r"\{(\w+)\}", lambda found: rng.choice(words["slots"][found[1]]), text).strip()
    workers = [graph.workers[tool] for tool, _ in nodes] if graph.workers else None
    return sort_workflow(
        text[:1].upper() + text[1:], [t for t, _ in nodes], [p for _, p in nodes], workers=workers
    )


def split(
    workflows: Sequence[Workflow], share: float, seeds: SeedTree
) -> tuple[list[Workflow], list[Workflow]]:
    """Split workflows at random into a training set and a held-out set (`share` of all)."""
    count = min(len(workflows) - 1, max(1, round(share * len(workflows)))) if share > 0 else 0
    out = set(seeds.python().sample(range(len(workflows)), count))
    kept = [w for i, w in enumerate(workflows) if i not in out]
    return kept, [w for i, w in enumerate(workflows) if i in out]
