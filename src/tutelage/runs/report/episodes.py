"""A rollout as something to read: turns with their calls, results and texts, and how it ended.

Episodes keep no token ids, so that thousands fit in memory, and their texts are cut to what a page
can hold. What the agent observed is taken from the messages of its next call, since that is what
the model saw; the store's tool results add how a call failed. `pick.py` compares episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tutelage.errors import RewardError
from tutelage.runs.report.words import cut
from tutelage.statistics.outcome import UNSEEN, Kind, Success, succeeded
from tutelage.types import Attempt, Call, FailureCause, Message, Rollout, RolloutStatus, ToolResult

_TEXT_LIMIT = 1200
"""Characters of one text that an episode keeps."""
_TURN_LIMIT = 12
"""Turns that an episode keeps; the last one is always kept."""

CAUSES: Mapping[FailureCause, str] = {
    FailureCause.TIMEOUT: "stopped at the time limit",
    FailureCause.AGENT_ERROR: "the agent raised",
    FailureCause.TOOL_ERROR: "a tool broke",
    FailureCause.REWARD_ERROR: "the reward could not be computed",
    FailureCause.ANSWER_ERROR: "the grader raised on the answer, which counts as wrong",
    FailureCause.GRADER_ERROR: "the grader could not run",
    FailureCause.REWARD_TIMEOUT: "the reward had not answered in time",
    FailureCause.ENGINE_ERROR: "the engine failed",
    FailureCause.CONTEXT_OVERFLOW: "the context overflowed",
    FailureCause.CANCELLED: "cancelled",
}
_STOPS: Mapping[str, str] = {
    "max_turns": "no answer: turn limit",
    "token_budget": "no answer: token limit",
    "context": "no answer: context full",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One line of an episode: `kind` is call, result, error, note or text."""

    kind: str
    text: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Episode:
    """One rollout, to be read. `outcome` is one of a few words that can be counted."""

    rollout_id: str
    task_id: str
    question: str
    expected: str
    family: str
    solved: bool | None
    """None where a graded reward does not say what a success is."""
    reward: float | None
    outcome: str
    detail: str
    steps: tuple[Step, ...]
    turns: int
    tokens: int
    tool_calls: int


@dataclass(frozen=True, slots=True)
class Reading:
    """How the rewards of a run are read: what the user says is a success, and of what kind they
    are."""

    rule: Success | None = None
    kind: Kind = UNSEEN

    def solved(self, rollout: Rollout) -> bool | None:
        """Whether it succeeded; None where that is not defined."""
        try:
            return succeeded(rollout, self.rule) if self.kind.has_success else None
        except RewardError:
            return None


PLAIN = Reading()


def read_episode(rollout: Rollout, reading: Reading = PLAIN) -> Episode:
    """The readable part of a rollout's last attempt."""
    last, fields = rollout.last, rollout.task.fields
    reward = None if last.reward is None else last.reward.value
    return Episode(
        rollout_id=rollout.id,
        task_id=rollout.task.id,
        question=cut(_question(rollout), _TEXT_LIMIT),
        expected=cut(str(fields["answer"]), _TEXT_LIMIT // 4) if "answer" in fields else "",
        family=cut(str(fields["family"]), 40) if "family" in fields else "",
        solved=reading.solved(rollout),
        reward=reward,
        outcome=_outcome_of(rollout, reading),
        detail="" if last.failure is None else cut(last.failure.message, _TEXT_LIMIT // 4),
        steps=_steps(last),
        turns=len(last.calls),
        tokens=sum(len(call.sampled.token_ids) for call in last.calls),
        tool_calls=len(last.tool_results),
    )


def _outcome_of(rollout: Rollout, reading: Reading = PLAIN) -> str:
    """How a rollout ended, in a few words; `solved` is the only good one, `graded` is where a
    graded reward has no success."""
    attempt = rollout.last
    if attempt.failure is not None:
        return f"failed: {CAUSES[attempt.failure.cause]}"
    if attempt.status is not RolloutStatus.SUCCEEDED:
        return f"not ended: {attempt.status}"
    if attempt.reward is None:
        return "no reward"
    solved = reading.solved(rollout)
    if solved:
        return "solved"
    if (stopped := _STOPS.get(attempt.stop or "")) is not None:
        return stopped
    if solved is None:
        return "graded"
    return "partly right" if attempt.reward.value > 0 else "wrong answer"


def _question(rollout: Rollout) -> str:
    try:
        given = rollout.task.input
    except KeyError:
        return rollout.task.id
    if isinstance(given, str):
        return given
    return "\n".join(_content(m) for m in given if m.get("role") != "system")


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else str(content or "")


def _steps(attempt: Attempt) -> tuple[Step, ...]:
    calls = attempt.calls
    results = {result.call_id: result for result in attempt.tool_results}
    shown = range(len(calls))
    if len(calls) > _TURN_LIMIT:
        shown = [*range(_TURN_LIMIT - 1), len(calls) - 1]
    steps: list[Step] = []
    for position in shown:
        if position == len(calls) - 1 and len(calls) > _TURN_LIMIT:
            steps.append(Step("note", f"{len(calls) - _TURN_LIMIT} turns left out"))
        call = calls[position]
        steps += _said(call)
        observed = _observed(call, calls[position + 1 :])
        if observed is None:
            observed = [
                Message("tool", results[c.id].text, tool_call_id=c.id, name=c.name)
                for c in call.reply.tool_calls
                if c.id in results
            ]
        steps += [_observation(message, results) for message in observed]
    return tuple(steps)


def _said(call: Call) -> list[Step]:
    """What the model wrote in one turn; a turn that is cut off or empty says so."""
    steps: list[Step] = []
    if call.reply.content:
        steps.append(Step("text", cut(call.reply.content, _TEXT_LIMIT)))
    steps += [
        Step("call", cut(c.arguments, _TEXT_LIMIT // 2), cut(c.name, 60))
        for c in call.reply.tool_calls
    ]
    if not steps:
        steps.append(Step("note", "an empty turn"))
    if call.sampled.stop_reason == "length":
        steps.append(Step("note", "cut off at the token limit"))
    return steps


def _observed(call: Call, later: Sequence[Call]) -> list[Message] | None:
    """The messages that the agent's next call adds to this one; None when there is no such call."""
    known = len(call.messages) + 1
    following = next((c for c in later if c.agent == call.agent), None)
    if following is None or following.messages[: known - 1] != call.messages:
        return None
    return [m for m in following.messages[known:] if m.role != "assistant"]


def _observation(message: Message, results: Mapping[str, ToolResult]) -> Step:
    result = results.get(message.tool_call_id or "")
    failed = message.name == "unreadable" or (result is not None and result.error is not None)
    text = cut(message.content or "", _TEXT_LIMIT)
    return Step("error" if failed else "result", text, cut(message.name or message.role, 60))
