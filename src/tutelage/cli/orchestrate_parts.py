"""What the verbs of `tutelage orchestrate` share: which planner plans, and who the workers are.

The embedded planner plans until another was trained, and says that; `describe_pool` says every time
whether workers are real. What else an option means is in `orchestration/execution/config.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import TaskID

    from tutelage.orchestration.execution.workers import WorkerPool
    from tutelage.orchestration.plan.catalog import Catalog
    from tutelage.orchestration.plan.dag import Plan
    from tutelage.orchestration.planner.decode import PlanPrediction
    from tutelage.orchestration.planner.model import PlannerModel


@dataclass(frozen=True, slots=True)
class ChosenPlanner:
    """A planner and where it comes from, in words."""

    candidates: Callable[[Sequence[str], int], Sequence[Sequence[Plan]]]
    """The plans of each instruction, the best first; there may be fewer than requested."""
    source: str
    judge: Callable[[str], PlanPrediction] | None = None
    """The best plan with how sure the planner is of it; None for one that cannot tell."""

    def plan(self, instruction: str) -> Plan:
        """The best plan."""
        return self.candidates([instruction], 1)[0][0]

    def sure_plan(self, instruction: str, least: float | None) -> Plan:
        """The best plan. Raises `NoPlanError` below the confidence `least`, by default its own."""
        if self.judge is None:
            return self.plan(instruction)
        return self.judge(instruction).sure(least)


def make_planner(checkpoint: Path | None, catalog: Catalog | None) -> ChosenPlanner:
    """The trained planner of a checkpoint, without one the newest that was trained here, and when
    there is none either, the embedded one, which the first use over another catalog than the
    built-in one trains. Raises `MissingExtraError`
    where torch is not installed.
    """
    from tutelage.orchestration.planner.packages import check_torch

    check_torch()
    path = checkpoint or _newest()
    if path is not None:
        from tutelage.cli.failures import tell
        from tutelage.orchestration.planner.saving import load_planner

        model = load_planner(path, tell)
        if catalog is not None:
            model.use_catalog(catalog)
        return _searching(model, f"of the planner {path}")
    return _embedded(catalog)


def _embedded(catalog: Catalog | None) -> ChosenPlanner:
    """The planner of the package, or one over another catalog, which the first use trains."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from tutelage.cli.console import messages, say
    from tutelage.orchestration.planner.embedded import RECIPE, embedded_planner

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=messages(), transient=True) as bar:
        task: TaskID | None = None

        def watch(done: int, of: int) -> None:
            nonlocal task
            if task is None:
                say(messages(), _FIRST)
                task = bar.add_task("training the embedded planner", total=of)
            bar.update(task, completed=done)

        try:
            embedded = embedded_planner(catalog, watch=watch)
        except KeyboardInterrupt as stopped:
            if task is not None:
                stopped.add_note("What the embedded planner had learned is not kept; the same")
                stopped.add_note("command trains it from its beginning.")
            raise
    if embedded.unkept:
        say(messages(), f"The embedded planner could not be kept: {embedded.unkept}")
    return _searching(
        embedded.model,
        f"of the EMBEDDED planner: it learned from {RECIPE.size(catalog)} synthetic workflows, "
        "not from your data; to train on it: tutelage train planner --train FILE, then "
        "--checkpoint",
    )


_FIRST = (
    "No planner was trained over these tools. One is trained now, once: 80 to 130 seconds of a "
    "core, by its speed, and more over many hundreds of tools."
)


def _newest() -> Path | None:
    """The planner that was trained last below the working directory."""
    from tutelage.orchestration.planner.saving import PHASE1
    from tutelage.runs.folder import RUNS

    places = [Path("checkpoints") / PHASE1, *RUNS.glob(f"*/{PHASE1}")]
    places += RUNS.glob(f"*/checkpoints/{PHASE1}")
    there = [place for place in places if place.is_file()]
    return max(there, key=lambda place: place.stat().st_mtime, default=None)


def _searching(model: PlannerModel, source: str) -> ChosenPlanner:
    """A planner; its further candidates are what other settings of its search find."""
    from dataclasses import replace

    own = model.settings
    # From the planner's own settings outwards: other edges, other lengths, without its memory.
    searches = [
        replace(
            own, length_bonus=own.length_bonus + longer, prior_weight=prior, edge_threshold=edge
        )
        for longer in (0.0, 1.0, -1.0, 2.0)
        for prior in dict.fromkeys((own.prior_weight, 0.0))
        for edge in dict.fromkeys((own.edge_threshold, 0.3, 0.7))
    ]

    def candidates(instructions: Sequence[str], count: int) -> Sequence[Sequence[Plan]]:
        items: list[list[Plan]] = [[] for _ in instructions]
        for settings in searches:
            open_to = [i for i, plans in enumerate(items) if len(plans) < count]
            if not open_to:
                break
            made = model.plan_all([instructions[i] for i in open_to], settings)
            for i, planned in zip(open_to, made, strict=True):
                if planned.plan not in items[i]:
                    items[i].append(planned.plan)
        return items

    def judge(instruction: str) -> PlanPrediction:
        return model.plan_all([instruction])[0]

    return ChosenPlanner(candidates, source, judge)


def describe_pool(pool: WorkerPool) -> str:
    """Which workers there are, and whether they are real."""
    tools = sum(worker.tool for worker in pool.workers)
    if tools:
        models = len(pool.workers) - tools
        beside = f", and {models} model{'s' * (models != 1)} over HTTP" if models else ""
        return f"{tools} tool{'s' * (tools != 1)} that run here{beside}"
    count = f"{len(pool.workers)} worker{'s' * (len(pool.workers) != 1)}"
    mocks = {
        "simulated": "SIMULATED: no model is asked; real ones with --pool openai --workers FILE",
        "replay": "REPLAYED from recorded outcomes: no model is asked",
    }
    return f"{count}, {mocks.get(pool.name, 'real, over HTTP')}"
