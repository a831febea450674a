"""Rollouts on the terminal: one turn by turn with its trace, or several as two lines each.

`show`, `ask` and dry runs show rollouts through this module. Tool arguments and texts are printed
unchanged; observations are those that the next call contained, so that an edited or truncated
history is visible.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from tutelage.cli.console import echo, echo_pairs, echo_text, escape, format_path, number, shorten
from tutelage.errors import RunError, StoreError, pluralize
from tutelage.resources import POLICY
from tutelage.runs.folder import RunFolder, find, list_runs
from tutelage.runs.stored import open_run
from tutelage.statistics.outcome import format_cause
from tutelage.store import TrainingRow
from tutelage.tools.loading import user_traceback
from tutelage.tracing import names, rollout_trees
from tutelage.tracing.tree import SpanNode
from tutelage.types import Attempt, Call, Message, Mode, Reward, Rollout, RolloutStatus, ToolResult

_INDENT = 2
_PER_MODE = 3
"""Maximum number of rollouts shown per mode."""
_TOKENS_SHOWN = 400


def show_header(console: Console, rollout: Rollout) -> None:
    """Print the identity, status and reward of a rollout."""
    last = rollout.last
    # "succeeded" would be read as a word on the answer: it says that the rollout came to its end.
    status = "finished" if last.status is RolloutStatus.SUCCEEDED else last.status.value
    cause = f", {format_cause(last.failure.cause)}" if last.failure else ""
    pairs = [
        ("run", rollout.run_id),
        ("task", rollout.task.id),
        ("mode", f"{rollout.mode.value} {rollout.label}".strip()),
        ("place", f"step {rollout.step}, group {rollout.group}, number {rollout.index}"),
        ("status", status + cause),
        ("reward", format_reward(rollout.reward)),
    ]
    if (answer := rollout.task.fields.get("answer")) is not None:
        pairs.append(("wanted", str(answer)))
    echo(console, ("Rollout ", "bold"), (escape(rollout.id), "bold"))
    echo_pairs(console, pairs, indent=_INDENT)


def show_rollout(
    console: Console, rollout: Rollout, *, tokens: bool = False, with_reward: bool = True
) -> None:
    """Print the attempts of a rollout, the earlier ones only with their failures.

    The reward is printed if `with_reward` is True.
    """
    for attempt in rollout.attempts[:-1]:
        echo(console, (f"\nattempt {attempt.index}: {attempt.status.value}", "bold"))
        _show_failure(console, attempt)
    _show_attempt(console, rollout.last, tokens, with_reward)


def show_training(console: Console, rows: Sequence[TrainingRow], *, tokens: bool = False) -> None:
    """Print advantages and statistics of the training rows of a rollout."""
    for row in rows:
        policy = "" if row.policy == POLICY else f", policy {escape(row.policy)}"
        credit = "" if row.advantages is None else " on average"
        message = f"{number(row.advantage)}{credit} ({row.tokens} trained tokens{policy})"
        echo_pairs(console, [("advantage", message)])
        if tokens and row.logprobs is not None:
            logprobs, entropies = row.values("logprobs") or (), row.values("entropies") or ()
            mean, entropy = sum(logprobs) / len(logprobs), sum(entropies) / len(entropies)
            text = f"trainer: logprob mean {mean:.4f}, lowest {min(logprobs):.4f}"
            text += f"; entropy mean {entropy:.4f}"
            if (weights := row.values("importance_weights")) is not None:
                text += f"; importance weight {min(weights):.3f} to {max(weights):.3f}"
            _print(console, text, "dim")


def format_reward(reward: Reward | None) -> str:
    """Format a reward with its parts as `1 (exact 1, format 0.1)`."""
    if reward is None:
        return "none"
    parts = ", ".join(f"{name} {number(value)}" for name, value in reward.parts.items())
    return number(reward.value) + (f" ({parts})" if parts else "")


def _show_attempt(console: Console, attempt: Attempt, tokens: bool, with_reward: bool) -> None:
    results = {result.call_id: result for result in attempt.tool_results}
    lines: set[str] = set()
    tools: dict[str, str] = {}
    histories: dict[str, list[tuple[Message, ...]]] = {}
    for turn, call in enumerate(attempt.calls, 1):
        history = histories.setdefault(call.agent, [])
        prefixes = [past for past in history if call.messages[: len(past)] == past]
        new = call.messages[len(max(prefixes, key=len, default=())) :]
        if history and not prefixes:
            edited = any(message.role in ("assistant", "tool") for message in new)
            reason = "the history was rewritten" if edited else "another conversation begins"
            echo(console, (f"\n{reason}; the call was sent:", "yellow"))
        tools |= {c.id: c.name for m in (*new, call.reply) for c in m.tool_calls}
        for message in new:
            if message.role != "tool":
                observed = attempt.info is not None and turn > 1
                echo(console, (f"\n{'observation' if observed else escape(message.role)}", "bold"))
                _print(console, message.content or "")
                _show_calls(console, message)
                continue
            key = message.tool_call_id or ""
            lines.add(key)
            _show_result(console, message.content or "", results.get(key), tools.get(key, ""))
        _show_call(console, turn, call, tokens)
        history.append((*call.messages, call.reply))
    # What came after the last call was sent to nobody.
    for result in attempt.tool_results:
        if result.call_id not in lines:
            _show_result(console, result.text, result)
    echo(console)
    text, name = attempt.final_text, "last reply" if attempt.answer is None else "answer"
    pairs = [("answer", "none") if text is None else (name, text)]
    pairs += [("reward", format_reward(attempt.reward))] * with_reward
    pairs += [("info", json.dumps(attempt.info, ensure_ascii=False))] * bool(attempt.info)
    pairs += [("end", f"{attempt.stop or attempt.status.value}, after {attempt.seconds:.2f} s")]
    echo_pairs(console, pairs)
    _show_failure(console, attempt)


def _show_call(console: Console, turn: int, call: Call, tokens: bool) -> None:
    sampled = call.sampled
    agent = "" if call.agent == "main" else f", {escape(call.agent)}"
    count = f"{pluralize(len(sampled.token_ids), 'token')}, " if sampled.token_ids else ""
    earned = "" if call.reward is None else f", reward {number(call.reward)}"
    message = f"  {count}{sampled.stop_reason.value}{agent}{earned}"
    echo(console, (f"\nturn {turn}", "bold cyan"), (message, "dim"))
    if call.reply.content:
        _print(console, call.reply.content)
    _show_calls(console, call.reply)
    for reason in call.parse_errors:
        _print(console, f"unreadable: {reason}", "red")
    if not (call.reply.content or call.reply.tool_calls or call.parse_errors):
        _print(console, "(nothing)", "dim")
    if not tokens:
        return
    logprobs, total = sampled.logprobs, sum(sampled.logprobs)
    message = f"{len(call.prompt_ids)} prompt tokens; policy version {sampled.policy_version}; "
    message += f"temperature {number(call.sampling.temperature)}"
    if logprobs:
        mean = total / len(logprobs)
        message += f"; logprob mean {mean:.4f}, lowest {min(logprobs):.4f}, sum {total:.4f}"
    _print(console, message, "dim")
    pairs = list(zip(sampled.token_ids, logprobs, strict=False))
    pairs, more = pairs[:_TOKENS_SHOWN], len(pairs) - _TOKENS_SHOWN
    _print(console, " ".join(f"{token}:{logprob:.3f}" for token, logprob in pairs), "dim")
    if more > 0:
        _print(console, f"and {more} more; all are in: tutelage export RUN --format jsonl", "dim")


def _show_calls(console: Console, message: Message) -> None:
    for call in message.tool_calls:
        _print(console, f"calls {call.name} {call.arguments}", "cyan")


def _show_result(console: Console, text: str, result: ToolResult | None, tool: str = "") -> None:
    name = tool if result is None else result.name
    name += " " if name else ""
    error = None if result is None else result.error
    message = f"-> {name}{'failed, ' + error + ': ' if error else 'gives '}{text}"
    _print(console, message, "red" if error else "green")


def _show_failure(console: Console, attempt: Attempt) -> None:
    failure = attempt.failure
    if failure is None:
        return
    echo(console, (f"failed, {format_cause(failure.cause)}: ", "bold red"), escape(failure.message))
    if failure.traceback:
        _print(console, user_traceback(failure.traceback).rstrip(), "dim")


def _print(console: Console, text: str, style: str = "") -> None:
    """Print indented text, wrapped if the console is a terminal."""
    escaped = escape(text)
    if console.is_terminal:
        console.print(Padding(Text(escaped, style=style), (0, 0, 0, _INDENT)))
        return
    for line in escaped.split("\n"):
        echo(console, " " * _INDENT, (line, style))


# ---------------------------------------------------------------- lists


def show_by_id(console: Console, prefix: str, run: str | None, tokens: bool, content: bool) -> None:
    """Print the rollout whose ID begins with `prefix`, from the given run or from any run; with
    `content`, all attributes of its spans. Raises `StoreError` if several rollouts match,
    `RunError` if no rollout matches."""
    folders = list_runs() if run is None else [find(run)]
    # The whole id ends with the name of its run.
    folders.sort(key=lambda folder: not prefix.endswith(f"_{folder.name}"))
    rollout, holder = _find_rollout(prefix, folders)
    show_header(console, rollout)
    show_rollout(console, rollout, tokens=tokens)
    with open_run(holder) as (store, run_id):
        recorded = store.spans(run_id, rollout.id)
        trained = store.training_rows(run_id, rollout_id=rollout.id)
    show_training(console, trained, tokens=tokens)
    tree = rollout_trees(rollout, recorded, content=content)[-1]  # of the last attempt
    echo(console, ("\nTrace ", "bold"), (tree.span.trace_id, "dim"))
    _show_span(console, tree, "", "", tree.span.start_ns, content)
    command = f"tutelage show {rollout.id} --run {shlex.quote(format_path(holder.path))}"
    echo(console, ("\nThis rollout:", "bold"), f" {command}")


def show_dry_run(console: Console, rollout: Rollout, note: str = "") -> None:
    """Print the rollout of a dry run. Raises `typer.Exit` if it failed."""
    show_header(console, rollout)
    show_rollout(console, rollout)
    if note:
        echo_text(console, f"\n{note}", "yellow")
    echo(console, "\nDry run: one task was played and nothing was trained or written.")
    if rollout.last.failure is not None:
        raise typer.Exit(1)


def show_stored_rollouts(console: Console, folder: RunFolder) -> None:
    """Print the number of stored rollouts, the causes of failures, and a few rollouts."""
    if folder.store_address() is None:
        return
    with open_run(folder) as (store, run_id):
        failed = store.failures(run_id, status=RolloutStatus.FAILED)
        causes = [f"{number(f.number)} {format_cause(str(f.cause))}" for f in failed] or ["none"]
        stored = pluralize(store.count(run_id), "rollout")
        echo(console)
        echo_pairs(console, [("stored", stored), ("failed", ", ".join(causes))])
        rollouts = [r for mode in Mode for r in store.rollouts(run_id, mode=mode, limit=_PER_MODE)]
        rollouts += store.rollouts(run_id, status=RolloutStatus.FAILED, limit=1)
    if not rollouts:
        return
    path = format_path(folder.path)
    echo(console, ("\nA few rollouts", "bold"))
    print_rollouts(console, rollouts)
    echo(console, ("\nOne turn by turn:", "bold"), f" tutelage show {rollouts[-1].id} --run {path}")
    echo(console, ("More:", "bold"), f" tutelage show {path} --rollouts 50 [--step N] [--failed]")


def print_rollouts(console: Console, rollouts: Iterable[Rollout]) -> None:
    """Print two lines per rollout: its status, and its question with its answer."""
    for rollout in {rollout.id: rollout for rollout in rollouts}.values():
        last, reward = rollout.last, rollout.reward
        end = format_cause(last.failure.cause) if last.failure is not None else last.stop or ""
        grade = "" if reward is None else f"reward {number(reward.value)}"
        message = f"  {grade:<9} {escape(end):<13} step {rollout.step} "
        name = rollout.label or rollout.mode.value
        message += shorten(name, max(10, console.width - 14 - len(message)))
        # Enough of an id to find it again: ids hold 24 hexadecimal digits after their prefix.
        echo(console, (rollout.id[:14], "bold"), message.rstrip())
        width, text = max(20, console.width - 4), last.final_text
        answer = shorten("none" if text is None else text, width // 3)
        question = shorten(rollout.task.title, width - len(answer) - 4)
        echo(console, (f"    {question} -> {answer}", "dim"))
        if last.failure is not None:
            echo(console, (f"    {shorten(last.failure.message, 300)}", "dim"))


def _find_rollout(prefix: str, folders: Sequence[RunFolder]) -> tuple[Rollout, RunFolder]:
    """Return the first rollout whose ID begins with `prefix`, and its run folder.

    Raises `StoreError` if several rollouts of one run match, `RunError` if no rollout matches.
    """
    for folder in folders:
        if folder.store_address() is None:
            continue
        with open_run(folder) as (store, run_id):
            try:
                return store.find_rollout(prefix, run_id), folder
            except StoreError as error:
                if len(folders) == 1 or "matches several" in str(error):
                    raise
    searched = ", ".join(folder.name for folder in folders[:5]) or "no runs"
    raise RunError(
        f"no rollout ID starts with {prefix!r} in the runs found here ({searched}); pass its run "
        "with --run FOLDER"
    )


# ---------------------------------------------------------------- the trace

_KNOWN = frozenset({names.OPERATION, names.PROVIDER, names.AGENT, names.TOOL, names.REQUEST_MODEL,
                    names.RESPONSE_MODEL, names.INPUT_TOKENS, names.OUTPUT_TOKENS, names.ROLLOUT_ID,
                    names.ATTEMPT_ID, names.ERROR_TYPE})  # fmt: skip
"""Attributes that the line of a span already shows."""


def _show_span(
    console: Console, node: SpanNode, prefix: str, indent: str, start_ns: int, content: bool
) -> None:
    """Print a span with its times, tokens, failure and events, and its child spans."""
    span, attributes, texts = node.span, node.span.attributes, list[str]()
    if span.start_ns or span.end_ns:
        offset = (span.start_ns - start_ns) / 1e9
        texts += [f"+{offset:.3f} s"] * (offset > 0) + [f"{span.seconds:.3f} s"]
    sent, sampled = attributes.get(names.INPUT_TOKENS), attributes.get(names.OUTPUT_TOKENS)
    if attributes.get(names.OPERATION) == names.CHAT and sent is not None:
        texts.append(f"{sent} -> {sampled} tokens")
    reasons: Any = attributes.get(names.FINISH_REASONS)
    if isinstance(reasons, (list, tuple)):
        texts += map(str, reasons)
    failed = span.status == "error"
    if failed:
        texts.append(f"failed: {shorten(attributes.get(names.ERROR_TYPE, 'error'), 40)}")
    title = (escape(span.name), "red" if failed else "")
    message = f"  {escape(', '.join(texts))}" if texts else ""
    echo(console, " " * _INDENT + prefix, title, (message, "dim"))
    margin = " " * _INDENT + indent + ("│ " if node.children else "  ")
    for event in span.events:
        if (message := _format_event(event.name, event.attributes)) is not None:
            echo(console, margin, (message, "cyan"))
    width = max(40, console.width - len(margin) - 4)
    for name, value in attributes.items() if content else ():
        if name not in _KNOWN:
            echo(console, margin, (shorten(f"{name} = {value}", width), "dim"))
    for child in node.children:
        branch, spaces = ("└ ", "  ") if child is node.children[-1] else ("├ ", "│ ")
        _show_span(console, child, indent + branch, indent + spaces, start_ns, content)


def _format_event(name: str, attributes: Any) -> str | None:
    """Format an event: a score as `reward = 1`, an exception with its type, others by name."""
    if name == names.EVALUATION:
        value = attributes.get(names.SCORE)
        message = number(float(value)) if isinstance(value, (int, float)) else str(value)
        label = attributes.get(names.SCORE_LABEL)
        text = f"{attributes.get(names.EVALUATION_NAME, 'score')} = {message}"
        return escape(text + (f" ({label})" if label else ""))
    if name == names.EXCEPTION:
        kind = attributes.get(names.EXCEPTION_TYPE, "exception")
        return shorten(f"{kind}: {attributes.get(names.EXCEPTION_MESSAGE, '')}", 100)
    if name == names.DECISION:
        if names.RESPONSE_ID in attributes:
            return None  # the call stands below
        model, error = (attributes.get(n, "") for n in (names.REQUEST_MODEL, names.ERROR_TYPE))
        return shorten(" ".join(f"{attributes.get(names.ACTION)} {model} {error}".split()), 100)
    return shorten(name, 100)
