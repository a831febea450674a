"""What a planner's run would do, without training or writing: sets, sizes, one planned workflow.

The data are read and the network is built as the run itself would, so what is wrong with either
shows here. `job.py` is the run, `cli/planner.py` shows this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from tutelage.config.keys import flatten
from tutelage.orchestration.data.outcomes import read_tables
from tutelage.orchestration.data.workflows import Workflow
from tutelage.orchestration.plan.dag import Plan
from tutelage.orchestration.planner import saving
from tutelage.orchestration.planner.fit import PlannerTrainer
from tutelage.orchestration.planner.settings import (
    Phase1Settings,
    PlannerConfig,
    PlannerTrainingSettings,
)
from tutelage.orchestration.planner.targets import PlanTargets
from tutelage.orchestration.routing.phase2 import read_checkpoint
from tutelage.orchestration.setup import PlannerDatasets, read_sets
from tutelage.policy.machine import one_thread
from tutelage.runs.loggers import check_loggers
from tutelage.seeds import SeedTree

_SECTIONS = {"1": "training.phase1_supervised.", "2": "training.phase2_rl."}


@dataclass(frozen=True, slots=True)
class _Preview:
    """A run that was not done."""

    settings: Mapping[str, Any]
    """The keys of the phases that would run, in full, with their values."""
    facts: Mapping[str, str]
    """The data and the network."""
    wanted: Workflow | None = None
    """The first test workflow, or the first held-out one where there is no test; None without
    phase 1."""
    planned: Plan | None = None
    """What `planner` makes of its instruction."""
    planner: str = ""


def preview(request: PlannerConfig) -> _Preview:
    """Everything up to the first step. Raises what the run would raise before it trains."""
    settings = request.checked()
    check_loggers(settings.logger)
    shown = _keys(request, settings)
    facts: dict[str, str] = {}
    if request.phase != "1":
        facts |= _routing(request)
    if request.phase == "2":
        return _Preview(shown, facts)
    phase = settings.phase1_supervised
    sets = read_sets(request, phase)
    sets.check_against(request.against, partial(facts.__setitem__, "against"))
    with one_thread():
        return _planning(request, phase, sets, shown, facts)


def _planning(
    request: PlannerConfig,
    phase: Phase1Settings,
    sets: PlannerDatasets,
    shown: Mapping[str, Any],
    facts: Mapping[str, str],
) -> _Preview:
    seeds = SeedTree(request.seed).child("planner", "phase1")
    model = PlannerTrainer(sets.train, sets.held_out, sets.catalog, phase, seeds).model
    rows = sets.train[: phase.batch_size]
    with torch.no_grad():
        loss = model.eval().compute_supervised_loss(
            model([w.instruction for w in rows]),
            PlanTargets.of(rows, model.vocabulary),
            phase.lambda_dag,
            phase.dag_loss,
        )["total_loss"]
    steps = -(-len(sets.train) // phase.batch_size)
    fields = {
        **sets.facts,
        "network": f"{sum(p.numel() for p in model.parameters())} parameters",
        "epoch": f"{steps} steps; {phase.num_epochs} epochs at most",
        "loss": f"{float(loss):.3f} on {len(rows)} training workflows, untrained",
        **facts,
    }
    wanted = (sets.test or sets.held_out)[0]
    planner = "the untrained planner"
    if request.against is not None:
        model = saving.load_planner(request.against, lambda _: None)  # the check has told it
        model.use_catalog(sets.catalog)
        planner = f"the planner of {request.against}"
    return _Preview(shown, fields, wanted, model.plan(wanted.instruction, 0.0), planner)


def _routing(request: PlannerConfig) -> dict[str, str]:
    """Phase 2's table; simulated outcomes are drawn only by the run itself."""
    if request.checkpoint is not None:
        read_checkpoint(request.checkpoint)
    if request.outcomes is None or request.models is None:
        return {"outcomes": "simulated"}
    seeds = SeedTree(request.seed).child("phase2")
    table, test = read_tables(request.outcomes, request.models, request.test_outcomes, seeds)
    train, val, own = table.split(seeds, held_out=test is None)
    test = own if test is None else test
    sizes = f"{len(train)} train, {len(val)} validation, {len(test)} test"
    return {"outcomes": f"{len(table)} queries, {len(table.workers)} workers: {sizes}"}


def _keys(request: PlannerConfig, settings: PlannerTrainingSettings) -> dict[str, Any]:
    keys = flatten({"training": settings.model_dump()})
    left_out = {"1": _SECTIONS["2"], "2": _SECTIONS["1"]}.get(request.phase, "-")
    return {key: value for key, value in keys if not key.startswith(left_out)}
