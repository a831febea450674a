"""`tutelage train RECIPE`: resolve the configuration, create the run folder, run the job.

Prompt searches have their own configuration and job (`prompt_train.py`). Flags are spellings of
keys and are passed on as typed; the configuration checks them together before a model loads.
`job.py` runs the job, `resume.py` continues one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tutelage.cli.prompt_train import (
    convert_prompt_flags,
    is_prompt_search,
    train_prompts,
)
from tutelage.config.fields import Paths, Section
from tutelage.errors import ConfigError
from tutelage.prompts.config import PROMPT_RECIPE
from tutelage.runs.resume_hint import command_name
from tutelage.tools.loading import hint, is_file_reference

if TYPE_CHECKING:
    from rich.console import Console

    from tutelage.config import Resolved
    from tutelage.types import Rollout
    from tutelage.weights.sft import SFTPreview

_UNSET = ("", "default")
"""Origins of values that the user did not set."""
Text = str | None
"""Flag as it was typed; the configuration validates it."""


class _TrainFlags(Section):
    """Flags of `train` that set configuration keys."""

    algorithm: Text = None
    """Weights: `rl` from rewards, `sft` from demonstrations, or a method of `rl` such as `grpo` or
    `ppo`. Prompt: `screen` tries ready phrases, `apo`, `gepa` and `reflect` ask an LLM for
    edits, `auto` chooses."""
    environment: Text = None
    """Environment that the agent acts in: a built-in one, SCHEME:ARGUMENT or FILE.py:NAME."""
    environment_kwargs: Text = None
    """Arguments of the environment, as a JSON object."""
    train: Paths = ()
    """Training tasks: JSON, JSONL, Parquet or CSV. Default: the recipe's own."""
    val: Paths = ()
    """Validation tasks. Default: some of --train, or the recipe's own."""
    test: Paths = ()
    """Held-out tasks for the final test. Default: the recipe's own; with --train the validation
    tasks, or in a prompt search some of --train."""
    iterations: Text = None
    """Training steps, or rounds of a search. Default of a search: no limit but the budget (10 for
    `apo`)."""
    train_size: Text = None
    """Use at most N training tasks. Default: all of a file, or as many as the recipe generates."""
    val_size: Text = None
    """Use at most N validation tasks. Default: all of a file, or as many as the recipe
    generates."""
    test_size: Text = None
    """Use at most N test tasks. Default: all of a file, or as many as the recipe generates."""
    model: Text = None
    """Model to train or to play: a folder, OWNER/NAME on huggingface.co, a GGUF file, or `smollm2`.
    Default: the server in .env in a search, `smollm2` for word-problems, a new small one
    in an environment, else the small model `shipped` of this package."""
    tools: Text = None
    """Tools of the agent, by name or as FILE.py:function, with commas between; `[]` is none.
    Default: the recipe's own."""
    reward: Text = None
    """Reward, by name or as FILE.py:function of `prediction` (the reply) and fields of the task.
    Default: the recipe's own, or the value that the agent returns."""
    success: Text = None
    """What counts as success: a part of the reward that is 1 (`right`), a least reward (`>=0.5`),
    or a least part (`right>=0.5`). Default: a right answer, or a reward of 1."""
    runners: Text = None
    """Rollouts played at once. Default: 64 with a model in this process, else 8."""
    minutes: Text = None
    """Time limit in minutes; what was done before a resume counts."""
    store: Text = None
    """Database for rollouts, as postgresql://HOST/DATABASE. Default: a file in the run folder."""
    otlp: Text = None
    """OTLP/HTTP endpoint for traces. Default: OTEL_EXPORTER_OTLP_ENDPOINT, if it is set."""
    demonstrations: Paths = ()
    """For weights: demonstrations to learn before rewards: a file of chat rows, or a run of
    `tutelage eval`, whose successful rollouts are learned."""
    steps: Text = None
    """For weights: training steps, one batch each."""
    level: Text = None
    """For weights: difficulty of the tasks of `train math`."""
    allow_unsandboxed: bool = False
    """For weights: run model-written code even if no sandbox works."""
    rollouts: Text = None
    """For prompts: maximum rollouts of the search; the held-out test is not included."""
    budget_usd: Text = None
    """For prompts: budget in US dollars, the held-out test included."""
    seed: Text = None
    """Random seed of the run."""
    output: Text = None
    """Folder of the run. Default: a new one in `runs/`."""


class _TrainOptions(Section):
    """Flags of `train` that do not set configuration keys."""

    config: Path | None = None
    """Configuration keys from a JSON or TOML file."""
    dry_run: bool = False
    """Print keys that differ from their defaults; run one task, no training."""
    from_scratch: bool = False
    """Begin `train math` with random weights and demonstrations, not with the shipped start."""
    all: bool = False
    """With --dry-run: print all keys."""


def train(
    flags: _TrainFlags,
    options: _TrainOptions,
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="word-problems, math, rl, sft, AGENT.py, prompt or planner; none with "
            "--environment.",
        ),
    ] = "",
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Any configuration key, such as lr=1e-4; `tutelage config` lists them.",
        ),
    ] = None,
) -> None:
    """Train weights, search for a better prompt, or train a planner.

    `tutelage train math` needs no API key, no download and no GPU. Settings are
    options or keys: tutelage train math --steps 20 lr=1e-4

    \b
    train --environment NAME
                           Weights: an agent in an environment, from its rewards.
    train word-problems    Weights: a real language model, downloaded once.
    train math             Weights: a small model of this package.
    train rl, train sft    Weights: your own model, by rewards or demonstrations.
    train AGENT.py         Weights: the model that your agent asks.
    train AGENT.py --algorithm screen|apo|gepa|reflect
                           Prompt: of your agent, found by a search.
    train prompt AGENT.py  Prompt: the same search, by default with auto.
    train math --algorithm screen
                           Prompt: of the agent for these math tasks.
    train planner          Planner: plans and workers; see its own --help.
    """
    values = {name: value for name, value in flags if value not in (None, (), False)}
    recipe, overrides = resolve_recipe(recipe, overrides or (), values)
    is_agent, config, dry_run = is_file_reference(recipe), options.config, options.dry_run
    _check_recipe(recipe)
    overrides += ["model.path=null"] * options.from_scratch
    search = is_prompt_search(recipe, values.get("algorithm"))
    if options.all and (search or not dry_run):
        raise ConfigError("--all works only with --dry-run in a weight training; remove it")
    if options.from_scratch and search:
        raise ConfigError("--from-scratch cannot be used in a prompt search; remove it")
    if search:
        arguments = [recipe, *overrides] if is_agent else overrides
        train_prompts(PROMPT_RECIPE if is_agent else recipe, arguments, values, config, dry_run)
        return
    if is_agent:
        runners = {"runners": values.pop("runners")} if "runners" in values else {}
        _train_agent(recipe, overrides, convert_prompt_flags(values) | runners, options)
        return
    from tutelage.cli.console import fetch, show_status

    with show_status("loading torch ..."):
        from tutelage.policy.machine import detect_machine
        from tutelage.weights.config import resolve
        from tutelage.weights.process_group import get_group, run_on_all

    group = get_group()
    machine = detect_machine()
    resolved = run_on_all(
        group,
        lambda: resolve(
            recipe, overrides, machine=machine, flags=convert_prompt_flags(values), file=config
        ),
    )
    run_on_all(group, lambda: fetch(resolved.config.model.path))
    if not dry_run:
        from tutelage.cli.job import run_job
        from tutelage.runs.folder import RunFolder
        from tutelage.weights import jobs

        folder = RunFolder(group.broadcast(lambda: _create_run_folder(resolved)))
        run_job(folder, partial(jobs.train, resolved, folder), group.rank)
    elif group.rank == 0:
        _dry_run(resolved, options.all)


def resolve_recipe(
    recipe: str, overrides: Sequence[str], flags: Mapping[str, Any]
) -> tuple[str, list[str]]:
    """Return the recipe and the overrides; the recipe may be omitted if an environment is set.
    Raises `ConfigError` if both are missing."""
    if "=" in recipe and "environment" in flags:
        recipe, overrides = "", [recipe, *overrides]
    if not recipe and "environment" not in flags:
        raise ConfigError("Missing argument 'RECIPE': pass one, AGENT.py, or --environment NAME")
    search = is_prompt_search("rl", flags.get("algorithm"))
    return recipe or ("math" if search else "rl"), [*overrides]


def _check_recipe(recipe: str) -> None:
    """Raise `ConfigError` for an unknown recipe, or one that is not the first argument."""
    from tutelage.weights.config.presets import RECIPES

    if is_file_reference(recipe):
        return
    if "=" in recipe or recipe == "planner":
        raise ConfigError(f"the recipe must come first: {command_name()} train RECIPE KEY=VALUE")
    if recipe not in (*RECIPES, PROMPT_RECIPE):
        known = (*RECIPES, PROMPT_RECIPE, "planner")
        names = [f"{recipe}.py"] if Path(f"{recipe}.py").is_file() else [*known]
        near = hint(recipe, [*names, *map(str, Path().glob("*.py"))]) or "."
        raise ConfigError(
            f"unknown recipe {recipe!r}{near} Choose one of {', '.join(known)}, or AGENT.py, the "
            "file of an agent."
        )


def _create_run_folder(resolved: Resolved) -> Path:
    """Create the run folder if necessary and return its path; warn about keys without effect."""
    from tutelage.runs.folder import open_folder, run_path
    from tutelage.weights.paths import find_resumable

    # The job itself notes the warnings.
    for line in _list_unused(resolved):
        typer.echo(line, err=True)
    config, name = resolved.config, resolved.config.trainer.experiment_name
    if config.output is None and (path := find_resumable(resolved)) is not None:
        typer.echo(f"Continuing {path}, the run of this name", err=True)
        return open_folder(path).path
    recipe = "environment" if config.environment.name else config.recipe
    path = run_path(config.output, recipe, name)
    if config.output is None and name is not None and path.name != name.replace("/", "-"):
        typer.echo(f"There is a run of the name {name!r} already, so this is {path}", err=True)
    return open_folder(path).path


def _dry_run(resolved: Resolved, all_keys: bool) -> None:
    from tutelage.cli.console import echo, echo_text, messages, output, show_status
    from tutelage.errors import TutelageError
    from tutelage.weights import jobs
    from tutelage.weights.sft import SFTPreview

    # What is wrong with the input is said without the many lines of the configuration.
    notes: list[str] = []
    sft = resolved.config.recipe == "sft"
    try:
        with show_status("reading demonstrations ..." if sft else "playing one task ..."):
            rollout = jobs.dry_run(resolved, notes.append)
    except TutelageError:
        for note in notes:
            echo_text(messages(), note)
        raise
    if not isinstance(rollout, SFTPreview):
        _show_dry_run(rollout, resolved, notes, all_keys)
        return
    console = output()
    _show_table(console, resolved, notes, all_keys)
    echo(console)
    _show_preview(console, rollout)


def _show_dry_run(rollout: Rollout, resolved: Any, notes: Sequence[str], all_keys: bool) -> None:
    from tutelage.cli.console import echo, output
    from tutelage.cli.rollout_view import show_dry_run

    console, remark = output(), ""
    _show_table(console, resolved, notes, all_keys)
    echo(console)
    if resolved.config.model.path is None:
        first = "" if resolved.config.data.train_files else ", with a cold start first"
        remark = "The model is new and still random, so its text is noise; training teaches it"
        remark += f"{first}."
    show_dry_run(console, rollout, remark)


def _train_agent(
    reference: str, overrides: Sequence[str], flags: Mapping[str, Any], options: _TrainOptions
) -> None:
    """Train the agent of a file; in a dry run show the configuration and play one task."""
    from tutelage.agents.loading import load_agent
    from tutelage.cli.console import fetch, show_status
    from tutelage.cli.job import run_job
    from tutelage.runs.folder import RunFolder, run_path
    from tutelage.runs.progress import Progress

    with show_status("loading torch ..."):
        from tutelage.trainer.agent_file import collect_keys, make_trainer, merge_file
        from tutelage.weights.process_group import get_group, run_on_all

    group, dry = get_group(), options.dry_run
    flags = run_on_all(group, lambda: merge_file(flags, options.config))
    agent, _ = run_on_all(group, lambda: load_agent(reference))
    run_on_all(group, lambda: fetch(flags.get("model")))
    keys = run_on_all(group, lambda: collect_keys(overrides, flags, options.config))
    if dry and group.rank:
        return
    if dry:
        trainer = make_trainer(keys, flags, None, Progress())
        with show_status("playing one task ..."):
            (rollout,) = trainer.dev(reference, n=1).rollouts
        _show_dry_run(rollout, keys.resolved, (), options.all)
        return
    path = group.broadcast(lambda: run_path(flags.get("output"), agent.name))

    def job(progress: Progress) -> dict[str, Any]:
        return make_trainer(keys, flags, path, progress).fit(reference).details

    run_job(RunFolder(path), job, group.rank)


def _show_preview(console: Console, preview: SFTPreview) -> None:
    """Print the first demonstration, with trained tokens highlighted, and the size of the data."""
    from tutelage.cli.console import echo, echo_pairs, escape, number
    from tutelage.errors import pluralize

    # A pipe, a file and a terminal without colours say it in marks.
    coloured = console.color_system is not None and not console.no_color
    mark = "is green" if coloured else "stands between >>> and <<<"
    echo(console, (f"The first demonstration; what is trained {mark}", "bold"))
    for text, trained in preview.pieces:
        marked = escape(text) if coloured or not trained else f">>>{escape(text)}<<<"
        echo(console, (marked, "green" if trained else "dim"))
    echo(console)
    rows = f"{pluralize(preview.rows, 'row')}, {pluralize(preview.tokens, 'token')}"
    size = f"{rows}, {number(preview.trained)} of them trained, longest row {preview.longest}"
    bound = "until the time limit" if preview.steps is None else pluralize(preview.steps, "step")
    loss = f"{preview.loss:.3f} nats a token on the first batch, untrained"
    echo_pairs(console, [("read", size), ("run", bound), ("loss", loss)])
    echo(console, "\nDry run: nothing was trained or written.")


def _show_table(console: Console, resolved: Resolved, notes: Sequence[str], all_keys: bool) -> None:
    """Print the keys that were set or derived, or with `all_keys` all keys, with values and
    origins, then notes, warnings and keys without effect."""
    from tutelage.cli.console import echo, echo_text, show_keys

    rows = [
        (key, value, "; ".join(text for text in (origin, note) if text not in _UNSET))
        for key, value, origin, note in resolved.to_table()
    ]
    show_keys(console, rows, all_keys)
    for line in notes:
        echo(console)
        echo_text(console, line)
    for line in (*(f"Warning: {text}" for text in resolved.warnings), *_list_unused(resolved)):
        echo_text(console, line, "yellow")


def _list_unused(resolved: Resolved) -> list[str]:
    return [f"Warning: {key} has no effect: {reason}" for key, reason in resolved.unused.items()]
