"""`tutelage train planner`: plans from instructions (phase 1), routing from outcomes (phase 2).

The command has its own options; `train` delegates to it if the recipe is `planner`. The
run is in `orchestration/job.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tutelage.cli import plain_view
from tutelage.config.fields import Section
from tutelage.config.keys import flatten
from tutelage.config.overrides import parse_overrides
from tutelage.errors import ConfigError
from tutelage.orchestration.planner.settings import (
    RECIPE,
    PlannerConfig,
    full_key,
    read_keys,
)

if TYPE_CHECKING:
    from rich.console import Console

    from tutelage.runs.folder import RunFolder

resume = plain_view.resume
EXAMPLE = '"Summarise the article, translate the summary to French and read it aloud"'


class _Flags(Section):
    """Flags of `train planner`: some configuration keys, the config file and the dry run."""

    epochs: str | None = None
    """Phase 1: maximum number of epochs."""
    batch_size: str | None = None
    """Phase 1: workflows per batch."""
    episodes: str | None = None
    """Phase 2: number of training episodes."""
    logger: str | None = None
    """Loggers of the metrics: console, jsonl, tensorboard, wandb, mlflow."""
    config: Path | None = None
    """YAML file with keys."""
    dry_run: bool = False
    """Show the changed settings without training."""
    all: bool = False
    """With --dry-run: show all settings."""


_KEYS = {
    "epochs": "training.phase1_supervised.num_epochs",
    "batch_size": "training.phase1_supervised.batch_size",
    "episodes": "training.phase2_rl.num_episodes",
    "logger": "training.logger",
}
"""Key of each flag."""


def train_planner(
    config: PlannerConfig,
    flags: _Flags,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Any key, such as lambda_dag=0.1."),
    ] = None,
) -> None:
    """Train a planner: it turns an instruction into a graph of subtasks, each with a worker.

    `tutelage train planner` needs no data, no API key and no GPU.
    """
    keys = {} if flags.config is None else read_keys(flags.config)
    origins = dict.fromkeys(keys, f"file {flags.config}")
    typed = {full_key(o.spelling): o.value for o in parse_overrides(overrides or ())}
    values = {name: value for name, value in flags if name in _KEYS and value is not None}
    keys |= typed | {_KEYS[name]: value for name, value in values.items()}
    origins |= dict.fromkeys(typed, "command line")
    origins |= {_KEYS[name]: f"--{name.replace('_', '-')}" for name in values}
    request = config.model_copy(update={"keys": keys})
    settings = request.check_options()
    if flags.all and not flags.dry_run:
        raise ConfigError("--all needs --dry-run; pass both, or remove --all")
    if flags.dry_run:
        _show_dry_run(dict(flatten({"training": settings.model_dump()})), origins, flags.all)
        return
    from tutelage.cli.job import run_with_display
    from tutelage.orchestration.job import PlannerTraining
    from tutelage.runs import lifecycle
    from tutelage.runs.folder import open_folder, run_path

    folder, job = open_folder(run_path(request.output, RECIPE)), PlannerTraining(request)
    result = run_with_display(folder, lambda progress: lifecycle.start(job, folder, progress))
    _show_planner_outcome(folder, result)


def _show_dry_run(settings: Mapping[str, Any], origins: Mapping[str, str], all_keys: bool) -> None:
    """Print the settings of a run. `origins` maps each changed key to its source."""
    from tutelage.cli.console import echo, output, show_keys

    console = output()
    rows = [(key, value, origins.get(key, "")) for key, value in settings.items()]
    show_keys(console, rows, all_keys)
    echo(console, "\nDry run: nothing was trained or written.")


def _show_planner_outcome(folder: RunFolder, result: Mapping[str, Any]) -> None:
    """Print the result tables, the paths of the files, and the next commands."""
    from tutelage.cli.console import echo, echo_pairs, format_path, output, print_steps, show_table
    from tutelage.orchestration.evaluation.tables import planning_table, routing_tables
    from tutelage.runs.estimate import duration
    from tutelage.runs.kinds import load_settings

    console = output()
    test = result.get("phase1", {}).get("test")
    if test:
        show_table(console, planning_table(test))
    planner = folder.checkpoints / "phase1_best.pth"
    pairs = [("run", format_path(folder.path))]
    if planner.is_file():
        pairs.append(("planner", format_path(planner)))
    if "phase2" in result:
        for table in routing_tables(result["phase2"].get("evaluation")):
            show_table(console, table)
        pairs.append(("router", format_path(folder.path / result["phase2"]["checkpoint"])))
    if "wall_seconds" in result:
        pairs.append(("time", duration(result["wall_seconds"])))
    echo(console)
    echo_pairs(console, pairs)
    echo(console)
    config, path = load_settings(folder, PlannerConfig), format_path(folder.path)
    # The example instruction fits the built-in tools only.
    files = (config.train, config.catalog, config.checkpoint)
    example, steps = EXAMPLE if all(file is None for file in files) else '"..."', list[str]()
    if planner.is_file():
        steps.append(f"tutelage orchestrate plan {example} --checkpoint {path} --explain")
    if "phase2" in result:
        router = format_path(folder.path / result["phase2"]["checkpoint"])
        workers = format_path(folder.path / "phase2" / "workers.json")
        options = f"--router {router} --workers {workers}"
        steps.append(f"tutelage orchestrate run {example} {options}")
    print_steps(console, *steps)


def show(console: Console, folder: RunFolder) -> None:
    """Show the result of a planner run, or its progress if it has no result yet."""
    from tutelage.cli.console import echo, echo_pairs, to_cell
    from tutelage.cli.rollout_view import show_stored_rollouts
    from tutelage.cli.runs import print_state

    result = folder.read_result()
    echo(console, ("Planner ", "bold"), (folder.name, "bold"))
    if result is not None:
        _show_planner_outcome(folder, result)
        show_stored_rollouts(console, folder)
        return
    lines = folder.read_metrics()
    last = lines[-1] if lines else {}
    names = ("phase", "step", "train_loss", "val_loss", "val_node_f1", "val_edge_f1")
    echo_pairs(console, [(name, to_cell(last[name])) for name in names if name in last], indent=2)
    print_state(console, folder)
