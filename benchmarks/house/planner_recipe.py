"""How the planner that the package ships is trained and stored; `artefacts.py` runs it.

It learns once, from synthetic workflows over the built-in tools, most of them short and plain, with
sentences of `everyday.json`. Held-out workflows have other names than those of training, as what
users speak of has. Weights are stored as bfloat16 and numbers in 16 or 32 bits, and the memory
without its values, which follow from the rest (`saving.load_shipped`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file

from tutelage.orchestration.data.synthetic import (
    PLAIN,
    Shape,
    ToolGraph,
    builtin_graph,
    generate,
    generate_plain,
    make_workflow,
)
from tutelage.orchestration.data.workflows import Workflow
from tutelage.orchestration.planner.fit import PlannerTrainer
from tutelage.orchestration.planner.settings import Phase1Settings
from tutelage.policy.machine import single_thread
from tutelage.seeds import SeedTree

EVERYDAY = Path(__file__).with_name("everyday.json")
SHARES: Mapping[Shape, float] = {"single": 0.4, "chain": 0.4, "dag": 0.2}
"""How often each shape is drawn among the short workflows."""
SINGLE = 6
"""How often an everyday sentence is used alone."""
SINGLE_SHARE = 0.35
"""Share of the workflows that are one everyday sentence at most; half of the others are short and
plain."""


@dataclass(frozen=True, slots=True)
class PlannerRecipe:
    """How it is trained."""

    workflows: int = 7200
    """Most of them short and plain: people ask for one, two or three things at a time."""
    held_out: int = 720
    """Of those, to choose the search weights and to fit the confidence on."""
    epochs: int = 10
    width: int = 64
    seed: int = 0
    for_each_tool: int = 160
    """Maximum number of workflows for each tool."""


RECIPE = PlannerRecipe()


def train(recipe: PlannerRecipe = RECIPE) -> PlannerTrainer:
    """Train the planner of a recipe over the built-in tools."""
    graph, seeds = builtin_graph(), SeedTree(recipe.seed).child("embedded planner")
    known, new = by_words(graph)
    size = min(recipe.workflows, recipe.for_each_tool * len(graph.catalog))
    held = min(recipe.held_out, size // 5)
    made = workflows_of(*known, size - held, seeds.child("known"))
    taken = {workflow.instruction for workflow in made}
    fresh = workflows_of(*new, held, seeds.child("new words"))
    held_out = [workflow for workflow in fresh if workflow.instruction not in taken]
    settings = Phase1Settings(
        num_epochs=recipe.epochs, width=recipe.width, early_stopping=recipe.epochs
    )
    with single_thread():
        fitting = PlannerTrainer(made, held_out, graph.catalog, settings, seeds.child("fit"))
        while not fitting.done:
            fitting.train_epoch()
    return fitting


Asked = Mapping[str, tuple[str, ...]]
"""Sentences that ask for each tool in none of its own words."""


def workflows_of(graph: ToolGraph, asked: Asked, size: int, seeds: SeedTree) -> list[Workflow]:
    """Return workflows with different instructions, most of them short and plain, in a drawn
    order."""
    single = generate_single(graph, asked, round(SINGLE_SHARE * size), seeds.child("single"))
    rest = size - len(single)
    slots = cast("Mapping[str, Sequence[str]]", graph.words["slots"])
    plain = replace(
        graph,
        words={**graph.words, "slots": {**everyday()["slots"], **slots}},
        phrases={tool: (*own, *asked.get(tool, ())) for tool, own in graph.phrases.items()},
    )
    short = generate_plain(plain, rest // 2, seeds.child("short"), SHARES)
    longer = generate(graph, rest - rest // 2, seeds.child("longer"))
    made = list({w.instruction: w for w in (*single, *short, *longer)}.values())
    seeds.child("order").python().shuffle(made)
    return made


def generate_single(graph: ToolGraph, asked: Asked, count: int, seeds: SeedTree) -> list[Workflow]:
    """Return at most `count` of the ways to ask for each tool in everyday words, each alone and
    with up to `SINGLE` objects.

    Drawn at random, a tool that is asked for in many ways would seldom be asked for in each.
    """
    plain = replace(graph, words={**graph.words, **PLAIN})
    ways = [(tool, way) for tool, listed in asked.items() for way in listed] * SINGLE
    draw = seeds.python()
    draw.shuffle(ways)
    made = [
        make_workflow(replace(plain, phrases={tool: (way,)}), draw, [(tool, [])])
        for tool, way in ways[:count]
    ]
    return list({workflow.instruction: workflow for workflow in made}.values())


@cache
def everyday() -> Mapping[str, Any]:
    """Return how people ask in everyday words, and what they speak of."""
    return json.loads(EVERYDAY.read_text(encoding="utf-8"))


def by_words(graph: ToolGraph) -> tuple[tuple[ToolGraph, Asked], tuple[ToolGraph, Asked]]:
    """Return the graph with everyday words twice: what is named in the second has other names than
    in the first, and it has sentences that the first lacks."""
    words = dict(graph.words)
    for key in ("objects", "slots"):
        more = everyday()[key]
        words[key] = {name: [*listed, *more.get(name, ())] for name, listed in words[key].items()}
        words[key] |= {name: listed for name, listed in more.items() if name not in words[key]}
    slots = cast("Mapping[str, Sequence[str]]", words["slots"])
    known = {name: every(listed, other=False) for name, listed in slots.items()}
    new = {name: every(listed, other=True) for name, listed in slots.items()}
    asked = {tool: tuple(ways) for tool, ways in everyday()["asked"].items()}
    return (
        (
            replace(graph, words={**words, "slots": known}),
            {tool: every(listed, other=False) for tool, listed in asked.items()},
        ),
        (replace(graph, words={**words, "slots": new}), asked),
    )


def every(listed: Sequence[str], *, other: bool) -> tuple[str, ...]:
    """Return every fourth, or the others; all of a list that is too short."""
    return tuple(each for i, each in enumerate(listed) if (i % 4 == 3) is other) or tuple(listed)


def save_shipped(content: Mapping[str, Any], path: Path) -> None:
    """Write what planning needs of a checkpoint as a small safetensors file."""
    plans, (starts, ids, _) = content["memory"]["plans"], content["memory"]["texts"]
    narrow = {torch.float32: torch.bfloat16, torch.int64: torch.uint16}
    tensors = {
        name: tensor if name == "idf" else tensor.to(narrow.get(tensor.dtype, tensor.dtype))
        for name, tensor in content["model_state_dict"].items()
    }
    tensors |= {
        "memory.starts": starts.int(),
        "memory.ids": ids.to(torch.uint16),
        "memory.plans": plans.short(),
    }
    plain = ("vocabulary", "width", "search", "confidence")
    save_file(tensors, path, {"record": json.dumps({key: content[key] for key in plain})})
