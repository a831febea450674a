"""What a planner of NESTFUL declines: the right plans that it keeps against what it refuses.

    python -m benchmarks.orchestration.abstention NESTFUL_FILE

Five folds as in `planning.py` (128 plans to train, 32 to choose the search and to fit the
confidence on, 40 held out). Outside of the catalog are held-out requests whose plan's tools were
all taken out of it, in quarters of the catalog in turn, and requests over the built-in tools. The
curve is over all folds at one threshold; the planner's own threshold is chosen in each fold without
a look at it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from benchmarks.measure import machine
from benchmarks.orchestration.planning import SEEDS, fitted
from benchmarks.orchestration.readers import read_nestful

from tutelage.orchestration.data.synthetic import builtin_graph, generate
from tutelage.orchestration.data.workflows import Workflow, build_catalog
from tutelage.orchestration.plan.catalog import Catalog
from tutelage.orchestration.planner.confidence import reduce_catalog, same_tools
from tutelage.orchestration.planner.settings import Phase1Settings

KINDS = ("right", "wrong", "all tools left out", "some tools left out", "over the built-in tools")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was planned."""

    kind: str
    confidence: float
    threshold: float
    """Of its planner."""


def fold(train: list[Workflow], test: list[Workflow], catalog: Catalog, number: int) -> list[Asked]:
    """All that is asked of the planner of a fold."""
    model = fitted(train, catalog, Phase1Settings(), SEEDS.child("nestful", number)).model
    assert model.confidence is not None
    least, found = model.confidence.threshold, list[Asked]()

    def ask(workflows: Sequence[Workflow], kind: str = "") -> None:
        planned = model.plan_all([w.instruction for w in workflows]) if workflows else []
        for made, workflow in zip(planned, workflows, strict=True):
            own = "right" if same_tools(made.plan, workflow.plan) else "wrong"
            found.append(Asked(kind or own, made.confidence or 0.0, least))

    ask(test)
    ask(generate(builtin_graph(), 100, SEEDS.child("outside")), KINDS[4])
    for rest in reduce_catalog(catalog, SEEDS.child("nestful lost", number)):
        lost = {*catalog.names} - {*rest.names}
        model.use_catalog(rest)
        ask([w for w in test if lost.issuperset(w.tools)], KINDS[2])
        ask([w for w in test if 0 < len(lost & {*w.tools}) < len({*w.tools})], KINDS[3])
        model.use_catalog(catalog)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("nestful")
    workflows = read_nestful(parser.parse_args().nestful)
    catalog = build_catalog(workflows)
    torch.set_num_threads(1)
    order = SEEDS.child("nestful").python().sample(range(len(workflows)), len(workflows))
    found: list[Asked] = []
    for number in range(5):
        test = [workflows[i] for i in order[number::5]]
        train = [workflows[i] for k, i in enumerate(order) if k % 5 != number]
        found += fold(train, test, catalog, number)
    print(f"{machine()}\n\n| requests | declined at the planner's own threshold |\n|---|---|")
    by_kind = {kind: [each for each in found if each.kind == kind] for kind in KINDS}
    for kind, asked in by_kind.items():
        lost = sum(each.confidence < each.threshold for each in asked)
        print(f"| {kind} | {lost} of {len(asked)} ({100 * lost / len(asked):.0f} %) |")
    print(f"\n| right plans kept | {' | '.join(KINDS[1:])} |\n{'|---' * len(KINDS)}|")
    right = sorted(each.confidence for each in by_kind["right"])
    for kept in (0.95, 0.9, 0.85, 0.8, 0.7, 0.6):
        least = right[int((1 - kept) * len(right))]
        shares = (_declined(by_kind[kind], least) for kind in KINDS[1:])
        print(f"| {100 * kept:.0f} % | " + " | ".join(f"{100 * s:.0f} %" for s in shares) + " |")


def _declined(asked: Sequence[Asked], least: float) -> float:
    return sum(each.confidence < least for each in asked) / len(asked)


if __name__ == "__main__":
    main()
