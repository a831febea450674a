"""`tutelage train RECIPE`: resolve the configuration, make the run folder, run the job.

Prompt searches have a configuration and a job of their own (`prompt_train.py`).

Flags are spellings of keys and are passed on as they were typed, so the configuration checks them
all together and names what is wrong before any model loads. `job.py` runs the
job; `resume.py` continues one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from pydantic import Field, create_model

from tutelage.cli.prompt_train import (
    OF_WEIGHTS,
    searches,
    train_prompts,
    weights_flags,
)
from tutelage.config.aliases import canonical
from tutelage.config.fields import Paths, Section
from tutelage.config.keys import leaf_fields
from tutelage.errors import ConfigError
from tutelage.prompts.config import PROMPT_RECIPE, PromptConfig
from tutelage.runs.resume_hint import command_name
from tutelage.tools.loading import hint, is_file_reference

if TYPE_CHECKING:
    from rich.console import Console

    from tutelage.config import Resolved
    from tutelage.types import Rollout
    from tutelage.weights.sft import SFTPreview

CALLS: Mapping[str, str] = {
    "train word-problems": "Weights: a real language model, which is downloaded once.",
    "train math": "Weights: a small model that is part of this package.",
    "train rl, train sft": "Weights: your own model, from rewards or from demonstrations.",
    "train AGENT.py": "Weights: the model that your agent asks.",
    "train AGENT.py --algorithm screen|apo|gepa|reflect": "Prompt: of your agent, by a search.",
    "train prompt AGENT.py": "Prompt: the same search, with --algorithm auto unless it is given.",
    "train math --algorithm screen": "Prompt: of the agent for these math tasks.",
    "train planner": "Planner: plans and workers; `tutelage train planner --help`.",
}
"""What each call trains."""
OF_ONE: Mapping[str, tuple[str, ...]] = {
    "Options for weights": ("demonstrations", "steps", "level", "allow_unsandboxed"),
    "Options for prompts": ("rollouts", "budget_usd"),
}
"""Flags that only one of the two has."""
_FLAGS = (
    *("algorithm", "train", "val", "test", *OF_WEIGHTS, "model", "tools", "reward", "success"),
    *("runners", "minutes", "seed", "output", "store", "otlp"),
    *(flag for flags in OF_ONE.values() for flag in flags),
)
"""Keys, by one of their spellings, that have a flag of their own."""


_MEANINGS: Mapping[str, str] = {
    "algorithm": "How to train weights: `rl` from rewards, `sft` from demonstrations, or a method "
    "such as `grpo` or `ppo`, which is `rl` with other settings. How to search for a prompt: "
    "`screen` tries ready phrases, `apo`, `gepa` and `reflect` ask an LLM for edits, `auto` "
    "chooses.",
    "train": "Training tasks: JSON, JSONL, Parquet or CSV. Default: the recipe's own.",
    "val": "Validation tasks, to follow a training or to choose a prompt. Default: some of "
    "--train, or the recipe's own.",
    "test": "Held-out tasks for the final test. Default: the recipe's own; with --train the "
    "validation tasks, or in a prompt search some of --train.",
    "demonstrations": "Demonstrations to learn before learning from rewards: a file of chat rows, "
    "as `train sft` reads it, or a run of `tutelage eval`, whose successful rollouts are learned.",
    "iterations": "Training steps, or rounds of a search. Default of a search: no limit but the "
    "budget (10 for `apo`).",
    **{
        f"{split}_size": f"Use at most N {what} tasks. Default: all of a file, or as many as the "
        "recipe generates."
        for split, what in (("train", "training"), ("val", "validation"), ("test", "test"))
    },
    "model": "Model to train, or to play in a prompt search: a folder, OWNER/NAME on "
    "huggingface.co, a GGUF file (as of llama.cpp), or `smollm2`, which is downloaded once. "
    "Default: the server in .env in a search, `smollm2` for word-problems, else the small model "
    "`shipped` of this package.",
    "tools": "Tools of the agent, by name or as FILE.py:function, with commas between; `[]` is "
    "none. Default: the recipe's own.",
    "reward": "Reward, by name or as FILE.py:function, which is given `prediction` (the reply) and "
    "the task's fields it names. Default: the recipe's own, or the value that the agent returns.",
    "success": "What counts as success: a part of the reward that is 1 (`right`), a least reward "
    "(`>=0.5`), or a least part (`right>=0.5`). Default: a right answer, where the reward says "
    "so, else a reward of 1 if all are 0 or 1.",
    "runners": "Rollouts that AGENT.py or a search plays at the same time. Default: 64 with a "
    "model in this process, else 8.",
    "level": "Difficulty of the tasks of `train math`; `hard` has longer expressions and more "
    "items.",
    "minutes": "Time limit in minutes; what was done before a resume counts.",
    "otlp": "URL that gets traces by OpenTelemetry's protocol (OTLP/HTTP). Default: "
    "OTEL_EXPORTER_OTLP_ENDPOINT, if it is set.",
}
"""What a flag means where weights and prompts have keys of their own behind it."""


def _meaning(flag: str) -> str:
    """What a flag means, in the words of its key where these are all there is to say."""
    if flag in _MEANINGS:
        return _MEANINGS[flag]
    field = PromptConfig.model_fields.get(flag)
    return str((field or leaf_fields()[canonical(flag, None)]).description)


def _type(flag: str) -> Any:
    if flag in ("train", "val", "test", "demonstrations"):
        return Paths, ()
    return (bool, False) if flag == "allow_unsandboxed" else (str | None, None)


TRAIN_FLAGS: Any = cast("Any", create_model)(
    "TRAIN_FLAGS",
    __base__=Section,
    **{f: (_type(f)[0], Field(_type(f)[1], description=_meaning(f))) for f in _FLAGS},
)
"""The flags as they are typed: what a number or a name must look like is for the configuration to
say, in one place."""


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="word-problems, math, rl, sft, AGENT.py, prompt or planner.",
        ),
    ],
    flags: Annotated[Section, TRAIN_FLAGS],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Any configuration key, such as lr=1e-4; `tutelage config` lists them.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Configuration keys from a JSON or TOML file."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print keys that differ from their defaults; run one task, no training.",
        ),
    ] = False,
    from_scratch: Annotated[
        bool,
        typer.Option(
            "--from-scratch",
            help="Begin `train math` with random weights and demonstrations, not with the shipped "
            "start.",
        ),
    ] = False,
    all_keys: Annotated[
        bool, typer.Option("--all", help="With --dry-run: print all keys.")
    ] = False,
) -> None:
    """Train weights, search for a better prompt, or train a planner.

    `tutelage train math` needs no API key, no download and no GPU. Settings are
    options or keys: tutelage train math --steps 20 lr=1e-4
    """
    values = {name: value for name, value in flags if value not in (None, (), False)}
    own = is_file_reference(recipe)
    _check_words(recipe, overrides or ())
    overrides = [*(overrides or ()), *["model.path=null"] * from_scratch]
    search = searches(recipe, values.get("algorithm"))
    if all_keys and (search or not dry_run):
        raise ConfigError("--all needs --dry-run and training of weights; remove it")
    if from_scratch and search:
        raise ConfigError("--from-scratch cannot be used in a prompt search; remove it")
    if search:
        agent = [recipe] if own else []
        name = PROMPT_RECIPE if own else recipe
        train_prompts(name, [*agent, *overrides], values, config, dry_run)
        return
    if own:
        apart = {name: values.pop(name) for name in ("runners",) if name in values}
        flags_of_agent = weights_flags(values) | apart
        _train_agent(recipe, overrides, flags_of_agent, config, dry=dry_run, all_keys=all_keys)
        return
    from tutelage.cli.console import waiting

    with waiting("loading torch ..."):
        from tutelage.weights.process_group import in_step, launched

    group = launched()
    resolved = in_step(group, lambda: _resolved(recipe, overrides, weights_flags(values), config))
    if not dry_run:
        from tutelage.cli.job import run_job
        from tutelage.runs.folder import RunFolder
        from tutelage.weights import jobs

        folder = RunFolder(group.agree(lambda: _place(resolved)))
        run_job(folder, lambda progress: jobs.train(resolved, folder, progress), group.rank)
    elif group.rank == 0:
        _dry_run(resolved, all_keys)


def _check_words(recipe: str, further: Sequence[str]) -> None:
    """Raise `ConfigError` for words in another order, and for a recipe that there is not."""
    from tutelage.runs.folder import is_run
    from tutelage.weights.config.presets import RECIPES

    if is_file_reference(recipe):
        return
    if "=" in recipe or recipe == "planner":
        words = [word for word in further if "=" not in word] or ["RECIPE"]
        right = "planner" if recipe == "planner" else f"{words[0]} {recipe}"
        raise ConfigError(f"the recipe must come first: {command_name()} train {right} ...")
    for word in (word for word in further if "=" not in word and Path(word).is_dir()):
        place = Path(word, "policy") if is_run(Path(word)) else Path(word)
        raise ConfigError(f"unexpected argument {word!r}; pass a model with --model {place}")
    if recipe not in (*RECIPES, PROMPT_RECIPE):
        known = (*RECIPES, PROMPT_RECIPE, "planner")
        names = [f"{recipe}.py"] if Path(f"{recipe}.py").is_file() else [*known]
        near = hint(recipe, [*names, *map(str, Path().glob("*.py"))]) or "."
        raise ConfigError(
            f"unknown recipe {recipe!r}{near} Choose one of {', '.join(known)}, or AGENT.py, the "
            "file of an agent."
        )


def _resolved(
    recipe: str, overrides: Sequence[str], flags: Mapping[str, Any], file: Path | None
) -> Resolved:
    from tutelage.cli.console import fetch
    from tutelage.policy.machine import machine_facts
    from tutelage.weights.config import resolve

    resolved = resolve(recipe, overrides, machine=machine_facts(), flags=flags, file=file)
    fetch(resolved.config.model.path)
    return resolved


def _place(resolved: Resolved) -> Path:
    """The run folder, made where it is new; what has no effect on the run is said."""
    from tutelage.runs.folder import folder_at, place_of
    from tutelage.weights.paths import continued

    # The job itself notes the warnings.
    for line in _unused(resolved):
        typer.echo(line, err=True)
    place = continued(resolved) if resolved.config.output is None else None
    if place is not None:
        typer.echo(f"Continuing {place}, the run of this name", err=True)
    else:
        config = resolved.config
        name = config.trainer.experiment_name
        place = place_of(config.output, config.recipe, name)
        if config.output is None and name is not None and place.name != name.replace("/", "-"):
            typer.echo(f"There is a run of the name {name!r} already, so this is {place}", err=True)
    return folder_at(place).path


def _dry_run(resolved: Resolved, all_keys: bool) -> None:
    from tutelage.cli.console import messages, output, prose, say, waiting
    from tutelage.errors import TutelageError
    from tutelage.weights import jobs
    from tutelage.weights.sft import SFTPreview

    supervised = resolved.config.recipe == "sft"
    # What is wrong with the input is said without the many lines of the configuration.
    notes: list[str] = []
    try:
        with waiting("reading demonstrations ..." if supervised else "playing one task ..."):
            rollout = jobs.dry_run(resolved, notes.append)
    except TutelageError:
        for note in notes:
            prose(messages(), note)
        raise
    if not isinstance(rollout, SFTPreview):
        _show_dry_run(rollout, resolved, notes, all_keys)
        return
    console = output()
    _show_table(console, resolved, notes, all_keys)
    say(console)
    _show_preview(console, rollout)


def _show_dry_run(rollout: Rollout, resolved: Any, notes: Sequence[str], all_keys: bool) -> None:
    from tutelage.cli.console import output, prose, say
    from tutelage.cli.rollout_view import show_head, show_rollout

    console = output()
    _show_table(console, resolved, notes, all_keys)
    say(console)
    show_head(console, rollout)
    show_rollout(console, rollout)
    if resolved.config.model.path is None:
        first = "" if resolved.config.data.train_files else ", with a cold start first"
        noise = "The model is new and still random, so its text is noise; training teaches it"
        prose(console, f"\n{noise}{first}.", "yellow")
    say(console, "\nDry run: one task was played and nothing was trained or written.")
    if rollout.last.failure is not None:
        raise typer.Exit(1)


def _train_agent(
    reference: str,
    overrides: Sequence[str],
    flags: Mapping[str, Any],
    file: Path | None,
    *,
    dry: bool,
    all_keys: bool,
) -> None:
    """Train the agent in a file, or with `dry` show the configuration and play one task."""
    from tutelage.agents.loading import load_agent
    from tutelage.cli.console import fetch, messages, prose, waiting
    from tutelage.cli.job import run_job
    from tutelage.runs.folder import RunFolder, place_of
    from tutelage.runs.progress import Progress

    with waiting("loading torch ..."):
        from tutelage.trainer.agent_file import keys_of, trainer_of, with_file
        from tutelage.weights.memory import stored_words
        from tutelage.weights.process_group import in_step, launched

    group = launched()
    flags = in_step(group, lambda: with_file(flags, file))
    agent, _ = in_step(group, lambda: load_agent(reference))
    in_step(group, lambda: fetch(flags.get("model")))
    keys = in_step(group, lambda: keys_of(overrides, flags, file))
    if dry and group.rank:
        return
    if dry:
        trainer = trainer_of(keys, flags, None, Progress())
        try:
            with waiting("playing one task ..."):
                (rollout,) = trainer.dev(reference, n=1).rollouts
        finally:  # also where the weights are still to come
            if keys.resolved and (told := stored_words(keys.resolved.config)) is not None:
                prose(messages(), f"memory: {told}")
        _show_dry_run(rollout, keys.resolved, (), all_keys)
        return
    place = group.agree(lambda: place_of(flags.get("output"), agent.name))

    def job(progress: Progress) -> dict[str, Any]:
        return trainer_of(keys, flags, place, progress).fit(reference).details

    run_job(RunFolder(place), job, group.rank)


def _show_preview(console: Console, found: SFTPreview) -> None:
    """The first demonstration with what of it is trained, and how much there is."""
    from tutelage.cli.console import facts, number, say, visible
    from tutelage.errors import counted

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


def _show_table(console: Console, resolved: Resolved, notes: Sequence[str], all_keys: bool) -> None:
    """Print the keys that something sets or follows from, or all, each with its value and origin;
    then notes, warnings and keys without effect."""
    from tutelage.cli.console import prose, say, visible

    section, rows = "", resolved.to_table()
    shown = [row for row in rows if all_keys or row.origin != "default" or row.note]
    for row in shown:
        here = row.key.partition(".")[0] if "." in row.key else ""
        if here != section:
            section = here
            say(console, (f"\n{section}", "bold"))
        lines = [] if row.origin == "default" else [row.origin]
        lines += [row.note] if row.note else []
        style = "" if row.origin == "default" else "green"
        remark = f"   # {'; '.join(lines)}" if lines else ""
        value = json.dumps(row.value, ensure_ascii=False)
        say(console, (visible(f"{row.key}={value}"), style), (visible(remark), "dim"))
    if not all_keys:
        rest = f"{len(rows) - len(shown)} other keys have their defaults; --all prints them"
        say(console, (f"\n{rest}", "dim"))
    for line in notes:
        say(console)
        prose(console, line)
    for line in (*(f"Warning: {text}" for text in resolved.warnings), *_unused(resolved)):
        prose(console, line, "yellow")


def _unused(resolved: Resolved) -> list[str]:
    return [f"Warning: {key} has no effect: {why}" for key, why in resolved.unused.items()]
