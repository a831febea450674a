"""One rollout, turn by turn, as text: what the model was sent, said, called and was answered.

`show`, `ask` and the dry run all show a rollout through this module. Arguments of a tool call and
texts stand as they were written; the observations are those that the next call really held, so an
edited or cut-off history shows as it was.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from tutelage.cli.console import facts, number, say, visible
from tutelage.errors import counted
from tutelage.resources import POLICY
from tutelage.statistics.outcome import cause_words
from tutelage.store import TrainingRow
from tutelage.tools.loading import user_traceback
from tutelage.types import Attempt, Call, Message, Reward, Rollout, ToolResult

_INDENT = 2
_TOKENS_SHOWN = 400


def show_head(console: Console, rollout: Rollout) -> None:
    """Which rollout it is, and its result."""
    last = rollout.last
    place = f"step {rollout.step}, group {rollout.group}, number {rollout.index}"
    pairs = [
        ("run", rollout.run_id),
        ("task", rollout.task.id),
        ("mode", f"{rollout.mode.value} {rollout.label}".strip()),
        ("place", place),
        (
            "status",
            last.status.value + (f", {cause_words(last.failure.cause)}" if last.failure else ""),
        ),
        ("reward", reward_words(rollout.reward)),
    ]
    if (answer := rollout.task.fields.get("answer")) is not None:
        pairs.append(("wanted", str(answer)))
    say(console, ("Rollout ", "bold"), (visible(rollout.id), "bold"))
    facts(console, pairs, indent=_INDENT)


def show_rollout(
    console: Console, rollout: Rollout, *, tokens: bool = False, graded: bool = True
) -> None:
    """All attempts; of those before the last one only how they failed.

    `graded` shows the reward.
    """
    for attempt in rollout.attempts[:-1]:
        say(console, (f"\nattempt {attempt.index}: {attempt.status.value}", "bold"))
        _show_failure(console, attempt)
    _show_attempt(console, rollout.last, tokens, graded)


def show_training(console: Console, rows: Sequence[TrainingRow], *, tokens: bool = False) -> None:
    """What training made of a rollout; nothing where it was not trained on."""
    for row in rows:
        policy = "" if row.policy == POLICY else f", policy {visible(row.policy)}"
        credit = "" if row.advantages is None else " on average"
        message = f"{number(row.advantage)}{credit} ({row.tokens} trained tokens{policy})"
        facts(console, [("advantage", message)])
        if tokens and row.logprobs is not None:
            logprobs, entropies = row.numbers("logprobs") or (), row.numbers("entropies") or ()
            mean, entropy = sum(logprobs) / len(logprobs), sum(entropies) / len(entropies)
            text = f"trainer: logprob mean {mean:.4f}, lowest {min(logprobs):.4f}"
            text += f"; entropy mean {entropy:.4f}"
            if (weights := row.numbers("importance_weights")) is not None:
                text += f"; importance weight {min(weights):.3f} to {max(weights):.3f}"
            _block(console, text, "dim")


def reward_words(reward: Reward | None) -> str:
    """`1 (exact 1, format 0.1)`."""
    if reward is None:
        return "none"
    parts = ", ".join(f"{name} {number(value)}" for name, value in reward.parts.items())
    return number(reward.value) + (f" ({parts})" if parts else "")


def _show_attempt(console: Console, attempt: Attempt, tokens: bool, graded: bool) -> None:
    results = {result.call_id: result for result in attempt.tool_results}
    lines: set[str] = set()
    names: dict[str, str] = {}
    known: dict[str, list[tuple[Message, ...]]] = {}
    for turn, call in enumerate(attempt.calls, 1):
        told = known.setdefault(call.agent, [])
        begun = [past for past in told if call.messages[: len(past)] == past]
        new = call.messages[len(max(begun, key=len, default=())) :]
        if told and not begun:
            edited = any(message.role in ("assistant", "tool") for message in new)
            why = "the history was rewritten" if edited else "another conversation begins"
            say(console, (f"\n{why}; the call was sent:", "yellow"))
        names |= {c.id: c.name for m in (*new, call.reply) for c in m.tool_calls}
        for message in new:
            if message.role != "tool":
                observed = attempt.info is not None and turn > 1
                say(console, (f"\n{'observation' if observed else visible(message.role)}", "bold"))
                _block(console, message.content or "")
                _show_calls(console, message)
                continue
            called = message.tool_call_id or ""
            lines.add(called)
            _show_result(console, message.content or "", results.get(called), names.get(called, ""))
        _show_call(console, turn, call, tokens)
        told.append((*call.messages, call.reply))
    # What came after the last call was sent to nobody.
    for result in attempt.tool_results:
        if result.call_id not in lines:
            _show_result(console, result.text, result)
    say(console)
    text, name = attempt.final_text, "last reply" if attempt.answer is None else "answer"
    ends = [("answer", "none") if text is None else (name, text)]
    ends += [("reward", reward_words(attempt.reward))] * graded
    ends += [("info", json.dumps(attempt.info, ensure_ascii=False))] * bool(attempt.info)
    ends += [("end", f"{attempt.stop or attempt.status.value}, after {attempt.seconds:.2f} s")]
    facts(console, ends)
    _show_failure(console, attempt)


def _show_call(console: Console, turn: int, call: Call, tokens: bool) -> None:
    sampled = call.sampled
    agent = "" if call.agent == "main" else f", {visible(call.agent)}"
    count = f"{counted(len(sampled.token_ids), 'token')}, " if sampled.token_ids else ""
    earned = "" if call.reward is None else f", reward {number(call.reward)}"
    message = f"  {count}{sampled.stop_reason.value}{agent}{earned}"
    say(console, (f"\nturn {turn}", "bold cyan"), (message, "dim"))
    if call.reply.content:
        _block(console, call.reply.content)
    _show_calls(console, call.reply)
    for reason in call.parse_errors:
        _block(console, f"unreadable: {reason}", "red")
    if not (call.reply.content or call.reply.tool_calls or call.parse_errors):
        _block(console, "(nothing)", "dim")
    if tokens:
        _show_tokens(console, call)


def _show_calls(console: Console, message: Message) -> None:
    for made in message.tool_calls:
        _block(console, f"calls {made.name} {made.arguments}", "cyan")


def _show_result(console: Console, text: str, result: ToolResult | None, called: str = "") -> None:
    name = called if result is None else result.name
    name += " " if name else ""
    error = None if result is None else result.error
    message = f"-> {name}{'failed, ' + error + ': ' if error else 'gives '}{text}"
    _block(console, message, "red" if error else "green")


def _show_tokens(console: Console, call: Call) -> None:
    """How sure the model was, and each sampled id with its log-probability."""
    sampled = call.sampled
    logprobs, total = sampled.logprobs, sum(sampled.logprobs)
    message = f"{len(call.prompt_ids)} prompt tokens; policy version {sampled.policy_version}; "
    message += f"temperature {number(call.sampling.temperature)}"
    if logprobs:
        mean = total / len(logprobs)
        message += f"; logprob mean {mean:.4f}, lowest {min(logprobs):.4f}, sum {total:.4f}"
    _block(console, message, "dim")
    pairs = zip(sampled.token_ids[:_TOKENS_SHOWN], logprobs, strict=False)
    _block(console, " ".join(f"{token}:{logprob:.3f}" for token, logprob in pairs), "dim")
    if len(sampled.token_ids) > _TOKENS_SHOWN:
        more = len(sampled.token_ids) - _TOKENS_SHOWN
        _block(console, f"and {more} more; all are in: tutelage export RUN --format jsonl", "dim")


def _show_failure(console: Console, attempt: Attempt) -> None:
    failure = attempt.failure
    if failure is None:
        return
    say(console, (f"failed, {cause_words(failure.cause)}: ", "bold red"), visible(failure.message))
    if failure.traceback:
        _block(console, user_traceback(failure.traceback).rstrip(), "dim")


def _block(console: Console, text: str, style: str = "") -> None:
    """Indented text; on a terminal it wraps inside its indent, elsewhere its lines stay whole."""
    shown = visible(text)
    if console.is_terminal:
        console.print(Padding(Text(shown, style=style), (0, 0, 0, _INDENT)))
        return
    for line in shown.split("\n"):
        say(console, " " * _INDENT, (line, style))
