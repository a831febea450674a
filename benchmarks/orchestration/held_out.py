"""Routing on queries that no fit saw: what is shipped, before and after its refit, and PPO there.

Each tenth of a table of outcomes is held out in turn, so that every query is routed once by
predictors that never saw it. `before` is what was shipped when the predictor was fitted on the
training part alone (60 % of the other rows); `after` is the predictor in the checkpoint of today's
`train_phase2`; `a refit` fits all other rows directly, which is what can be reached. On some of the
tenths PPO is trained as well, and both it and the lookahead run workflows of the held-out queries:
of all kinds, and of kinds in which choices depend most on each other. `routing.py` calls this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import numpy as np
from benchmarks.measure import table as markdown
from benchmarks.orchestration.query_level import CALIBRATED, measure_queries

from tutelage.orchestration.data.outcomes import OutcomeTable
from tutelage.orchestration.evaluation.rewards import Preset, RewardWeights
from tutelage.orchestration.routing.phase2 import GROUPS, paired_difference, train_phase2
from tutelage.orchestration.routing.policy import greedy_policy, lookahead_policy
from tutelage.orchestration.routing.predictor import OutcomePredictor
from tutelage.orchestration.routing.router import load_router
from tutelage.orchestration.routing.settings import NORMALIZED, Phase2Settings
from tutelage.orchestration.routing.simulator import (
    QueryTable,
    RewardTerms,
    Scenario,
    WorkflowBatch,
    run_policy,
)
from tutelage.seeds import SeedTree

BEFORE, REFIT = "before: fitted on 60 %", "a refit"
SCENARIOS: Mapping[str, Scenario] = {
    "all kinds of workflows": Scenario(),
    "4 to 6 subtasks within one tight budget": Scenario(
        nodes=(4, 6), budgets=1.0, budget_range=(0.5, 1.2), deadlines=0.0
    ),
    "single subtasks, three tries": Scenario(nodes=(1, 1), budgets=0.0, deadlines=0.0),
}
WORKFLOWS = 4000


def held_out(
    table: OutcomeTable, settings: Phase2Settings, folder: Path, tenths: int, trained: int
) -> dict[str, Any]:
    """The tables of `held_out_page`. PPO is trained on the first `trained` of the tenths."""
    seeds = SeedTree(0).child("held-out")
    order = seeds.numpy().permutation(len(table))
    parts = [np.sort(part) for part in np.array_split(order, 10)][:tenths]
    chances: dict[str, list[Any]] = {name: [] for name in (BEFORE, CALIBRATED, REFIT)}
    rewards: dict[str, list[Any]] = {}
    first: dict[str, Any] = {}
    for number, rows in enumerate(parts):
        test, rest = table.take(rows), table.take(np.setdiff1d(np.arange(len(table)), rows))
        place = seeds.child("tenth", number)
        found = _predictors(rest, test, folder / f"tenth{number}")
        boards = {name: QueryTable.from_table(test, p, Scenario()) for name, p in found.items()}
        for name, board in boards.items():
            chances[name].append(board.chance_QW)
        if number == 0:
            own = {name: board.chance_QW for name, board in boards.items()}
            first = measure_queries(test, own, place).to_json()
        _run_presets(boards, number, place, rewards)
        if number < trained:
            _run_ppo(rest, test, settings, folder / f"ppo{number}", number, rewards)
        print(f"tenth {number}", flush=True)
    whole = table.take(np.concatenate(parts))
    joined = {name: np.concatenate(some) for name, some in chances.items()}
    return {
        "queries": len(whole),
        "tenths": len(parts),
        "trained": trained,
        "episodes": settings.num_episodes,
        "first": first,
        "all": measure_queries(whole, joined, seeds).to_json(),
        "gains": {name: asdict(_gain(some)) for name, some in rewards.items()},
        "means": {name: _means(some) for name, some in rewards.items()},
    }


def _predictors(
    rest: OutcomeTable, test: OutcomeTable, folder: Path
) -> dict[str, OutcomePredictor]:
    seeds = SeedTree(0).child("phase2")
    train, _, _ = rest.split(seeds)
    plain = Phase2Settings(val_workflows=400)
    result = train_phase2(folder, table=rest, test_outcomes=test, settings=plain, evaluate=False)
    return {
        BEFORE: OutcomePredictor.fit(train, seeds)[0],
        CALIBRATED: load_router(result.checkpoint).predictor,
        REFIT: OutcomePredictor.fit(rest, seeds)[0],
    }


def _run_presets(
    boards: Mapping[str, QueryTable], number: int, seeds: SeedTree, rewards: dict[str, list[Any]]
) -> None:
    """The lookahead with both predictors, on the same workflows, under each preset."""
    older, newer = boards[BEFORE], boards[CALIBRATED]
    # What cost and latency are measured against is the newer predictor's for both.
    flows = WorkflowBatch.draw(newer, WORKFLOWS // 4, seeds.child("flows"), GROUPS)
    for preset in get_args(Preset):
        weights = NORMALIZED if preset == "normalized" else RewardWeights()
        terms = RewardTerms(preset, weights)
        one, two = (
            run_policy(board, flows, terms, lookahead_policy(terms)).reward_B
            for board in (older, newer)
        )
        rewards.setdefault(f"refit, {preset}", []).append((one, two, flows.group_B + 1000 * number))


def _run_ppo(
    rest: OutcomeTable,
    test: OutcomeTable,
    settings: Phase2Settings,
    folder: Path,
    number: int,
    rewards: dict[str, list[Any]],
) -> None:
    """PPO and the lookahead with the same predictor, for each kind of workflows trained there."""
    for place, (name, scenario) in enumerate(SCENARIOS.items()):
        result = train_phase2(
            folder / str(place), table=rest, test_outcomes=test, settings=settings,
            scenario=scenario, seed=number, evaluate=False,
        )  # fmt: skip
        board = QueryTable.from_table(test, load_router(result.checkpoint).predictor, scenario)
        terms = result.world.terms
        flows = WorkflowBatch.draw(board, WORKFLOWS, SeedTree(number).child("ppo"), GROUPS)
        one, two = (
            run_policy(board, flows, terms, choose).reward_B
            for choose in (lookahead_policy(terms), greedy_policy(result.model, terms))
        )
        rewards.setdefault(f"PPO, {name}", []).append((one, two, flows.group_B + 1000 * number))


def _gain(some: Sequence[tuple[Any, Any, Any]]) -> Any:
    return paired_difference(*(np.concatenate(part) for part in zip(*some, strict=True)))


def _means(some: Sequence[tuple[Any, Any, Any]]) -> list[float]:
    return [float(np.concatenate(part).mean()) for part in list(zip(*some, strict=True))[:2]]


def held_out_page(found: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    parts: list[str] = []
    for title, measured in (
        (f"The first tenth, {found['first']['queries']} queries", found["first"]),
        (f"All {found['queries']} queries, each held out once", found["all"]),
    ):
        lines = [
            ["after: what is shipped" if row["name"] == CALIBRATED else row["name"],
             *(f"{row[key]:{form}} ({row[f'{key}_low']:{form}} to {row[f'{key}_high']:{form}})"
               for key, form in (("aiq", ".3f"), ("accuracy", ".3f"))),
             f"{1e3 * row['cost']:.4f}"]
            for row in measured["rows"]
        ]  # fmt: skip
        parts.append(f"{title}:\n")
        parts.append(markdown(["router", "AIQ", "accuracy", "USD per 1,000"], lines))
        gaps = [
            [name, f"{gap['mean']:+.4f}", f"{gap['low']:+.4f} to {gap['high']:+.4f}"]
            for name, gap in measured["differences"].items()
        ]
        parts.append(
            "AIQ of what is shipped less that of the others, queries resampled in pairs:\n"
        )
        parts.append(markdown(["less", "difference", "95 % interval"], gaps))
    lines = [
        [name, *(f"{mean:.3f}" for mean in found["means"][name]), f"{gap['mean']:+.3f}",
         f"{gap['low']:+.3f} to {gap['high']:+.3f}"]
        for name, gap in found["gains"].items()
    ]  # fmt: skip
    parts.append(
        "Mean reward of workflows of held-out queries. `refit, PRESET`: the lookahead before and "
        "after the refit, all tenths. `PPO, KIND`: the lookahead, and PPO with the same predictor "
        f"after {found['episodes']} episodes, {found['trained']} tenths. Intervals are those of "
        "groups of queries that no two workflows of different groups share:\n"
    )
    head = ["", "before, or lookahead", "after, or PPO", "difference", "95 % interval"]
    parts.append(markdown(head, lines))
    return "\n".join(parts)
