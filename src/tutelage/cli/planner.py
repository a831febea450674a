"""`tutelage train planner`: plans from instructions (phase 1), workers by their outcomes (phase 2).

It has options of its own, so it is a command of its own: `KeyedCommand` hands over when the recipe
is `planner`. The run itself is `orchestration/job.py`; the keys are those of the document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tutelage.config.fields import Section
from tutelage.config.overrides import parse_overrides
from tutelage.orchestration.planner.settings import (
    RECIPE,
    Request,
    check,
    full_key,
    keys_of,
)

if TYPE_CHECKING:
    from rich.console import Console

    from tutelage.runs.folder import RunFolder
    from tutelage.runs.progress import Progress
    from tutelage.store import Store
    from tutelage.types import Rollout

CHANGES = False
EXAMPLE = '"Summarise the report, translate it to French and read it aloud"'


class _KeyFlags(Section):
    """Keys that have a flag of their own."""

    epochs: str | None = None
    """Phase 1: passes over the data at most."""
    batch_size: str | None = None
    """Phase 1: workflows in one step."""
    episodes: str | None = None
    """Phase 2: episodes to learn from."""
    logger: str | None = None
    """console, jsonl, tensorboard, wandb, mlflow."""


_KEYS = {
    "epochs": "training.phase1_supervised.num_epochs",
    "batch_size": "training.phase1_supervised.batch_size",
    "episodes": "training.phase2_rl.num_episodes",
    "logger": "training.logger",
}
"""The key of each of those flags."""


def train_planner(
    asked: Request,
    flags: _KeyFlags,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Any key, such as lambda_dag=0.1."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keys from a YAML file.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show settings, data and one plan; train nothing."),
    ] = False,
) -> None:
    """Train a planner: an instruction becomes a graph of subtasks, each with a worker.

    `tutelage train planner` needs no data, no key and no GPU.
    """
    from tutelage.cli.console import waiting

    with waiting("loading torch ..."):
        pass
    keys = {} if config is None else keys_of(config)
    origins = dict.fromkeys(keys, f"file {config}")
    typed = {full_key(o.spelling): o.value for o in parse_overrides(overrides or ())}
    given = {name: value for name, value in flags if value is not None}
    keys |= typed | {_KEYS[name]: value for name, value in given.items()}
    origins |= dict.fromkeys(typed, "command line")
    origins |= {_KEYS[name]: f"--{name.replace('_', '-')}" for name in given}
    request = asked.model_copy(update={"keys": keys})
    settings = check(request)
    if dry_run:
        from tutelage.cli.planner_dry import show_dry_run

        show_dry_run(request, origins)
        return
    _run_planner(request, live="console" in settings.training.logger)


def _run_planner(request: Request, *, live: bool) -> None:
    """Run a request in a folder of its own and show what it came to."""
    from tutelage.orchestration import job
    from tutelage.runs.folder import folder_at, place_of

    folder = folder_at(place_of(request.output, RECIPE))
    _run(folder, lambda progress: job.run(request, folder, progress), live=live)


def resume(folder: RunFolder, allow_changes: bool) -> None:
    """Go on with a planner's run and show what it came to."""
    from tutelage.orchestration import job

    _run(folder, lambda progress: job.resume(folder, progress), live=True)


def _run(folder: RunFolder, work: Callable[[Progress], dict[str, Any]], *, live: bool) -> None:
    from tutelage.cli.console import messages
    from tutelage.cli.display import LiveDisplay
    from tutelage.cli.job import watched
    from tutelage.runs.progress import Silent

    display = LiveDisplay(messages()).open() if live else Silent()
    with watched(folder, display):
        result = work(display)
    _show_planner_outcome(folder, result)


def _show_planner_outcome(folder: RunFolder, result: Mapping[str, Any]) -> None:
    """The tables, where things lie, and what to try next."""
    from tutelage.cli.console import duration, facts, output, say, show_table, shown_path
    from tutelage.orchestration.evaluation.tables import planning_tables, routing_table

    console = output()
    test = result.get("phase1", {}).get("test")
    for table in planning_tables(test) if test else []:
        show_table(console, table)
    told = folder.path / "phase2" / "phase2.md"
    planner = folder.checkpoints / "phase1_best.pth"
    pairs = [("run", shown_path(folder.path))]
    if planner.is_file():
        pairs.append(("planner", shown_path(planner)))
    if "phase2" in result:
        routing = routing_table(result["phase2"])
        if routing is not None:
            show_table(console, routing)
        pairs += [
            ("router", shown_path(folder.path / result["phase2"]["checkpoint"])),
            ("routing", shown_path(told)),
        ]
    pairs.append(("report", shown_path(folder.report)))
    if "wall_seconds" in result:
        pairs.append(("time", duration(result["wall_seconds"])))
    say(console)
    facts(console, pairs)
    say(console, ("\nNext", "bold"))
    path = shown_path(folder.path)
    if planner.is_file():
        say(console, f"  tutelage orchestrate plan {EXAMPLE} --checkpoint {path} --explain")
        say(console, f"  tutelage orchestrate eval --checkpoint {path} --test FILE")
    if "phase2" in result:
        router = shown_path(folder.path / result["phase2"]["checkpoint"])
        say(console, f"  tutelage orchestrate run {EXAMPLE} --router {router}")


def show(console: Console, folder: RunFolder) -> None:
    """A planner's run: its outcome where it has one, else how far it is."""
    from tutelage.cli.console import facts, number, say
    from tutelage.cli.rollout_list import show_stored
    from tutelage.cli.runs import say_state

    result = folder.read_result()
    say(console, ("Planner ", "bold"), (folder.name, "bold"))
    if result is not None:
        _show_planner_outcome(folder, result)
        show_stored(console, folder, _of_test)
        return
    lines = folder.read_metrics()
    last = lines[-1] if lines else {}
    names = ("phase", "step", "train_loss", "val_loss", "val_node_f1", "val_edge_f1")
    shown = [
        (n, number(v) if isinstance(v := last[n], (int, float)) else str(v))
        for n in names
        if n in last
    ]
    facts(console, shown, indent=2)
    say_state(console, folder)


def _of_test(store: Store, run_id: str) -> Iterator[Rollout]:
    from tutelage.types import Mode

    return store.rollouts(run_id, mode=Mode.TEST, limit=3)
