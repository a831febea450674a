"""`tutelage show RUN|ROLLOUT`: what a run did, or one rollout turn by turn.

A name is a run when a run folder has it, otherwise the beginning of a rollout's id. The rollout
itself is shown by `rollout_view.py`, the before/after table by `outcome.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tutelage.errors import ConfigError, RunError

if TYPE_CHECKING:
    from rich.console import Console

    from tutelage.runs.folder import RunFolder
    from tutelage.store import Store
    from tutelage.types import Rollout

ROLLOUT_PREFIX = "roll"
_LABELS = ("before/sampled", "before/greedy", "after/sampled", "after/greedy")
_EACH = 2
_METRICS: dict[str, tuple[str, ...]] = {
    "reward": ("reward/mean",),
    "loss": ("loss/policy", "loss/sft"),
    "max |Δlogp|": ("max_dlogp",),
}
"""The columns of the phases, each with the metrics that may fill it."""


def show(
    name: Annotated[
        str, typer.Argument(metavar="RUN|ROLLOUT", help="Run, or the beginning of a rollout's id.")
    ],
    run: Annotated[
        str | None, typer.Option(metavar="RUN", help="Look for the rollout in this run only.")
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Of a rollout: token ids and log-probabilities.")
    ] = False,
    content: Annotated[
        bool, typer.Option("--content", help="Of a rollout: all attributes of its spans.")
    ] = False,
    rollouts: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Of a run: list N rollouts.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(min=0, help="Of a run: list rollouts of this step.")
    ] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Of a run: list rollouts that failed.")
    ] = False,
) -> None:
    """Show what a run did, or one rollout turn by turn."""
    from tutelage.cli.console import output

    console = output()
    folder = None if run is not None else _as_run(name)
    if folder is None:
        _show_one(console, name, run, tokens, content)
    elif rollouts is not None or step is not None or failed:
        _show_list(console, folder, rollouts, step, failed)
    else:
        _show_run(console, folder)


def _as_run(name: str) -> RunFolder | None:
    from tutelage.runs.folder import find

    try:
        return find(name)
    except RunError as error:
        if "several" in str(error) or not name.startswith(ROLLOUT_PREFIX):
            raise
        return None


def _show_one(console: Console, prefix: str, run: str | None, tokens: bool, content: bool) -> None:
    from tutelage.cli.console import say
    from tutelage.cli.rollout_view import show_head, show_rollout, show_training
    from tutelage.cli.spans_view import show_trace
    from tutelage.cli.stores import find_rollout, open_run
    from tutelage.runs.folder import RUNS, every, find

    folders = every() if run is None else [find(run)]
    rollout, holders = find_rollout(prefix, folders, RUNS if run is None else folders[0].path)
    show_head(console, rollout)
    show_rollout(console, rollout, tokens=tokens)
    with open_run(holders[0]) as (store, run_id):
        recorded = store.spans(run_id, rollout.id)
        trained = store.training_rows(run_id, rollout_id=rollout.id)
    show_training(console, trained, tokens=tokens)
    show_trace(console, rollout, recorded, content=content)
    if len(holders) > 1:
        others = ", ".join(folder.name for folder in holders[1:])
        say(
            console, (f"\nOther runs of this seed have it too: {others}. Choose with --run.", "dim")
        )


def _show_list(
    console: Console, folder: RunFolder, limit: int | None, step: int | None, failed: bool
) -> None:
    from tutelage.cli.console import say
    from tutelage.cli.stores import open_run
    from tutelage.types import RolloutStatus

    status = RolloutStatus.FAILED if failed else None
    with open_run(folder) as (store, run_id):
        chosen = store.rollouts(run_id, step=step, status=status, limit=limit or 20)
        _rollout_lines(console, chosen)
        count = store.count(run_id, step=step, status=status)
    say(console, (f"{count} rollouts match", "dim"))


def _show_run(console: Console, folder: RunFolder) -> None:
    from tutelage.cli.console import say
    from tutelage.cli.orchestrate_run import is_orchestration
    from tutelage.cli.planner import show_planner_run
    from tutelage.orchestration.setup import is_planner_run
    from tutelage.prompts.record import is_prompt_run

    if is_orchestration(folder):
        _show_execution(console, folder)
        return
    if is_planner_run(folder):
        show_planner_run(console, folder)
        return
    if is_prompt_run(folder):
        _show_prompt_run(console, folder)
        return
    from tutelage.cli.outcome import show_outcome
    from tutelage.cli.stores import open_run

    result = folder.read_result()
    say(console, ("Run ", "bold"), (folder.name, "bold"))
    _show_config(console, folder)
    _show_phases(console, folder.read_metrics())
    say(console)
    if result is None:
        from tutelage.cli.runs import is_held

        state = "It is running now." if is_held(folder) else "It was stopped; go on with: "
        say(console, state, "" if is_held(folder) else f"tutelage resume {folder.path}")
    else:
        show_outcome(console, folder, result)
    if folder.store_address() is not None:
        with open_run(folder) as (store, run_id):
            _show_causes(console, store, run_id)
            _show_samples(console, folder, list(_samples(store, run_id, _last_tick(folder))))


def _show_execution(console: Console, folder: RunFolder) -> None:
    """The execution of a plan, with its trace; how to go on when it was stopped."""
    from tutelage.cli.console import say
    from tutelage.cli.runs import is_held
    from tutelage.cli.stores import open_run

    result = folder.read_result()
    say(console, ("Execution ", "bold"), (folder.name, "bold"))
    if result is None:
        state = "It is running now." if is_held(folder) else "It was stopped; go on with: "
        say(console, state, "" if is_held(folder) else f"tutelage resume {folder.path}")
        return
    with open_run(folder) as (store, run_id):
        for rollout in store.rollouts(run_id):
            _show_one(console, rollout.id, str(folder.path), tokens=False, content=False)


def _show_prompt_run(console: Console, folder: RunFolder) -> None:
    """A prompt search: its outcome where it has one, else how far it is."""
    from tutelage.cli.console import facts, number, say
    from tutelage.cli.prompt_view import show_prompt_next, show_prompt_outcome
    from tutelage.cli.runs import is_held
    from tutelage.cli.stores import open_run

    result = folder.read_result()
    say(console, ("Prompt search ", "bold"), (folder.name, "bold"))
    if result is not None:
        show_prompt_outcome(console, folder, result)
    else:
        rounds = folder.read_metrics()
        facts(console, [("rounds", number(len(rounds)))], indent=2)
        state = "It is running now." if is_held(folder) else "It was stopped; go on with: "
        say(console, state, "" if is_held(folder) else f"tutelage resume {folder.path}")
    if folder.store_address() is not None:
        with open_run(folder) as (store, run_id):
            _show_causes(console, store, run_id)
            _show_samples(console, folder, _of_each_mode(store, run_id))
    if result is not None:
        show_prompt_next(console, folder)


def _of_each_mode(store: Store, run_id: str) -> list[Rollout]:
    from tutelage.types import Mode

    return [r for mode in Mode for r in store.rollouts(run_id, mode=mode, limit=_EACH)]


def _show_config(console: Console, folder: RunFolder) -> None:
    """The keys that someone set, with who did."""
    from tutelage.cli.console import facts, say
    from tutelage.config import Resolved

    try:
        resolved = Resolved.from_json(folder.config.read_text(encoding="utf-8"))
    except ConfigError as error:
        say(console, (f"  the configuration cannot be read: {error}", "yellow"))
        return
    config = resolved.config
    rule = config.algorithm.adv_estimator if config.algorithm.name == "rl" else "sft"
    own = ("default", "preset", "train ", "derived")
    given = [row for row in resolved.to_table() if not row.origin.startswith(own)]
    pairs = [("recipe", f"{config.recipe}, {rule}, seed {config.seed}")]
    facts(console, [*pairs, *(("set", f"{row.key}={row.value}") for row in given)], indent=2)


def _show_phases(console: Console, lines: list[dict[str, Any]]) -> None:
    """One row a phase: its steps, and where its metrics began and ended."""
    from tutelage.cli.console import plain_table

    if not lines:
        return
    names = ("steps", *_METRICS)
    table = plain_table("phase", *names, right=names)
    for phase, group in itertools.groupby(lines, key=lambda line: str(line.get("phase", ""))):
        rows = list(group)
        table.add_row(phase, str(len(rows)), *(_course(rows, keys) for keys in _METRICS.values()))
    console.print()
    console.print(table)


def _course(rows: list[dict[str, Any]], keys: tuple[str, ...]) -> str:
    """`0.31 -> 0.94`, or the largest value of a metric that should be small."""
    from tutelage.cli.console import number

    found = (row[key] for row in rows for key in keys if key in row)
    values = [float(value) for value in found if isinstance(value, (int, float))]
    if not values:
        return ""
    if keys[0].startswith("max_"):
        return number(max(values))
    return f"{number(values[0])} -> {number(values[-1])}"


def _show_causes(console: Console, store: Store, run_id: str) -> None:
    """How many rollouts there are, and why some failed."""
    from tutelage.cli.console import facts, number
    from tutelage.types import RolloutStatus

    failed = store.failures(run_id, status=RolloutStatus.FAILED)
    told = ", ".join(f"{number(f.number)} {f.cause}" for f in failed) or "none"
    facts(console, [("stored", f"{number(store.count(run_id))} rollouts"), ("failed", told)])


def _last_tick(folder: RunFolder) -> int | None:
    """Under which step the store has the rollouts of the last rewarded step."""
    ticks = [line.get("tick") for line in folder.read_metrics() if line.get("phase") == "rl"]
    return ticks[-1] if ticks else None


def _show_samples(console: Console, folder: RunFolder, found: list[Rollout]) -> None:
    from tutelage.cli.console import say, shown_path

    if not found:
        return
    path = shown_path(folder.path)
    say(console, ("\nA few rollouts", "bold"))
    _rollout_lines(console, found)
    say(console, ("\nOne turn by turn:", "bold"), f" tutelage show {found[-1].id} --run {path}")
    say(console, ("More:", "bold"), f" tutelage show {path} --rollouts 50 [--step N] [--failed]")


def _samples(store: Store, run_id: str, last: int | None) -> Iterator[Rollout]:
    """Some of each evaluation, of the first and of the last training step, and a failed one."""
    from tutelage.types import Mode, RolloutStatus

    for label in _LABELS[:2]:
        yield from store.rollouts(run_id, label=label, limit=_EACH)
    yield from store.rollouts(run_id, mode=Mode.TRAIN, label="", limit=_EACH)
    if last is not None:
        yield from store.rollouts(run_id, mode=Mode.TRAIN, label="", step=last, limit=_EACH)
    for label in _LABELS[2:]:
        yield from store.rollouts(run_id, label=label, limit=_EACH)
    yield from store.rollouts(run_id, status=RolloutStatus.FAILED, limit=1)


def _rollout_lines(console: Console, rollouts: Iterator[Rollout] | list[Rollout]) -> None:
    from tutelage.cli.console import number, one_line, say, visible

    seen: set[str] = set()
    for rollout in rollouts:
        if rollout.id in seen:
            continue
        seen.add(rollout.id)
        last, reward = rollout.last, rollout.reward
        end = last.failure.cause.value if last.failure is not None else last.stop or ""
        grade = "" if reward is None else f"reward {number(reward.value)}"
        name = rollout.label or rollout.mode.value
        told = f"  {grade:<9} {visible(end):<12} step {rollout.step} {visible(name)}"
        say(console, (_short(rollout.id), "bold"), told.rstrip())
        room = max(20, console.width - 4)
        answer = one_line("nothing" if last.answer is None else last.answer, room // 3)
        question = one_line(_question(rollout), room - len(answer) - 4)
        say(console, (f"    {question} -> {answer}", "dim"))


def _question(rollout: Rollout) -> str:
    given: Any = rollout.task.fields.get("question", rollout.task.id)
    return str(given)


def _short(rollout_id: str) -> str:
    """Enough of an id to find it again: ids hold 24 hexadecimal digits after their prefix."""
    return rollout_id[:14]
