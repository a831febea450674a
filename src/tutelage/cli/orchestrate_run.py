"""`tutelage orchestrate run "..."`: plan an instruction and execute it, live, within a budget.

A run folder holds the plan with its log (`execution.jsonl`), from which `--resume` goes on after a
kill, the store with the trace that `tutelage show` draws, and the result. Progress goes to the
error stream, the result to standard output. Exit codes: 0 done, 1 the execution failed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from tutelage.cli.orchestrate_parts import (
    PLANNER,
    POOL,
    AsJson,
    PlannerOptions,
    PoolOptions,
    RouterName,
    Seed,
    VerifiersFile,
    builtin_catalog,
    make_catalog,
    make_planner,
    make_pool,
    make_router,
    make_verifiers,
    pool_words,
    seconds,
)
from tutelage.errors import ConfigError, DataError, RunError
from tutelage.runs.progress import Silent

if TYPE_CHECKING:
    from rich.console import Console

    from tutelage.orchestration.execution.record import Execution
    from tutelage.orchestration.execution.system import OrchestrationSystem
    from tutelage.orchestration.plan.dag import Plan
    from tutelage.runs.folder import RunFolder

CHANGES = False


class _Warnings(Silent):
    """Shows what is worth a line; the execution itself has a display of its own."""

    def note(self, text: str) -> None:
        """Say it."""
        from tutelage.cli.failures import tell

        tell(text)


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """What an execution may spend, how long it may take, and what happens when it fails."""

    budget: Annotated[
        float | None, typer.Option(metavar="USD", help="Spend at most this much.")
    ] = None
    budget_mode: Annotated[
        str, typer.Option(metavar="MODE", help="enforce the budget, or only audit it.")
    ] = "enforce"
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help="Stop after this long: 20s, 500ms, 2m.")
    ] = None
    node_timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="For one subtask with all its tries.")
    ] = None
    try_timeout: Annotated[
        str, typer.Option(metavar="TIME", help="For one request to a worker.")
    ] = "60s"
    on_failure: Annotated[
        str, typer.Option(metavar="MODE", help="skip_dependents, continue or fail_fast.")
    ] = "skip_dependents"
    max_tries: Annotated[int, typer.Option(min=1, help="Workers asked at one subtask.")] = 3
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of one answer.")] = 512
    reward: Annotated[
        str, typer.Option(metavar="PRESET", help="seed, seed_seconds, normalized or gated.")
    ] = "normalized"


def run(
    instruction: Annotated[
        str | None, typer.Argument(metavar="INSTRUCTION", help="What is to be done.")
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A plan as JSON or YAML, instead of the planner's."),
    ] = None,
    planning: PlannerOptions = PLANNER,
    there: PoolOptions = POOL,
    router: RouterName = "cheapest",
    verifiers: VerifiersFile = None,
    limits: LimitOptions = LimitOptions(),
    seed: Seed = 0,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run folder; else a new one in runs/.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="Go on with a run that was stopped; nothing else is read."
        ),
    ] = None,
    logs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Append the execution to the log in this folder too."),
    ] = None,
    otlp: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Send the trace to this collector as well."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Plan an instruction and run it with live progress, a budget and a deadline."""
    from tutelage.orchestration.execution.runs import RECIPE
    from tutelage.runs.folder import create, find, fresh_name

    if resume is not None:
        go_on(find(str(resume)), otlp=otlp, as_json=as_json)
        return
    given: dict[str, Any] = {"instruction": instruction, "plan": plan, "router": router}
    given |= {"verifiers": verifiers, "logs": logs, "seed": seed}
    given |= asdict(planning) | asdict(there) | asdict(limits)
    # Paths are kept whole, so that a resume finds them from wherever it is started.
    options = {k: str(v.resolve()) if isinstance(v, Path) else v for k, v in given.items()}
    prepared = _prepare(options)
    folder = create(output or fresh_name(RECIPE, claim=True))
    _finish(folder, options, prepared, otlp, as_json)


def go_on(folder: RunFolder, *, otlp: str | None = None, as_json: bool = False) -> None:
    """Go on with a run that was stopped or killed. Raises `RunError` for one that has ended."""
    from tutelage.orchestration.execution.runs import PLAN

    options = _stored(folder)
    options |= {"plan": str(folder.path / PLAN), "checkpoint": None}
    _finish(folder, options, _prepare(options), otlp, as_json)


def resume(folder: RunFolder, allow_changes: bool) -> None:
    """Go on with an execution and show what it came to."""
    go_on(folder)


def show(console: Console, folder: RunFolder) -> None:
    """The execution of a plan, with its trace; how to go on when it was stopped."""
    from tutelage.cli.console import say
    from tutelage.cli.rollout_list import show_one
    from tutelage.cli.runs import say_state
    from tutelage.cli.stores import open_run

    result = folder.read_result()
    say(console, ("Execution ", "bold"), (folder.name, "bold"))
    if result is None:
        say_state(console, folder)
        return
    with open_run(folder) as (store, run_id):
        for rollout in store.rollouts(run_id):
            show_one(console, rollout.id, str(folder.path), tokens=False, content=False)


def _finish(
    folder: RunFolder,
    options: dict[str, Any],
    prepared: tuple[Plan, OrchestrationSystem, dict[str, str]],
    otlp: str | None,
    as_json: bool,
) -> None:
    from tutelage.cli.job import watched
    from tutelage.cli.orchestrate_view import progress
    from tutelage.orchestration.execution.runs import PlanExecution
    from tutelage.runs import lifecycle

    planned, system, told = prepared
    job = PlanExecution(options, planned, system, otlp, lambda: progress(planned, told))
    warnings = _Warnings()
    with watched(folder, warnings, "What ended, and what was spent, is kept."):
        if folder.config.is_file():
            lifecycle.resume(PlanExecution, folder, warnings, job)
        else:
            lifecycle.start(job, folder, warnings)
    found = cast("Execution", job.found)
    _report(folder, found, options["reward"], job.rollout, as_json)
    if not found.success:
        raise typer.Exit(1)


def _stored(folder: RunFolder) -> dict[str, Any]:
    """The options of an earlier run."""
    from tutelage.orchestration.execution.runs import PlanExecution
    from tutelage.runs.kinds import name_of, stored_config

    if name_of(folder) != PlanExecution.name:
        raise RunError(f"{folder.name!r} is no run of tutelage orchestrate run")
    if folder.read_result() is not None:
        raise RunError(f"{folder.name!r} has ended; look at it: tutelage show {folder.path}")
    return {k: v for k, v in stored_config(folder)["config"].items() if k != "recipe"}


def _prepare(options: dict[str, Any]) -> tuple[Plan, OrchestrationSystem, dict[str, str]]:
    """Plan and system, everything refused that can be before a folder is made."""
    from typing import get_args

    from tutelage.orchestration.evaluation.rewards import Preset
    from tutelage.orchestration.execution.log import ExecutionLogger
    from tutelage.orchestration.execution.system import OrchestrationSystem
    from tutelage.orchestration.execution.workplace import ExecutorSettings

    path = {key: None if options[key] is None else Path(options[key]) for key in _PATHS}
    if options["reward"] not in get_args(Preset):
        raise ConfigError(
            f"unknown reward preset {options['reward']!r}; choose from {get_args(Preset)}"
        )
    pool = make_pool(options["pool"], path["workers"], path["outcomes"], path["models"])
    catalog = make_catalog(path["catalog"])
    planned, source = _planned(options, path["plan"], path["checkpoint"], catalog)
    settings = ExecutorSettings(
        max_tries=options["max_tries"],
        max_tokens=options["max_tokens"],
        deadline=seconds(options["deadline"], "--deadline"),
        node_timeout=seconds(options["node_timeout"], "--node-timeout"),
        try_timeout=seconds(options["try_timeout"], "--try-timeout"),
        on_failure=options["on_failure"],
    )
    if catalog is None:
        catalog = builtin_catalog(planned)
    system = OrchestrationSystem(
        pool=pool,
        router=make_router(options["router"], pool),
        verifiers=make_verifiers(path["verifiers"], pool),
        settings=settings,
        catalog=catalog,
        budget_mode=options["budget_mode"],
        execution_logger=None
        if path["logs"] is None
        else ExecutionLogger(path["logs"], workers=pool.workers),
        seed=options["seed"],
        realtime=True,
    )
    system.check(planned, options["budget"])
    return planned, system, {"workers": pool_words(pool), "plan": source}


_PATHS = ("plan", "checkpoint", "catalog", "workers", "outcomes", "models", "verifiers", "logs")


def _planned(
    options: dict[str, Any], path: Path | None, checkpoint: Path | None, catalog: Any
) -> tuple[Plan, str]:
    instruction: str | None = options["instruction"]
    if path is not None:
        from tutelage.orchestration.data.rows import read_json
        from tutelage.orchestration.execution.journal import read_plan

        if checkpoint is not None:
            raise ConfigError("--plan and --checkpoint both give the plan; leave one out")
        try:
            found = read_plan(read_json(path))
        except DataError as error:
            told = str(error)
            raise DataError(told if str(path) in told else f"{str(path)!r}: {told}") from error
        if not found.nodes:
            raise DataError(f"{str(path)!r}: the plan has no nodes; give it at least one")
        return replace(found, instruction=instruction or found.instruction), str(path)
    if instruction is None or not instruction.strip():
        raise ConfigError('say what is to be done: tutelage orchestrate run "..."')
    planner = make_planner(checkpoint, catalog, options["seed"])
    return planner.plan(instruction), planner.source


def _report(
    folder: RunFolder, found: Execution, preset: Any, rollout_id: str, as_json: bool
) -> None:
    from tutelage.cli.orchestrate_view import result_json, show_result
    from tutelage.orchestration.execution.stored import reward_of

    reward = reward_of(found, preset)
    if as_json:
        row = result_json(found, reward.value) | {"run": str(folder.path), "rollout": rollout_id}
        typer.echo(json.dumps(row, indent=2, ensure_ascii=False))
        return
    show_result(folder, found, (preset, reward.value), rollout_id)
