"""Rollouts on the terminal as parts of a page: one whole, a few on a line each, counts of causes.

`show.py` lists with it, the views of runs end with it; `rollout_view.py` shows the turns.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tutelage.cli.console import number, one_line, say, visible
from tutelage.errors import RunError, StoreError
from tutelage.tracing import SpanRecord, names, rollout_trees
from tutelage.tracing.tree import SpanNode
from tutelage.types import Rollout

if TYPE_CHECKING:
    from rich.console import Console

    from tutelage.runs.folder import RunFolder
    from tutelage.store import Store
    from tutelage.types import Rollout


def show_one(console: Console, prefix: str, run: str | None, tokens: bool, content: bool) -> None:
    from tutelage.cli.console import say, shown_path
    from tutelage.cli.rollout_view import show_head, show_rollout, show_training
    from tutelage.runs.folder import RUNS, find
    from tutelage.runs.stored import known_runs, open_run

    folders = known_runs() if run is None else [find(run)]
    # The whole id ends with the name of its run; else the runs below `runs/` come first.
    named = [folder for folder in folders if prefix.endswith(f"_{folder.name}")]
    here = [folder for folder in folders if folder.path.parent == RUNS]
    rollout, holders = _find_rollout(prefix, [named, here, folders])
    show_head(console, rollout)
    show_rollout(console, rollout, tokens=tokens)
    with open_run(holders[0]) as (store, run_id):
        recorded = store.spans(run_id, rollout.id)
        trained = store.training_rows(run_id, rollout_id=rollout.id)
    show_training(console, trained, tokens=tokens)
    tree = rollout_trees(rollout, recorded, content=content)[-1]  # of the last attempt
    say(console, ("\nTrace ", "bold"), (tree.span.trace_id, "dim"))
    _show(console, tree, "", "", tree.span.start_ns, content)
    if len(holders) > 1:
        others = ", ".join(shown_path(folder.path) for folder in holders[1:])
        message = f"\nOther runs have a rollout whose id begins so: {others}. Choose with --run."
        say(console, (message, "dim"))
    command = f"tutelage show {rollout.id} --run {shlex.quote(shown_path(holders[0].path))}"
    say(console, ("\nThis rollout:", "bold"), f" {command}")


def show_stored(
    console: Console, folder: RunFolder, samples: Callable[[Store, str], Iterable[Rollout]]
) -> None:
    """How many rollouts a run has stored, why some failed, and a few of them, where it has any."""
    from tutelage.cli.console import facts, number, say, shown_path
    from tutelage.errors import counted
    from tutelage.runs.stored import open_run
    from tutelage.statistics.outcome import cause_words
    from tutelage.types import RolloutStatus

    if folder.store_address() is None:
        return
    with open_run(folder) as (store, run_id):
        failed = store.failures(run_id, status=RolloutStatus.FAILED)
        message = (
            ", ".join(f"{number(f.number)} {cause_words(str(f.cause))}" for f in failed) or "none"
        )
        say(console)
        facts(console, [("stored", counted(store.count(run_id), "rollout")), ("failed", message)])
        rollouts = list(samples(store, run_id))
    if not rollouts:
        return
    path = shown_path(folder.path)
    say(console, ("\nA few rollouts", "bold"))
    rollout_lines(console, rollouts)
    say(console, ("\nOne turn by turn:", "bold"), f" tutelage show {rollouts[-1].id} --run {path}")
    say(console, ("More:", "bold"), f" tutelage show {path} --rollouts 50 [--step N] [--failed]")


def rollout_lines(console: Console, rollouts: Iterable[Rollout]) -> None:
    from tutelage.cli.console import number, one_line, say, visible
    from tutelage.statistics.outcome import cause_words

    for rollout in {rollout.id: rollout for rollout in rollouts}.values():
        last, reward = rollout.last, rollout.reward
        end = cause_words(last.failure.cause) if last.failure is not None else last.stop or ""
        grade = "" if reward is None else f"reward {number(reward.value)}"
        message = f"  {grade:<9} {visible(end):<13} step {rollout.step} "
        name = rollout.label or rollout.mode.value
        message += one_line(name, max(10, console.width - 14 - len(message)))
        # Enough of an id to find it again: ids hold 24 hexadecimal digits after their prefix.
        say(console, (rollout.id[:14], "bold"), message.rstrip())
        room, text = max(20, console.width - 4), last.final_text
        answer = one_line("none" if text is None else text, room // 3)
        question = one_line(rollout.task.title, room - len(answer) - 4)
        say(console, (f"    {question} -> {answer}", "dim"))
        if last.failure is not None:
            say(console, (f"    {one_line(last.failure.message, 300)}", "dim"))


def _find_rollout(
    prefix: str, places: Sequence[Sequence[RunFolder]]
) -> tuple[Rollout, list[RunFolder]]:
    """The rollout whose id begins with `prefix`, and the folders with such a one, newest first, of
    the first of `places` that has any.

    Raises `StoreError` when several rollouts of one run do, `RunError` when none does.
    """
    from tutelage.runs.stored import open_run

    for folders in places:
        pairs: list[tuple[Rollout, RunFolder]] = []
        for folder in folders:
            if folder.store_address() is None:
                continue
            with open_run(folder) as (store, run_id):
                try:
                    pairs.append((store.find_rollout(prefix, run_id), folder))
                except StoreError as error:
                    if len(folders) == 1 or "matches several" in str(error):
                        raise
        if pairs:
            return pairs[0][0], [folder for _, folder in pairs]
    looked = ", ".join(folder.name for folder in places[-1][:5]) or "no runs"
    raise RunError(
        f"no rollout ID starts with {prefix!r} in the runs found here ({looked}); pass its run "
        "with --run FOLDER"
    )


# ---------------------------------------------------------------- the trace

_INDENT = 2
_NAMED = frozenset({names.OPERATION, names.PROVIDER, names.AGENT, names.TOOL, names.REQUEST_MODEL,
                    names.RESPONSE_MODEL, names.INPUT_TOKENS, names.OUTPUT_TOKENS, names.ROLLOUT_ID,
                    names.ATTEMPT_ID, names.ERROR_TYPE})  # fmt: skip
"""Attributes that a line tells already."""


def _show(
    console: Console, node: SpanNode, lead: str, below: str, origin: int, content: bool
) -> None:
    span = node.span
    style = "red" if span.status == "error" else ""
    say(console, " " * _INDENT + lead, (visible(span.name), style), (_facts(span, origin), "dim"))
    inner = below + ("│ " if node.children else "  ")
    for event in span.events:
        if (message := _event(event.name, event.attributes)) is not None:
            say(console, " " * _INDENT + inner, (message, "cyan"))
    if content:
        room = max(40, console.width - _INDENT - len(inner) - 4)
        for name, value in span.attributes.items():
            if name not in _NAMED:
                message = one_line(f"{name} = {value}", room)
                say(console, " " * _INDENT + inner, (message, "dim"))
    for child in node.children:
        branch, deeper = ("└ ", "  ") if child is node.children[-1] else ("├ ", "│ ")
        _show(console, child, below + branch, below + deeper, origin, content)


def _facts(span: SpanRecord, origin: int) -> str:
    """`  +0.12 s, 0.30 s, 21 -> 9 tokens, stop, failed: timeout`."""
    facts: list[str] = []
    if span.start_ns or span.end_ns:
        offset = (span.start_ns - origin) / 1e9
        facts += [f"+{offset:.3f} s"] * (offset > 0) + [f"{span.seconds:.3f} s"]
    attributes = span.attributes
    sent, sampled = attributes.get(names.INPUT_TOKENS), attributes.get(names.OUTPUT_TOKENS)
    if attributes.get(names.OPERATION) == names.CHAT and sent is not None:
        facts.append(f"{sent} -> {sampled} tokens")
    reasons: Any = attributes.get(names.FINISH_REASONS)
    if isinstance(reasons, (list, tuple)):
        facts += [str(reason) for reason in reasons]
    if span.status == "error":
        facts.append(f"failed: {one_line(attributes.get(names.ERROR_TYPE, 'error'), 40)}")
    message = ", ".join(visible(fact) for fact in facts)
    return f"  {message}" if message else ""


def _event(name: str, attributes: Any) -> str | None:
    """A score as `reward = 1`, an exception as its type; other events by their name."""
    if name == names.EVALUATION:
        value = attributes.get(names.SCORE)
        message = number(float(value)) if isinstance(value, (int, float)) else str(value)
        label = attributes.get(names.SCORE_LABEL)
        words = f"{attributes.get(names.EVALUATION_NAME, 'score')} = {message}"
        return visible(words + (f" ({label})" if label else ""))
    if name == names.EXCEPTION:
        kind = attributes.get(names.EXCEPTION_TYPE, "exception")
        return one_line(f"{kind}: {attributes.get(names.EXCEPTION_MESSAGE, '')}", 100)
    if name == names.DECISION:
        if names.RESPONSE_ID in attributes:
            return None  # the call stands below
        who, why = (attributes.get(n, "") for n in (names.REQUEST_MODEL, names.ERROR_TYPE))
        return one_line(" ".join(f"{attributes.get(names.ACTION)} {who} {why}".split()), 100)
    return one_line(name, 100)
