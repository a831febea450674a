"""`tutelage train RECIPE`: resolve the configuration, make the run folder, run the job.

Prompt searches have a configuration and a job of their own (`prompt_train.py`).

Flags are spellings of keys and are handed on as they were typed, so the configuration checks them
all together and names what is wrong before any model loads. `job.py` runs the
job; `resume.py` goes on with one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tutelage.cli import train_options as options

if TYPE_CHECKING:
    from rich.console import Console

    from tutelage.config import Resolved, RunConfig
    from tutelage.weights.sft import Preview


def train(
    recipe: options.Recipe,
    overrides: options.Overrides = None,
    algorithm: options.Algorithm = None,
    iterations: options.Iterations = None,
    train_size: options.TrainSize = None,
    val_size: options.ValSize = None,
    test_size: options.TestSize = None,
    runners: options.Runners = None,
    rollouts: options.Rollouts = None,
    budget_usd: options.BudgetUsd = None,
    level: options.Level = None,
    seed: options.Seed = None,
    minutes: options.Minutes = None,
    steps: options.Steps = None,
    output: options.Output = None,
    model: options.Model = None,
    train: options.Train = None,
    val: options.Val = None,
    test: options.Test = None,
    tools: options.Tools = None,
    reward: options.Reward = None,
    success: options.Success = None,
    config: options.Config = None,
    store: options.Store = None,
    otlp: options.Otlp = None,
    allow_unsandboxed: options.AllowUnsandboxed = False,
    dry_run: options.DryRun = False,
) -> None:
    """Train a policy, or search for a better prompt.

    `tutelage train math` needs no key, no download and no GPU.
    """
    from tutelage.cli.prompt_train import searches, train_prompts, weights_flags

    flags = {
        "algorithm": algorithm,
        "level": level,
        "seed": seed,
        "minutes": minutes,
        "steps": steps,
        "output": output,
        "model": model,
        "train": train or None,
        "val": val or None,
        "test": test or None,
        "tools": tools,
        "reward": reward,
        "success": success,
        "tools.allow_unsandboxed": allow_unsandboxed or None,
        "store": store,
        "otlp": otlp,
    }
    of_prompts = {
        "iterations": iterations,
        "train_size": train_size,
        "val_size": val_size,
        "test_size": test_size,
        "runners": runners,
        "rollouts": rollouts,
        "budget_usd": budget_usd,
    }
    if searches(recipe, algorithm):
        train_prompts(recipe, overrides or (), flags | of_prompts, config, dry_run)
        return
    resolved = _resolved(recipe, overrides or (), weights_flags(flags, of_prompts), config)
    if dry_run:
        _dry_run(resolved)
    else:
        _train(resolved)


def _resolved(
    recipe: str, overrides: Sequence[str], flags: Mapping[str, Any], file: Path | None
) -> Resolved:
    from tutelage.cli.console import waiting
    from tutelage.config import resolve

    with waiting("loading torch ..."):
        from tutelage.policy.machine import facts
        from tutelage.weights.built import built

    return resolve(recipe, overrides, machine=facts(), flags=flags, file=file, built=built())


def _train(resolved: Resolved) -> None:
    from tutelage.cli.job import run_job
    from tutelage.runs.folder import RunFolder, create
    from tutelage.weights import jobs
    from tutelage.weights.places import check_name_is_new, interrupted

    live = "console" in resolved.config.trainer.logger
    # The job itself notes the warnings where the progress is shown.
    for line in _unused(resolved) if live else _remarks(resolved):
        typer.echo(line, err=True)
    place = interrupted(resolved) if resolved.config.output is None else None
    if place is not None:
        typer.echo(f"Going on with {place}, which was cut off", err=True)
    else:
        if resolved.config.output is None:
            check_name_is_new(resolved)
        place = _place(resolved.config)
    folder = RunFolder(place) if (place / "config.json").is_file() else create(place)
    run_job(folder, lambda progress: jobs.train(resolved, folder, progress), live=live)


def _dry_run(resolved: Resolved) -> None:
    from tutelage.cli.console import output, say, waiting
    from tutelage.cli.rollout_view import show_head, show_rollout
    from tutelage.weights import jobs
    from tutelage.weights.sft import Preview

    console = output()
    supervised = resolved.config.recipe == "sft"
    # What is wrong with the input is said alone, before the many lines of the configuration.
    with waiting("reading demonstrations ..." if supervised else "playing one task ..."):
        rollout = jobs.dry_run(resolved)
    show_table(console, resolved)
    say(console)
    if isinstance(rollout, Preview):
        _show_preview(console, rollout)
        return
    show_head(console, rollout)
    show_rollout(console, rollout)
    say(console, "\nDry run: one task was played and nothing was trained or written.")
    if rollout.last.failure is not None:
        raise typer.Exit(1)


def _show_preview(console: Console, found: Preview) -> None:
    """The first demonstration with what of it is trained, and how much there is."""
    from tutelage.cli.console import counted, facts, number, say, visible

    # A pipe, a file and a terminal without colours say it in marks.
    coloured = console.color_system is not None and not console.no_color
    how = "is green" if coloured else "stands between >>> and <<<"
    say(console, (f"The first demonstration; what is trained {how}", "bold"))
    for text, trained in found.pieces:
        shown = visible(text) if coloured or not trained else f">>>{visible(text)}<<<"
        say(console, (shown, "green" if trained else "dim"))
    say(console)
    rows = f"{counted(found.rows, 'row')}, {counted(found.tokens, 'token')}"
    bound = "until the minutes are over" if found.steps is None else counted(found.steps, "step")
    pairs = [
        ("read", f"{rows}, {number(found.trained)} of them trained, longest row {found.longest}"),
        ("run", bound),
        ("loss", f"{found.loss:.3f} nats a token on the first batch, untrained"),
    ]
    facts(console, pairs)
    say(console, "\nDry run: nothing was trained or written.")


def show_table(console: Console, resolved: Resolved) -> None:
    """Every key with its value and who set it, then warnings and keys without effect."""
    from tutelage.cli.console import prose, say, visible

    section = ""
    for row in resolved.to_table():
        here = row.key.partition(".")[0] if "." in row.key else ""
        if here != section:
            section = here
            say(console, (f"\n{section}", "bold"))
        told = [] if row.origin == "default" else [row.origin]
        told += [row.note] if row.note else []
        style = "" if row.origin == "default" else "green"
        remark = f"   # {'; '.join(told)}" if told else ""
        say(console, (visible(f"{row.key}={_value(row.value)}"), style), (visible(remark), "dim"))
    for line in _remarks(resolved):
        prose(console, line, "yellow")


def _value(value: object) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)


def _remarks(resolved: Resolved) -> list[str]:
    return [*(f"Warning: {text}" for text in resolved.warnings), *_unused(resolved)]


def _unused(resolved: Resolved) -> list[str]:
    return [f"Warning: {key} has no effect: {why}" for key, why in resolved.unused.items()]


def _place(config: RunConfig) -> Path:
    from tutelage.runs.folder import fresh_name

    if config.output is not None:
        return Path(config.output)
    # A name with a slash would make folders below `runs/` that no verb looks into.
    name = (config.trainer.experiment_name or config.recipe).replace("/", "-")
    return fresh_name(name, claim=True)
