"""`tutelage train RECIPE`: resolve the configuration, make the run folder, run the job.

Prompt searches have a configuration and a job of their own (`prompt_train.py`).

Flags are spellings of keys and are handed on as they were typed, so the configuration checks them
all together and names what is wrong before any model loads. `job.py` runs the
job; `resume.py` goes on with one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from tutelage.config import Resolved, RunConfig
    from tutelage.train.sft import Preview


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="math: the embedded job, which needs nothing; rl: your own model and tasks; "
            "sft: your own demonstrations; prompt AGENT.py: the prompt of your own agent; "
            "planner: plans and workers (see tutelage train planner --help).",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Any key; `tutelage config` lists them."),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="rl or sft train weights; apo, gepa, screen, grips or auto search for prompts.",
        ),
    ] = None,
    iterations: Annotated[
        str | None,
        typer.Option(metavar="N", help="Rounds of a prompt search; training steps else."),
    ] = None,
    train_size: Annotated[
        str | None, typer.Option(metavar="N", help="Training tasks at most.")
    ] = None,
    val_size: Annotated[
        str | None, typer.Option(metavar="N", help="Validation tasks at most.")
    ] = None,
    test_size: Annotated[str | None, typer.Option(metavar="N", help="Test tasks at most.")] = None,
    runners: Annotated[
        str | None, typer.Option(metavar="N", help="Prompt search: rollouts at once.")
    ] = None,
    rollouts: Annotated[
        str | None, typer.Option(metavar="N", help="Prompt search: rollouts at most.")
    ] = None,
    budget_usd: Annotated[
        str | None, typer.Option(metavar="X", help="Prompt search: US dollars at most.")
    ] = None,
    level: Annotated[
        str | None,
        typer.Option(metavar="default|hard", help="Difficulty of the embedded tasks."),
    ] = None,
    seed: Annotated[
        str | None, typer.Option(metavar="N", help="Seed of every random draw.")
    ] = None,
    minutes: Annotated[
        str | None, typer.Option(metavar="M", help="Stop after this many minutes.")
    ] = None,
    steps: Annotated[
        str | None, typer.Option(metavar="N", help="Stop after this many steps.")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Run folder; without it a new one below runs/."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="PATH_OR_ID", help="Hugging Face model; without it a tiny one."),
    ] = None,
    train: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE", help="Training tasks (sft: demonstrations): JSON, JSONL, CSV, Parquet."
        ),
    ] = None,
    val: Annotated[list[str] | None, typer.Option(metavar="FILE", help="Held-out tasks.")] = None,
    test: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="Tasks seen only after training.")
    ] = None,
    tools: Annotated[
        str | None, typer.Option(metavar="A,B", help="Tools by name or as FILE.py:function.")
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Reward by name or as FILE.py:function."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keys from a JSON or TOML file.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(metavar="URL", help="postgresql://HOST/DATABASE instead of a file."),
    ] = None,
    otlp: Annotated[
        str | None, typer.Option(metavar="URL", help="Collector that traces are sent to.")
    ] = None,
    allow_unsandboxed: Annotated[
        bool,
        typer.Option("--allow-unsandboxed", help="Run model-written code where no sandbox works."),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show the configuration, play one task, train nothing."),
    ] = False,
) -> None:
    """Train a policy, or search for a better prompt.

    `tutelage train math` needs no key, no download and no GPU.
    """
    from tutelage.cli.prompt_train import is_prompt_search, train_prompts, weights_flags

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
    if is_prompt_search(recipe, algorithm):
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
        from tutelage.train.machine import facts

    return resolve(recipe, overrides, machine=facts(), flags=flags, file=file)


def _train(resolved: Resolved) -> None:
    from tutelage.cli.job import run_job
    from tutelage.train import jobs
    from tutelage.train.folder import RunFolder, create

    live = "console" in resolved.config.trainer.logger
    # The job itself notes the warnings where the progress is shown.
    for line in _unused(resolved) if live else _remarks(resolved):
        typer.echo(line, err=True)
    place = _place(resolved.config)
    folder = RunFolder(place) if (place / "config.json").is_file() else create(place)
    run_job(folder, lambda progress: jobs.train(resolved, folder, progress), live=live)


def _dry_run(resolved: Resolved) -> None:
    from tutelage.cli.console import output, say, waiting
    from tutelage.cli.rollout_view import show_head, show_rollout
    from tutelage.train import jobs
    from tutelage.train.sft import Preview

    console = output()
    show_table(console, resolved)
    say(console)
    supervised = resolved.config.recipe == "sft"
    with waiting("reading demonstrations ..." if supervised else "playing one task ..."):
        rollout = jobs.dry_run(resolved)
    if isinstance(rollout, Preview):
        _show_preview(console, rollout)
        return
    show_head(console, rollout)
    show_rollout(console, rollout)
    say(console, "\nDry run: one task was played and nothing was trained or written.")


def _show_preview(console: Console, found: Preview) -> None:
    """The first demonstration with what of it is trained, and how much there is."""
    from tutelage.cli.console import facts, number, say, visible

    say(console, ("The first demonstration; what is trained is green", "bold"))
    for text, trained in found.pieces:
        say(console, (visible(text), "green" if trained else "dim"))
    say(console)
    rows = f"{number(found.rows)} rows, {number(found.tokens)} tokens"
    bound = "until the minutes are over" if found.steps is None else f"{number(found.steps)} steps"
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
    from tutelage.train.folder import fresh_name

    if config.output is not None:
        return Path(config.output)
    # A name with a slash would make folders below `runs/` that no verb looks into.
    name = (config.trainer.experiment_name or config.recipe).replace("/", "-")
    return fresh_name(name)
