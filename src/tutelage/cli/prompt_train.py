"""Prompt searches on the command line: `tutelage train math --algorithm apo`, `train prompt FILE`.

The plan and its worst case are shown before anything is spent. Exit codes: 0 improved, 3 no
evidence, 4 regressed, 2 for what the user can mend. The search is `prompts/job.py`; what is
shown is `prompt_view.py`; how `resume` goes on is here as well.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tutelage.prompts.config import PROMPT_ALGORITHMS, PROMPT_RECIPE, PromptConfig, resolve_prompt

if TYPE_CHECKING:
    from rich.console import Console

    from tutelage.cli.prompt_view import PromptDisplay
    from tutelage.prompts.setup import Setup
    from tutelage.runs.folder import RunFolder
    from tutelage.store import Store
    from tutelage.types import Rollout

CHANGES = True
_EACH = 2
"""Rollouts of each mode that are shown."""
OF_ALGORITHMS = ("rl", "sft")
"""Algorithms that train weights."""
PROMPT_OPTIONS = (
    "iterations",
    "train_size",
    "val_size",
    "test_size",
    "runners",
    "rollouts",
    "budget_usd",
)
"""Options of `tutelage train` that are for prompt searches."""
OF_WEIGHTS: Mapping[str, str] = {
    "iterations": "steps",
    "train_size": "data.train_tasks",
    "val_size": "trainer.val_tasks",
    "test_size": "trainer.test_tasks",
}
"""Options of a prompt search that mean something for the training of weights too."""


def searches(recipe: str, algorithm: str | None) -> bool:
    """Whether a command asks to search for prompts. Raises `ConfigError` for an unknown name."""
    from tutelage.errors import ConfigError

    known = (*OF_ALGORITHMS, *PROMPT_ALGORITHMS)
    if algorithm is not None and algorithm not in known:
        near = difflib.get_close_matches(algorithm, known, n=1, cutoff=0.5)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"--algorithm={algorithm!r} is unknown. {hint}{' and '.join(OF_ALGORITHMS)} train "
            f"weights, {', '.join(PROMPT_ALGORITHMS)} search for prompts."
        )
    if recipe == PROMPT_RECIPE and algorithm in OF_ALGORITHMS:
        raise ConfigError(
            f"--algorithm {algorithm} trains weights, and `train prompt` searches for prompts: "
            "leave it out, or train your agent's weights with Trainer(algorithm=RL(...))"
        )
    return recipe == PROMPT_RECIPE or algorithm in PROMPT_ALGORITHMS


def weights_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of a training of weights, with what those of prompt searches mean there.

    Raises `ConfigError` for those that mean nothing.
    """
    from tutelage.errors import ConfigError

    merged = {name: value for name, value in flags.items() if name not in PROMPT_OPTIONS}
    for name in (name for name in PROMPT_OPTIONS if name in flags):
        if name not in OF_WEIGHTS:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{option}={flags[name]!r} is an option of prompt searches; leave it out, or "
                f"choose one with --algorithm {'|'.join(PROMPT_ALGORITHMS)}"
            )
        if OF_WEIGHTS[name] in merged:
            raise ConfigError(f"--{name} and --{OF_WEIGHTS[name]} say the same; give one of them")
        merged[OF_WEIGHTS[name]] = flags[name]
    return merged


def train_prompts(
    recipe: str,
    overrides: Sequence[str],
    flags: Mapping[str, Any],
    file: Path | None,
    dry: bool,
) -> None:
    """Search for prompts, or with `dry` show the plan and play one task.

    Raises `typer.Exit` with the verdict's exit code.
    """
    from tutelage.runs.folder import folder_at, place_of

    config = resolve_prompt(recipe, overrides, flags, file=file)
    setup = _set_up(config)
    _show_plan(setup)
    if dry:
        _dry_run(setup)
        return
    folder = folder_at(place_of(config.output, recipe))
    _run(folder, lambda display: _search(setup, folder, display), setup)


def resume(folder: RunFolder, allow_changes: bool) -> None:
    """Go on with a search. Raises `typer.Exit` with the verdict's exit code."""
    from tutelage.cli.console import messages
    from tutelage.prompts import job
    from tutelage.runs import lifecycle

    finished = folder.read_result()
    if finished is not None:
        from tutelage.cli.prompt_view import PromptDisplay

        display = PromptDisplay(messages())
        _shown(folder, lifecycle.resume(job.PromptSearch, folder, display))
        return
    with_display = _building()
    try:
        setup = job.read_setup(folder, with_display, allow_changes)
    finally:
        with_display.finish()
    _show_plan(setup)
    _run(folder, lambda display: _search(setup, folder, display), setup)


def show(console: Console, folder: RunFolder) -> None:
    """A prompt search: its outcome where it has one, else how far it is."""
    from tutelage.cli.console import facts, number, say
    from tutelage.cli.prompt_view import show_prompt_next, show_prompt_outcome
    from tutelage.cli.rollout_list import show_stored
    from tutelage.cli.runs import say_state

    result = folder.read_result()
    say(console, ("Prompt search ", "bold"), (folder.name, "bold"))
    if result is not None:
        show_prompt_outcome(console, folder, result)
    else:
        rounds = folder.read_metrics()
        facts(console, [("rounds", number(len(rounds)))], indent=2)
        say_state(console, folder)
    show_stored(console, folder, _of_each_mode)
    if result is not None:
        show_prompt_next(console, folder)


def _of_each_mode(store: Store, run_id: str) -> list[Rollout]:
    from tutelage.types import Mode

    return [r for mode in Mode for r in store.rollouts(run_id, mode=mode, limit=_EACH)]


def _search(setup: Setup, folder: RunFolder, display: PromptDisplay) -> dict[str, Any]:
    from tutelage.prompts.job import PromptSearch
    from tutelage.runs import lifecycle

    return lifecycle.start(PromptSearch(setup, display), folder, display)


def _set_up(config: PromptConfig) -> Setup:
    from tutelage.engine.endpoint import environment
    from tutelage.prompts.setup import setup_from

    display = _building()
    try:
        return setup_from(config, environment(), display)
    finally:
        display.finish()


def _building() -> Any:
    """Shows how the embedded policy is built, on its first use."""
    from tutelage.cli.console import messages
    from tutelage.cli.display import LiveDisplay

    return LiveDisplay(messages())


def _show_plan(setup: Setup) -> None:
    from tutelage.cli.console import facts, messages, prose, say
    from tutelage.cli.prompt_view import plan_lines
    from tutelage.prompts.plan import make_plan

    plan = make_plan(setup)
    console = messages()
    say(console, ("Plan", "bold"))
    ends = ["its rollouts are used up"]
    ends += [] if plan.rounds is None else [f"{plan.rounds} iterations are over"]
    ends += [] if setup.config.minutes is None else [f"{setup.config.minutes:g} minutes are over"]
    tests = len(setup.splits.test)
    sizes = f"{len(setup.splits.train)} train, {len(setup.splits.val)} val, {tests} test"
    named = list(setup.components)
    pairs = [
        ("algorithm", setup.reason),
        *setup.facts.items(),
        ("tasks", sizes),
        ("searched", f"{', '.join(named)}; {setup.settings.runners} rollouts at once"),
        *plan_lines(plan, tests=tests, ended_by=f"it ends when {' or '.join(ends)}"),
    ]
    facts(console, pairs, indent=2)
    for remark in (*setup.remarks, *setup.overlap.notes()):
        prose(console, f"Note: {remark}", "yellow")


def _dry_run(setup: Setup) -> None:
    from tutelage.cli.console import output, say
    from tutelage.cli.rollout_view import show_head, show_rollout
    from tutelage.prompts.staging import preflight

    (rollout,) = asyncio.run(preflight(setup, 1))
    console = output()
    show_head(console, rollout)
    show_rollout(console, rollout)
    say(console, "\nDry run: one task was played; nothing was searched for or written.")
    if rollout.last.failure is not None:
        raise typer.Exit(1)


def _run(folder: RunFolder, job: Callable[[PromptDisplay], dict[str, Any]], setup: Setup) -> None:
    from tutelage.cli.console import messages
    from tutelage.cli.job import watched
    from tutelage.cli.prompt_view import PromptDisplay
    from tutelage.prompts.plan import make_plan

    settings = setup.settings
    tests = 2 * len(setup.splits.test) * settings.samples
    display = PromptDisplay(messages(), rollouts=make_plan(setup).search.rollouts, test=tests)
    with watched(folder, display, "What was done is saved, the best prompt so far too."):
        result = job(display)
    _shown(folder, result)


def _shown(folder: RunFolder, result: Mapping[str, Any]) -> None:
    from tutelage.cli.console import output, say
    from tutelage.cli.prompt_view import show_prompt_next, show_prompt_outcome

    console = output()
    say(console)
    show_prompt_outcome(console, folder, result)
    say(console)
    show_prompt_next(console, folder)
    if code := int(result["exit_code"]):
        raise typer.Exit(code)
