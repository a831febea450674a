"""Routing: PPO beside every baseline, over several seeds, and where it only ties.

    python -m benchmarks.orchestration.routing --outcomes FILE --models FILE
        [--seeds 3] [--episodes 1000] [--beta 5] [--gamma-latency 3] [--results routing.json]

Without files the outcomes are simulated. First each tenth of the table is held out in turn
(`held_out.py`): what is shipped, before and after it is fitted on all other rows, and PPO less the
lookahead on queries that neither saw. For each seed (which cuts the table, draws the workflows
and starts the policy): phase 2 as it is by default, evaluated once on test workflows; and single
nodes with one try, where no choice depends on another. Differences pool the paired rewards of all
seeds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from benchmarks.measure import machine
from benchmarks.measure import table as markdown
from benchmarks.orchestration.curves import measured_aiq
from benchmarks.orchestration.held_out import held_out, held_out_page

from tutelage.orchestration.data.outcomes import OutcomeTable, read_outcomes, simulate_outcomes
from tutelage.orchestration.evaluation.rewards import Preset, RewardWeights
from tutelage.orchestration.routing.phase2 import (
    GROUPS,
    SIMULATED,
    Phase2Result,
    RouterEvaluation,
    paired_difference,
    train_phase2,
)
from tutelage.orchestration.routing.policy import (
    LOOKAHEAD,
    POLICY,
    baselines,
    greedy_policy,
    lookahead_policy,
)
from tutelage.orchestration.routing.settings import NORMALIZED, Phase2Settings
from tutelage.orchestration.routing.simulator import (
    Chooser,
    DecisionBatch,
    Ints,
    QueryTable,
    RewardTerms,
    Scenario,
    WorkflowBatch,
    WorkflowSimulator,
    run_policy,
)
from tutelage.seeds import SeedTree
from tutelage.statistics.intervals import has_interval

Rewards = dict[str, list[float]]
"""By router; the group of queries of each workflow stands under `GROUP`."""
GREEDY = "greedy utility"
GROUP = "group"
ORACLE = "oracle"
SEPARABLE = Scenario(nodes=(1, 1), max_tries=1, budgets=0.0, deadlines=0.0)
"""One node, one try, no limits: no choice depends on another."""
CURVE = 2000
"""Workflows behind each point of a curve and each reward of a preset."""


def plain_utility(at: DecisionBatch, terms: RewardTerms) -> Any:
    """Return the utilities of the current node alone, [D, A]; -inf for masked actions.

    alpha * chance - cost - time for a worker, alpha * P(last answer is right) for accept, 0 for
    stop.
    """
    per_usd_D, per_second_D = terms.prices(at.cost_ref_D, at.latency_ref_D)
    try_DW = (
        terms.weights.alpha * at.chance_DW
        - per_usd_D[:, None] * at.cost_DW
        - per_second_D[:, None] * at.seconds_DW
    )
    settle_D2 = np.stack([terms.weights.alpha * at.last_D, np.zeros_like(at.last_D)], axis=1)
    return np.where(at.mask_DA, np.concatenate([try_DW, settle_D2], axis=1), -np.inf)


def greedy(terms: RewardTerms) -> Any:
    """The action of the highest utility at this node alone."""
    return lambda _, rows, at: plain_utility(at, terms).argmax(axis=1)


def oracle(terms: RewardTerms) -> Chooser:
    """Return a chooser that knows every outcome: at each node it takes the cheapest right worker,
    and it begins no workflow where one lacks.

    A bound that nobody can reach without looking, and nearly the highest: it weighs cost and
    seconds node by node and does not search over plans.
    """

    def choose(simulator: WorkflowSimulator, rows: Ints, at: DecisionBatch) -> Ints:
        query_table, query_D = simulator.query_table, simulator.queries(rows)
        table, right_DW = query_table.table, query_table.table.right_QW[query_D]
        per_usd_D, per_second_D = terms.prices(at.cost_ref_D, at.latency_ref_D)
        price_DW = (
            per_usd_D[:, None] * table.costs_QW[query_D]
            + per_second_D[:, None] * table.seconds_QW[query_D]
            # A right answer that is rejected costs a decision more, and is accepted then.
            + 1e-6 * ~query_table.passes_QW[query_D]
        )
        workers = right_DW.shape[1]
        possible_DW = right_DW & at.mask_DA[:, :workers]
        best_D = np.where(possible_DW, -price_DW, -np.inf).argmax(axis=1)
        last_D = simulator.last_workers(rows)
        held_D = (last_D >= 0) & right_DW[np.arange(len(rows)), np.maximum(last_D, 0)]
        solvable_Q = np.any(table.right_QW & query_table.legal_QW, axis=1)
        solvable_DN = solvable_Q[simulator.query_BN[rows]] | ~simulator.exists_BN[rows]
        hopeless_D = ~solvable_DN.all(axis=1) | ~(possible_DW.any(axis=1) | held_D)
        return np.where(hopeless_D, workers + 1, np.where(held_D, workers, best_D))

    return choose


def with_oracle(result: Phase2Result) -> RouterEvaluation:
    """The evaluation of a result, with rows of the greedy router and of the oracle."""
    evaluation, terms = result.evaluation, result.world.terms
    assert evaluation is not None
    done = evaluation.outcomes[POLICY]
    best = run_policy(done.query_table, done.flows, terms, oracle(terms))
    plain = run_policy(done.query_table, done.flows, terms, greedy(terms))
    return replace(evaluation, outcomes={**evaluation.outcomes, GREEDY: plain, ORACLE: best})


def rewards_of(result: Phase2Result, settings: Phase2Settings, seed: int) -> Rewards:
    """Rewards of the policy and of both greedy ones on the test workflows of a result."""
    world, seeds = result.world, SeedTree(seed).child("phase2")
    query_table = QueryTable.from_table(world.test, world.train.predictor, world.train.scenario)
    flows = WorkflowBatch.draw(query_table, settings.test_workflows, seeds.child("test"), GROUPS)
    choosers = {
        POLICY: greedy_policy(result.model, world.terms),
        GREEDY: greedy(world.terms),
        LOOKAHEAD: lookahead_policy(world.terms),
    }
    rewards = {
        name: [float(r) for r in run_policy(query_table, flows, world.terms, choose).reward_B]
        for name, choose in choosers.items()
    }
    return rewards | {GROUP: [float(g) for g in flows.group_B]}


def pooled(parts: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, dict[str, Any]]:
    """The policy less each other router, over the workflows of all seeds."""
    found: dict[str, dict[str, Any]] = {}
    mine = np.concatenate([part[POLICY] for part in parts])
    groups = [np.array(part[GROUP]) + 1000 * k for k, part in enumerate(parts)]
    for name in parts[0]:
        if name in (POLICY, GROUP):
            continue
        theirs = np.concatenate([part[name] for part in parts])
        gap = paired_difference(theirs, mine, np.concatenate(groups).astype(np.int64))
        each = [float(np.mean(part[POLICY]) - np.mean(part[name])) for part in parts]
        found[name] = {**asdict(gap), "by_seed": each}
    return found


def one_seed(
    table: OutcomeTable, seed: int, settings: Phase2Settings, folder: Path
) -> dict[str, Any]:
    """All that is trained for one seed, with CPU seconds."""
    episodes = settings.num_episodes
    start = time.process_time()
    main = train_phase2(folder / f"main{seed}", table=table, seed=seed, settings=settings)
    seconds = time.process_time() - start
    apart_settings = settings.model_copy(update={"num_episodes": max(16, episodes // 3)})
    apart = train_phase2(
        folder / f"apart{seed}", table=table, seed=seed, settings=apart_settings,
        scenario=SEPARABLE, evaluate=False,
    )  # fmt: skip
    evaluation = with_oracle(main)
    rows, presets = evaluated(main, evaluation, seed)
    outcomes = evaluation.outcomes
    return {
        "seed": seed,
        "cpu_seconds": seconds,
        "best_update": main.best_update,
        "evaluation": {"rows": rows, "presets": presets},
        "rewards": {k: [float(r) for r in v.reward_B] for k, v in outcomes.items()}
        | {GROUP: [float(g) for g in outcomes[POLICY].flows.group_B]},
        "apart": rewards_of(apart, apart_settings, seed),
    }


def evaluated(
    result: Phase2Result, evaluation: RouterEvaluation, seed: int
) -> tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """A row a router of the test, and the rewards of routers under each preset."""
    world = result.world
    query_table = QueryTable.from_table(world.test, world.train.predictor, world.train.scenario)
    place = SeedTree(seed).child("phase2", "curves")
    flows = WorkflowBatch.draw(query_table, CURVE, place, GROUPS)

    def policy(terms: RewardTerms) -> Any:
        return greedy_policy(result.model, terms)

    routers = {GREEDY: greedy, LOOKAHEAD: lookahead_policy, POLICY: policy}
    known = measured_aiq(query_table, flows, world.terms, routers)
    best = float(evaluation.outcomes[ORACLE].reward_B.mean())
    rows = evaluation.to_json()["rows"]
    for row in rows:
        outcome = evaluation.outcomes[row["name"]]
        wins = int(outcome.success_B.sum())
        row["cost_per_success"] = float(outcome.cost_B.sum()) / max(1, wins)
        row["latency_p95"] = float(np.quantile(outcome.now_B, 0.95))
        row["gap_to_oracle"] = best - row["reward"]
        row["aiq"] = known.get(row["name"])
    presets: dict[str, list[dict[str, Any]]] = {}
    for preset in get_args(Preset):
        # Its own weights but for the one that is trained for.
        weights = NORMALIZED if preset == "normalized" else RewardWeights()
        weights = world.terms.weights if preset == world.terms.preset else weights
        under = replace(world.terms, preset=preset, weights=weights)
        rules = baselines(world.train.table, under)
        choosers = {**rules, GREEDY: greedy(under), POLICY: policy(under), ORACLE: oracle(under)}
        presets[preset] = [
            {"name": n, "reward": float(run_policy(query_table, flows, under, c).reward_B.mean())}
            for n, c in choosers.items()
        ]
    return rows, presets


def brief(tables: Sequence[OutcomeTable], settings: Phase2Settings, folder: Path) -> dict[str, Any]:
    """Phase 2 against both greedy routers and nothing else."""
    parts: list[Rewards] = []
    for seed, table in enumerate(tables):
        result = train_phase2(
            folder / f"brief{seed}", table=table, seed=seed, settings=settings, evaluate=False
        )
        parts.append(rewards_of(result, settings, seed))
    names = [name for name in parts[0] if name != GROUP]
    means = {name: [float(np.mean(part[name])) for part in parts] for name in names}
    return {
        **_stamp(),
        "episodes": settings.num_episodes,
        "weights": asdict(settings.weights),
        "reward_by_seed": means,
        "differences": pooled(parts),
    }


def mean_rows(seeds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The table's numbers, each the mean over seeds; by name, in the first seed's order."""
    tables = [{row["name"]: row for row in part["evaluation"]["rows"]} for part in seeds]
    found: list[dict[str, Any]] = []
    for name, first in tables[0].items():
        row: dict[str, Any] = {"name": name}
        for key, value in first.items():
            numbers = [table[name][key] for table in tables]
            if isinstance(value, float) and all(n is not None for n in numbers):
                row[key] = float(np.mean(numbers))
        row["reward_by_seed"] = [table[name]["reward"] for table in tables]
        found.append(row)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Run, print, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--outcomes", type=Path)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--beta", type=float)
    parser.add_argument("--gamma-latency", type=float)
    parser.add_argument("--tenths", type=int, default=10, help="tenths that are held out in turn")
    parser.add_argument("--only-held-out", action="store_true", help="and nothing else")
    parser.add_argument("--brief", action="store_true", help="phase 2 and the greedy routers only")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "routing.json")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    settings = Phase2Settings(
        algorithm="PPO", num_episodes=given.episodes, test_workflows=10_000, normalize=True,
        beta=given.beta, gamma_latency=given.gamma_latency,
    )  # fmt: skip
    parts: list[dict[str, Any]] = []
    apart: dict[str, Any] | None = None
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if given.brief:
            tables = [_table(given.outcomes, given.models, seed) for seed in range(given.seeds)]
            found = brief(tables, settings, folder)
            _write(given.results, found)
            print(json.dumps(found, indent=1))
            return
        if given.tenths:
            table = _table(given.outcomes, given.models, 0)
            apart = held_out(table, settings, folder, given.tenths, given.seeds)
            if given.only_held_out:
                _write(given.results, {**_stamp(), "held_out": apart})
                print(held_out_page(apart))
                return
        for seed in range(given.seeds):
            table = _table(given.outcomes, given.models, seed)
            parts.append(one_seed(table, seed, settings, folder))
            print(f"seed {seed}: {parts[-1]['cpu_seconds']:.0f} CPU seconds", flush=True)
        table = _table(given.outcomes, given.models, 0)
    found = {
        **_stamp(),
        **({} if apart is None else {"held_out": apart}),
        "table": "simulated" if given.outcomes is None else given.outcomes.parent.name,
        "queries": len(table),
        "workers": len(table.workers),
        "episodes": given.episodes,
        "weights": asdict(settings.weights),
        "cpu_seconds": [part["cpu_seconds"] for part in parts],
        "best_updates": [part["best_update"] for part in parts],
        "rows": mean_rows(parts),
        "differences": pooled([part["rewards"] for part in parts]),
        "separable": pooled([part["apart"] for part in parts]),
        "presets": [part["evaluation"]["presets"] for part in parts],
    }
    _write(given.results, found)
    if apart is not None:
        print(held_out_page(apart))
    print(page(found))


def _stamp() -> dict[str, str]:
    return {"machine": machine(), "date": date.today().isoformat()}


def _write(path: Path, found: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def page(found: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    rows = [
        [
            row["name"], f"{row['reward']:.3f}", f"{100 * row['success']:.1f} %",
            f"{1e3 * row['cost']:.4f}", f"{1e3 * row['cost_per_success']:.4f}",
            f"{row['latency']:.2f}", f"{row['latency_p95']:.2f}", f"{row['tries']:.2f}",
            f"{row['gap_to_oracle']:.3f}", f"{row['aiq']:.3f}" if "aiq" in row else "",
        ]
        for row in found["rows"]
    ]  # fmt: skip
    header = ["router", "reward", "success", "USD per 1,000", "USD per 1,000 successes",
              "latency, s", "p95", "decisions", "gap to oracle", "AIQ"]  # fmt: skip
    weights = found["weights"]
    parts = [
        f"{found['queries']} queries x {found['workers']} workers, {len(found['cpu_seconds'])} "
        f"seeds, {found['episodes']} episodes, weights {weights['alpha']:g} / "
        f"{weights['beta']:g} / {weights['gamma_latency']:g} / {weights['shaped_reward']:g}; phase "
        f"2 took {min(found['cpu_seconds']):.0f} to {max(found['cpu_seconds']):.0f} CPU seconds, "
        "its evaluation included. Means over seeds, 10,000 test workflows each:\n",
        markdown(header, rows),
    ]
    for key, title in (
        ("differences", "PPO less the others, paired over the workflows of all seeds"),
        ("separable", "Single nodes with one try: no choice depends on another"),
    ):
        lines = [
            [name, f"{gap['mean']:+.3f}", f"{gap['low']:+.3f} to {gap['high']:+.3f}",
             ", ".join(f"{g:+.3f}" for g in gap["by_seed"]), verdict(gap)]
            for name, gap in found[key].items()
        ]  # fmt: skip
        parts.append(f"{title}:\n")
        parts.append(markdown(["less", "difference", "95 % interval", "by seed", ""], lines))
    rewards: dict[str, dict[str, list[float]]] = {}
    for seed in found["presets"]:
        for preset, rows in seed.items():
            for row in rows:
                rewards.setdefault(row["name"], {}).setdefault(preset, []).append(row["reward"])
    lines = [
        [name, *(f"{np.mean(of[preset]):.3f}" for preset in found["presets"][0])]
        for name, of in rewards.items()
    ]
    parts.append("Mean reward under each preset:\n")
    parts.append(markdown(["router", *found["presets"][0]], lines))
    return "\n".join(parts)


def verdict(gap: Mapping[str, Any]) -> str:
    """What an interval says, nothing where there is none."""
    if not has_interval(gap["low"], gap["high"]):
        return ""
    return "better" if gap["low"] > 0 else "worse" if gap["high"] < 0 else "a tie"


def _table(outcomes: Path | None, models: Path | None, seed: int) -> OutcomeTable:
    seeds = SeedTree(seed).child("phase2")
    if outcomes is None or models is None:
        return simulate_outcomes(SIMULATED, seeds)
    return read_outcomes(outcomes, models, seeds)


if __name__ == "__main__":
    main()
