"""Rollouts on the terminal as parts of a page: one whole, a few on a line each, counts of causes.

`show.py` lists with it, the views of runs end with it; `rollout_view.py` shows the turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from tutelage.runs.folder import RunFolder
    from tutelage.store import Store
    from tutelage.types import Rollout


def show_one(console: Console, prefix: str, run: str | None, tokens: bool, content: bool) -> None:
    from tutelage.cli.console import say
    from tutelage.cli.rollout_view import show_head, show_rollout, show_training
    from tutelage.cli.spans_view import show_trace
    from tutelage.cli.stores import find_rollout
    from tutelage.runs.folder import RUNS, every, find
    from tutelage.runs.stored import open_run

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


def show_stored(
    console: Console, folder: RunFolder, samples: Callable[[Store, str], Iterable[Rollout]]
) -> None:
    """How many rollouts a run has stored, why some failed, and a few of them, where it has any."""
    from tutelage.cli.console import counted, facts, number, say, shown_path
    from tutelage.runs.stored import open_run
    from tutelage.types import RolloutStatus

    if folder.store_address() is None:
        return
    with open_run(folder) as (store, run_id):
        failed = store.failures(run_id, status=RolloutStatus.FAILED)
        told = ", ".join(f"{number(f.number)} {f.cause}" for f in failed) or "none"
        facts(console, [("stored", counted(store.count(run_id), "rollout")), ("failed", told)])
        found = list(samples(store, run_id))
    if not found:
        return
    path = shown_path(folder.path)
    say(console, ("\nA few rollouts", "bold"))
    rollout_lines(console, found)
    say(console, ("\nOne turn by turn:", "bold"), f" tutelage show {found[-1].id} --run {path}")
    say(console, ("More:", "bold"), f" tutelage show {path} --rollouts 50 [--step N] [--failed]")


def rollout_lines(console: Console, rollouts: Iterable[Rollout]) -> None:
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
    fields = rollout.task.fields
    given: Any = fields.get("question", fields.get("instruction", rollout.task.id))
    return str(given)


def _short(rollout_id: str) -> str:
    """Enough of an id to find it again: ids hold 24 hexadecimal digits after their prefix."""
    return rollout_id[:14]
