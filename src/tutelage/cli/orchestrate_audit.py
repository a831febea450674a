"""`tutelage orchestrate audit`: what a reward wants, before anything is trained under it.

Without a log, random, cheapest, best and oracle execute the same synthetic workflows on workers
whose truth is known, which is a run, and each preset is asked who does best. With `--logs` the
executions of a log are weighed instead. The published example is shown first. Exit code 1 when the
chosen preset is one that rewards the wrong thing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import Field

from tutelage.cli.options import AsJson
from tutelage.cli.orchestrate_parts import describe_pool
from tutelage.config.fields import RunSettings
from tutelage.orchestration.evaluation.rewards import Preset, RewardWeights
from tutelage.orchestration.execution.config import PoolConfig

if TYPE_CHECKING:
    from tutelage.orchestration.evaluation.audit import RewardAudit
    from tutelage.orchestration.evaluation.rewards import ExecutionResult
    from tutelage.orchestration.execution.record import Execution
    from tutelage.orchestration.execution.workers import WorkerPool
    from tutelage.runs.lifecycle import Run
    from tutelage.types import JSON

_RECIPE = "audit"


class _AuditConfig(PoolConfig, RunSettings):
    """Which reward is asked, and what is executed under it."""

    preset: Preset | None = None
    """Only this preset, and exit with 1 when it is unsound."""
    logs: Path | None = None
    """Audit the executions of a log, a file or its folder."""
    num_workflows: Annotated[int, Field(ge=2)] = 100
    """Workflows that the policies execute."""
    alpha: float | None = None
    """Weight of success."""
    beta: float | None = None
    """Weight of cost."""
    gamma_latency: float | None = None
    """Weight of latency."""
    shaped_reward: float | None = None
    """Weight of the shaped term."""

    @property
    def weights(self) -> RewardWeights:
        """The reward's weights, where they are not its own."""
        names = {f.name for f in fields(RewardWeights)}
        return RewardWeights(**self.model_dump(include=names, exclude_none=True))


def audit(asked: _AuditConfig, as_json: AsJson = False) -> None:
    """Show what a reward prefers, and which worker it ranks first."""
    from tutelage.cli.console import shown_path
    from tutelage.errors import counted
    from tutelage.orchestration.evaluation.audit import (
        PRESETS,
        audit_policies,
        audit_results,
        published_example,
    )
    from tutelage.orchestration.evaluation.rewards import compute_reward

    preset, weights, run = asked.preset, asked.weights, None
    chosen: Sequence[Preset] = PRESETS if preset is None else (preset,)
    if asked.logs is not None:
        results, logged = _logged(asked.logs)
        audits = [audit_results(results, name, weights=weights) for name in chosen]
        source = f"{counted(len(results), 'execution')} of {asked.logs}"
        if logged > len(results):
            source += f"; {logged - len(results)} more were lost to their workers' servers"
    else:
        made = asked.make_pool()
        run, ran = _policies(asked, made)
        audits = [audit_policies(ran, name, weights=weights) for name in chosen]
        source = f"{asked.num_workflows} synthetic workflows; {describe_pool(made)}"
    shown: tuple[Preset, ...] = ("seed", "seed_seconds")
    example = {str(p): compute_reward(published_example(), p, weights=weights) for p in shown}
    if as_json:
        told = {"source": source, "published_example": example}
        told |= {"presets": [_json(found) for found in audits]}
        kept = {} if run is None else {"run": str(run)}
        typer.echo(json.dumps(told | kept, indent=2))
    else:
        _show(audits, example, source if run is None else f"{source}; kept in {shown_path(run)}")
    if preset is not None and audits[0].warning is not None:
        raise typer.Exit(1)


def _logged(path: Path) -> tuple[list[ExecutionResult], int]:
    """The executions that were judged, and how many the log has."""
    from tutelage.orchestration.data.rows import read_rows
    from tutelage.orchestration.evaluation.audit import judged_results
    from tutelage.orchestration.execution.stored import FILE

    rows = list(read_rows(path / FILE if path.is_dir() else path))
    return judged_results(rows), len(rows)


def _policies(asked: _AuditConfig, pool: WorkerPool) -> tuple[Path, dict[str, list[Execution]]]:
    """A run in which each policy executes the workflows, and the result of each."""
    from tutelage.orchestration.data.synthetic import builtin_graph, generate
    from tutelage.orchestration.evaluation.audit import audit_routers, run_policies
    from tutelage.orchestration.execution.runs import ExecutionRun
    from tutelage.orchestration.execution.stored import ExecutionRecorder
    from tutelage.orchestration.execution.virtual_time import run_virtual
    from tutelage.runs import lifecycle
    from tutelage.runs.folder import create, place_of
    from tutelage.runs.progress import Progress
    from tutelage.seeds import SeedTree
    from tutelage.types import Sampling

    seeds = SeedTree(asked.seed).child("audit")
    graph = builtin_graph()
    plans = [w.plan for w in generate(graph, asked.num_workflows, seeds.child("workflows"))]
    audit_routers(pool)  # a pool without the truth is refused before it is a run
    found: dict[str, list[Execution]] = {}

    def work(run: Run) -> JSON:
        began = time.time()
        found.update(run_virtual(run_policies(pool, plans, seeds, graph.catalog)))
        for policy, executions in found.items():
            preset = asked.preset or "normalized"
            record = ExecutionRecorder(run.writer, run.id, preset, asked.weights, policy)
            for execution in executions:
                place = execution.seeds.child(policy)
                record(replace(execution, seeds=place), Sampling(0.0), began, 0.0)
        rates = {policy: fmean(e.success for e in ran) for policy, ran in found.items()}
        run.log({"phase": _RECIPE, "step": 0, **rates})
        return {"status": "succeeded", "workflows": len(plans), "success": rates}

    folder = create(place_of(asked.output, _RECIPE))
    lifecycle.start(ExecutionRun(asked, work, recipe=_RECIPE), folder, Progress())
    return folder.path, found


def _show(audits: Sequence[RewardAudit], example: Mapping[str, float], source: str) -> None:
    from tutelage.cli.console import output, percent, plain_table, say
    from tutelage.errors import counted

    console = output()
    say(console, ("executions: ", "dim"), source)
    message = ", ".join(f"{value:.4f} under {name!r}" for name, value in example.items())
    say(console, ("the published example (success, 0.045 USD, 1200 ms): ", "dim"), message)
    say(console)
    terms = ("success", "cost", "latency", "shaped")
    numbers = ("mean (95 %)", "fail at once", *terms)
    table = plain_table("preset", *numbers, right=numbers)
    for found in audits:
        shares = [percent(found.variance[term]) for term in terms]
        table.add_row(found.preset, _mean(found), f"{found.fail_at_once:.4f}", *shares)
    console.print(table)
    whose = "the random policy" if audits[0].ranking else "the log"
    message = f"mean of the {counted(audits[0].executions, 'judged execution')} of {whose}"
    say(console, (f"{message}; the terms' shares of their variance", "dim"))
    for found in audits:
        if found.ranking:
            order = " > ".join(f"{name} {mean:.3f}" for name, mean in found.ranking)
            say(console, f"\n{found.preset}: ", (order, "bold"))
        if found.warning is not None:
            say(console, ("Warning: ", "yellow"), found.warning)


def _mean(found: RewardAudit) -> str:
    ends = "" if found.interval is None else " ({:.4f} to {:.4f})".format(*found.interval)
    return f"{found.mean:.4f}{ends}"


def _json(found: RewardAudit) -> JSON:
    values = ("preset", "executions", "mean", "interval", "fail_at_once", "losing", "variance")
    return {
        **{name: getattr(found, name) for name in values},
        "ranking": dict(found.ranking),
        "oracle_on_top": found.oracle_on_top,
        "warning": found.warning,
    }
