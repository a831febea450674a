"""The requests that a planner's confidence is fitted on, made of what was held out of training.

Each held-out workflow is planned with the whole catalog, and again with a part of the catalog that
lacks tools of its plan, so that what comes out is wrong. Beside them stand everyday requests that
no tool of the catalog has to do with. `confidence.py` has the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from tutelage.orchestration.data.elsewhere import other_requests
from tutelage.orchestration.data.workflows import Workflow
from tutelage.orchestration.plan.catalog import Catalog
from tutelage.orchestration.plan.dag import Plan, numbered_calls
from tutelage.orchestration.planner.arguments import with_searches
from tutelage.orchestration.planner.confidence import Confidence, fit_confidence, never_sure
from tutelage.orchestration.planner.model import PlannerModel
from tutelage.seeds import SeedTree

PARTS = 4
"""Parts of the catalog that are left out in turn."""
OTHERS = 200
"""Requests of other topics at most."""
MOST = 400
"""Held-out workflows at most."""


def left_out(catalog: Catalog, seeds: SeedTree, parts: int = PARTS) -> list[set[str]]:
    """The tools of a catalog in `parts` parts, at random."""
    names = list(catalog.names)
    seeds.python().shuffle(names)
    return [set(names[part::parts]) for part in range(min(parts, len(names)))]


def without(catalog: Catalog, lost: set[str]) -> Catalog:
    """A catalog without some of its tools."""
    links = tuple(link for link in catalog.links if not lost.intersection(link))
    return Catalog(tuple(tool for tool in catalog.tools if tool.name not in lost), links)


def same_tools(made: Plan, wanted: Plan) -> bool:
    """Whether a plan has the tools that were wanted, whatever its edges."""
    return Counter(n.tool for n in made.nodes) == Counter(n.tool for n in wanted.nodes)


def is_right(made: Plan, wanted: Plan, catalog: Catalog) -> bool:
    """Whether a plan has the tools and, where they are known, the arguments that were wanted."""
    gold = with_searches(wanted, catalog)
    if not same_tools(made, gold):
        return False
    if not any(node.arguments and catalog[node.tool].schema for node in gold.nodes):
        return True
    known: dict[str, int] = {}
    made_calls, wanted_calls = numbered_calls(made, known), numbered_calls(gold, known)
    return sorted(made_calls) == sorted(wanted_calls)


def calibrate(
    model: PlannerModel, held_out: Sequence[Workflow], seeds: SeedTree
) -> Confidence | None:
    """How sure the planner may be, from workflows that it was not trained on; None where they do
    not tell. A planner that gives no held-out plan its right arguments is never sure, since plans
    with arguments are run as they are. The model is as it was afterwards, and has no confidence
    while it is asked."""
    whole, kept = model.catalog, list(held_out[:MOST])
    model.confidence = None
    rows: list[torch.Tensor] = []
    right: list[bool] = []
    outside: list[bool] = []

    def ask(texts: Sequence[str], wanted: Sequence[Plan | None]) -> None:
        if not texts:
            return
        place = 0
        for found in model.searched(texts, model.settings):
            planned = model.decided(found, model.settings)
            rows.append(model.signals(found, planned))
            for made in planned:
                gold = wanted[place]
                right.append(gold is not None and is_right(made.plan, gold, model.catalog))
                outside.append(gold is None)
                place += 1

    ask([w.instruction for w in kept], [w.plan for w in kept])
    others = other_requests(whole, min(OTHERS, max(20, len(kept))), seeds.child("others"))
    ask(others, [None] * len(others))
    for lost in left_out(whole, seeds.child("left out")):
        open_ = [w for w in kept if lost.issuperset(w.tools) or len(lost & {*w.tools}) > 1]
        if open_ and len(lost) < len(whole):
            model.use_catalog(without(whole, lost))
            ask([w.instruction for w in open_], [None] * len(open_))
    model.use_catalog(whole)
    if not any(right) and any(node.arguments for w in kept for node in w.plan.nodes):
        return never_sure(len(right))
    return fit_confidence(torch.cat(rows), right, outside, len(kept))
