"""Prompt searches on the command line: `tutelage train math --algorithm apo`, `train prompt FILE`.

The plan and its maximum cost are shown before anything is spent. Exit codes: 0 improved, 3 no
evidence, 4 regressed, 2 for what the user can fix. `prompts/run.py` runs the search,
`prompt_view.py` shows its progress. `resume`, and the result of a search from `result.json`, are
here as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from tutelage.cli.console import (
    echo,
    echo_pairs,
    echo_text,
    escape,
    format_path,
    messages,
    number,
    output,
    plain_table,
    print_steps,
)
from tutelage.errors import ConfigError, pluralize
from tutelage.prompts.config import PROMPT_ALGORITHMS, PROMPT_RECIPE, resolve_prompt
from tutelage.runs.estimate import duration
from tutelage.tools.loading import hint

if TYPE_CHECKING:
    from rich.console import Console

    from tutelage.prompts.setup import SearchSetup
    from tutelage.runs.folder import RunFolder

_MIN_REWARD = 0.05
"""Minimum reward for a change in percent."""
_STYLES = {"good": "green", "open": "yellow", "bad": "red"}
OF_ALGORITHMS = ("rl", "sft")
"""Algorithms that train weights."""
OF_WEIGHTS: Mapping[str, str] = {
    "iterations": "steps",
    "train_size": "data.train_tasks",
    "val_size": "trainer.val_tasks",
    "test_size": "trainer.test_tasks",
}
"""Options of a prompt search that also exist for the training of weights, with their keys."""
PROMPT_OPTIONS = (*OF_WEIGHTS, "runners", "rollouts", "budget_usd")
"""Options of `tutelage train` for prompt searches."""


def is_prompt_search(recipe: str, algorithm: str | None) -> bool:
    """Return True if a command searches for prompts. Raises `ConfigError` for an unknown name."""
    from tutelage.algorithms.extensions import METHODS

    of_weights = (*OF_ALGORITHMS, *METHODS)
    algorithms = (*of_weights, *PROMPT_ALGORITHMS)
    if algorithm is not None and algorithm not in algorithms:
        raise ConfigError(
            f"unknown algorithm {algorithm!r}{hint(algorithm, algorithms) or '.'} "
            f"{', '.join(of_weights)} train weights, "
            f"{', '.join(PROMPT_ALGORITHMS)} search for prompts. Set a custom function with "
            "algorithm.adv_estimator=FILE.py:name or actor.policy_loss.loss_mode=FILE.py:name."
        )
    if recipe == PROMPT_RECIPE and algorithm in of_weights:
        raise ConfigError(
            f"--algorithm {algorithm} trains weights, but `train prompt` searches for prompts: "
            f"remove it, or run: tutelage train AGENT.py --algorithm {algorithm}"
        )
    return recipe == PROMPT_RECIPE or algorithm in PROMPT_ALGORITHMS


def convert_prompt_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags of a weight training, with options of prompt searches converted to keys.

    Raises `ConfigError` for flags of prompt searches that have no such key.
    """

    merged = {name: value for name, value in flags.items() if name not in PROMPT_OPTIONS}
    for name in (name for name in PROMPT_OPTIONS if name in flags):
        if name not in OF_WEIGHTS:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{option}={flags[name]!r} is an option of prompt searches; remove it, or choose a "
                f"search with --algorithm {'|'.join(PROMPT_ALGORITHMS)}"
            )
        if OF_WEIGHTS[name] in merged:
            raise ConfigError(f"--{name} and --{OF_WEIGHTS[name]} are the same; pass only one")
        merged[OF_WEIGHTS[name]] = flags[name]
    return merged


def train_prompts(
    recipe: str,
    overrides: Sequence[str],
    flags: Mapping[str, Any],
    file: Path | None,
    dry_run: bool,
) -> None:
    """Search for prompts, or in a dry run show the plan and play one task.

    Raises `typer.Exit` with the exit code of the verdict.
    """
    from tutelage.cli.rollout_view import show_dry_run
    from tutelage.engine.endpoint import read_environment
    from tutelage.prompts.run import PromptSearch, preflight
    from tutelage.prompts.setup import build_setup
    from tutelage.runs.folder import RunFolder, open_folder, run_path
    from tutelage.runs.lifecycle import check_kind

    config = resolve_prompt(recipe, overrides, flags, file=file)
    if config.output is not None:
        check_kind(PromptSearch, RunFolder(Path(config.output)))
    setup = build_setup(config, read_environment())
    _show_plan(setup)
    if dry_run:
        (rollout,) = asyncio.run(preflight(setup, 1))
        show_dry_run(output(), rollout)
        return
    _run_search(open_folder(run_path(config.output, recipe)), setup)


def resume(folder: RunFolder, allow_changes: bool) -> None:
    """Resume a search. Raises `typer.Exit` with the exit code of the verdict."""
    from tutelage.cli.display import LiveDisplay
    from tutelage.prompts.run import PromptSearch, read_setup
    from tutelage.runs import lifecycle

    if folder.read_result() is not None:
        with LiveDisplay() as display:
            result = lifecycle.resume(PromptSearch, folder, display)
        _show_result(folder, result)
        return
    setup = read_setup(folder, allow_changes)
    _show_plan(setup)
    _run_search(folder, setup)


def show(console: Console, folder: RunFolder) -> None:
    """Print the outcome of a prompt search, or its progress if it has none yet."""
    from tutelage.cli.rollout_view import show_stored_rollouts
    from tutelage.cli.runs import print_state

    result = folder.read_result()
    echo(console, ("Prompt search ", "bold"), (folder.name, "bold"))
    if result is not None:
        _show_prompt_outcome(console, folder, result)
    else:
        rounds = folder.read_metrics()
        echo_pairs(console, [("rounds", number(len(rounds)))], indent=2)
        print_state(console, folder)
    show_stored_rollouts(console, folder)
    if result is not None:
        echo(console)
        _show_next_steps(console, folder)


def _show_plan(setup: SearchSetup) -> None:
    from tutelage.prompts.screen import Screen

    plan, splits, algorithm = setup.plan, setup.splits, setup.algorithm
    console = messages()
    echo(console, ("Plan", "bold"))
    conditions = ["its rollouts are used up"]
    conditions += [] if algorithm.rounds is None else [f"{algorithm.rounds} iterations are over"]
    tests, rollouts = pluralize(len(splits.test), "task"), pluralize(plan.test.rollouts, "rollout")
    sizes = f"{len(splits.train)} train, {len(splits.val)} val, {len(splits.test)} test"
    sizes += ", split from --train" if setup.config.train and not setup.config.test else ""
    components = f"{', '.join(setup.components)}; {setup.settings.runners} rollouts at once"
    maximum = f"at most {pluralize(plan.search.rollouts, 'rollout')}"
    open_ended = algorithm.needs_optimiser and plan.limits.optimiser_calls is None
    if open_ended:
        maximum += ", any number of optimiser calls"
    elif calls := plan.search.optimiser_calls:
        maximum += f", {pluralize(calls, 'optimiser call')}"
    minimum = pluralize(plan.least, "rollout")
    if isinstance(algorithm, Screen):
        minimum += f"; {number(algorithm.experiment)} try all {len(algorithm.bank)} phrases"
    total = plan.search + plan.test
    worst = f"{pluralize(total.rollouts, 'rollout')}, {pluralize(total.tokens, 'token')}"
    worst += " beside the optimiser's" if open_ended else ""
    if setup.remarks:
        worst += "; dollars are not known"
    else:
        worst += f", ${total.dollars:.2f}" if total.dollars else ", no money"
    pairs = [
        ("algorithm", setup.reason),
        *setup.facts.items(),
        ("tasks", sizes),
        ("searched", components),
        ("search", f"{maximum}; it ends when {' or '.join(conditions)}"),
        ("smallest budget", minimum),
        ("held-out test", f"{tests}, seed and best: {rollouts}"),
        *[("at most", worst)] * bool(total.tokens),
    ]
    echo_pairs(console, pairs, indent=2)
    for remark in (*setup.remarks, *setup.overlap.notes()):
        echo_text(console, f"Note: {remark}", "yellow")


def _run_search(folder: RunFolder, setup: SearchSetup) -> None:
    from tutelage.cli.job import report_stop
    from tutelage.cli.prompt_view import PromptDisplay
    from tutelage.prompts.run import PromptSearch
    from tutelage.runs import lifecycle

    tests = 2 * len(setup.splits.test) * setup.settings.samples
    display = PromptDisplay(messages(), rollouts=setup.plan.search.rollouts, test=tests)
    with report_stop(folder, display):
        result = lifecycle.start(PromptSearch(setup, display), folder, display)
    _show_result(folder, result)


def _show_result(folder: RunFolder, result: Mapping[str, Any]) -> None:
    console = output()
    echo(console)
    _show_prompt_outcome(console, folder, result)
    echo(console)
    _show_next_steps(console, folder)
    if code := int(result["exit_code"]):
        raise typer.Exit(code)


# ---------------------------------------------------------------- the plan and the outcome


def _show_prompt_outcome(console: Console, folder: RunFolder, result: Mapping[str, Any]) -> None:
    """Print the best prompt, the held-out test with its verdict, and the totals."""
    many = len(result["components"]) > 1
    for name, text in sorted(result["components"].items()):
        echo(console, ("Best prompt", "bold"), f" {name}" * many)
        for line in escape(text).split("\n"):
            echo_text(console, f"  {line}", indent=2)
    echo(console)
    seed_won = result["components"] == result["seed_components"]
    show_holdout_test(console, result["test"], seed_won=seed_won)
    for look in result.get("confirmations", ()):
        echo(console, ("\nConfirmation on fresh tasks", "bold"))
        show_holdout_test(console, look, seed_won=seed_won)
    echo(console)
    echo_pairs(console, _list_totals(folder, result))


def show_holdout_test(console: Console, test: Mapping[str, Any], *, seed_won: bool = False) -> None:
    """Print a held-out test: table, verdict, improvement. `seed_won`: the seed prompt was best."""
    from tutelage.prompts.figures import (
        HOLDOUT_COLUMNS,
        UNCHANGED,
        VERDICTS,
        holdout_rows,
        judged_lines,
    )
    from tutelage.statistics.intervals import FEW

    title = f"held-out test, {test['tasks']} tasks"
    table = plain_table(title, *HOLDOUT_COLUMNS, right=HOLDOUT_COLUMNS)
    for row in holdout_rows(test):
        table.add_row(*row)
    console.print(table)
    for line in judged_lines(test):
        echo(console, (line, "dim"))
    tone, message, rests_on = VERDICTS[test["verdict"]]
    if test["tasks"] < FEW:
        message += f" (sign test, p = {test['p_value']:.2g}: on so few tasks it decides)"
    elif tone != "open":
        message += f": the interval {rests_on}"
    message = UNCHANGED if seed_won else message
    verdict = (test["verdict"], _STYLES[tone])
    verdict_line = Text.assemble(("Verdict: ", "bold"), verdict, f", {message}")
    console.print(verdict_line, soft_wrap=not console.is_terminal)
    before, after = test["seed_reward"], test["best_reward"]
    # A share of next to nothing would be a large number without a meaning.
    share = f" ({100 * (after - before) / before:+.0f} %)" if before >= _MIN_REWARD else ""
    word = "Improvement: " if test["verdict"] == "improved" else "Change: "
    echo(console, (word, "bold"), f"{before:.2f} -> {after:.2f}{share}")
    looks = int(test["looks"])
    if looks > 1:
        echo_text(console, f"This is look {looks} at test tasks; each look makes a verdict weaker.")


def _show_next_steps(console: Console, folder: RunFolder) -> None:
    """Print commands to run after a search."""
    path = format_path(folder.path)
    print_steps(
        console,
        f"tutelage prompts tree {path}",
        f"tutelage prompts diff {path} seed best",
        f"tutelage prompts confirm {path}",
        f"tutelage show {path} --rollouts 20",
    )


def _list_totals(folder: RunFolder, result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    from tutelage.cli.outcome import list_findings
    from tutelage.prompts.figures import format_spend

    yield "algorithm", str(result["reason"])
    yield "ended", str(result["ended"])
    yield from list_findings(result)
    spent, test = (format_spend(result[name], number) for name in ("spent", "test_spent"))
    yield "spent", f"{spent}; on the test {test}"
    if unknown := result.get("calls_without_usage"):
        yield "without usage", f"{pluralize(unknown, 'call')}, charged at the bytes of their text"
    words = [f"{duration(result['wall_seconds'])} wall time", f"seed {result['seed']}"]
    yield "took", ", ".join(words)
    yield "run", format_path(folder.path)
    yield "best prompt", format_path(folder.path / "best_prompt.txt")
