"""Transcripts of rollouts: turns with their calls, results and texts, and how they ended.

Transcripts have no token ids, so that thousands fit in memory, and their texts are shortened for
the page. Observations are taken from the messages of the next call, since the model saw those; the
store's tool results add the errors of calls. Rollouts of a task are shown side by side. The
selection depends only on the order of the record, so that the same run always shows the same ones,
and includes a task that got worse and one that still fails, if there are any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tutelage.errors import RewardError
from tutelage.rewards.answers import answer_text
from tutelage.runs.report.formatting import cut
from tutelage.runs.resume_hint import format_question
from tutelage.statistics.outcome import UNSEEN, RewardKind, Success, is_success
from tutelage.types import Attempt, Call, FailureCause, Message, Rollout, RolloutStatus

_TEXT_LIMIT = 1200
"""Maximum characters of a text."""
_TURN_LIMIT = 12
"""Maximum turns of a transcript; the last one is always kept."""

CAUSES: Mapping[FailureCause, str] = {
    FailureCause.TIMEOUT: "stopped at the time limit",
    FailureCause.AGENT_ERROR: "the agent raised",
    FailureCause.TOOL_ERROR: "a tool broke",
    FailureCause.NO_CALLS: "the agent made no model call",
    FailureCause.REWARD_ERROR: "the reward could not be computed",
    FailureCause.ANSWER_ERROR: "the grader raised or gave no finite number, which counts as wrong",
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
    "truncated": "cut off by the environment",
}


@dataclass(frozen=True, slots=True)
class _Step:
    """Line of a transcript. `kind` is call, result, error, note, text, observation or reward."""

    kind: str
    text: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Transcript:
    """Readable transcript of a rollout. `outcome` is one of a fixed set of texts."""

    rollout_id: str
    task_id: str
    question: str
    asked: str | None
    """Question for `tutelage ask`, if it is short."""
    expected: str
    family: str
    solved: bool | None
    """None if a graded reward does not define success."""
    reward: float | None
    outcome: str
    detail: str
    steps: tuple[_Step, ...]
    turns: int
    tokens: int
    tool_calls: int


def read_transcript(
    rollout: Rollout, rule: Success | None = None, kind: RewardKind = UNSEEN
) -> Transcript:
    """Create the transcript of a rollout's last attempt. `rule` is the user's definition of
    success."""
    last, fields = rollout.last, rollout.task.fields
    reward = None if last.reward is None else last.reward.value
    solved = None
    if kind.has_success:
        with suppress(RewardError):
            solved = is_success(rollout, rule)
    question = rollout.task.input if rollout.task.has_input else rollout.task.title
    if not isinstance(question, str):
        texts = [m.get("content") for m in question if m.get("role") != "system"]
        question = "\n".join(t if isinstance(t, str) else str(t or "") for t in texts)
    return Transcript(
        rollout_id=rollout.id,
        task_id=rollout.task.id,
        question=cut(question, _TEXT_LIMIT),
        asked=format_question(rollout.task),
        expected=cut(answer_text(fields.get("answer")), _TEXT_LIMIT // 4),
        family=cut(str(fields["family"]), 40) if "family" in fields else "",
        solved=solved,
        reward=reward,
        outcome=_describe_outcome(last, solved),
        detail="" if last.failure is None else cut(last.failure.message, _TEXT_LIMIT // 4),
        steps=_make_steps(last, len(rollout.task.messages()) if rollout.task.has_input else 0),
        turns=len(last.calls),
        tokens=sum(len(call.sampled.token_ids) for call in last.calls),
        tool_calls=len(last.tool_results),
    )


def _describe_outcome(attempt: Attempt, solved: bool | None) -> str:
    """Describe the outcome of an attempt, or return `graded` if its reward does not define
    success."""
    if attempt.failure is not None:
        return f"failed: {CAUSES[attempt.failure.cause]}"
    if attempt.status is not RolloutStatus.SUCCEEDED:
        return f"not ended: {attempt.status}"
    if attempt.reward is None:
        return "no reward"
    if solved:
        return "solved"
    if (stopped := _STOPS.get(attempt.stop or "")) is not None:
        return stopped
    if solved is None:
        return "graded"
    if attempt.info is not None:
        return "not solved"
    return "partly right" if attempt.reward.value > 0 else "wrong answer"


def _make_steps(attempt: Attempt, skip: int) -> tuple[_Step, ...]:
    """Return the transcript lines of an attempt. In an environment they include the first
    observation, without its first `skip` messages, and the reward of each turn."""
    calls, acts = attempt.calls, attempt.info is not None
    results = {result.call_id: result for result in attempt.tool_results}
    shown = range(len(calls))
    if len(calls) > _TURN_LIMIT:
        shown = [*range(_TURN_LIMIT - 1), len(calls) - 1]
    first = [m for m in calls[0].messages if m.role != "system"] if acts and calls else []
    steps = [_Step("observation", cut(m.content or "", _TEXT_LIMIT)) for m in first[skip:]]
    for position in shown:
        if position == len(calls) - 1 and len(calls) > _TURN_LIMIT:
            steps.append(_Step("note", f"{len(calls) - _TURN_LIMIT} turns left out"))
        call = calls[position]
        steps += _reply_steps(call)
        if call.reward is not None:
            steps.append(_Step("reward", f"{call.reward:.3g}"))
        observed = _next_messages(call, calls[position + 1 :])
        if observed is None:
            observed = [
                Message("tool", results[c.id].text, tool_call_id=c.id, name=c.name)
                for c in call.reply.tool_calls
                if c.id in results
            ]
        for message in observed:
            result = results.get(message.tool_call_id or "")
            failed = result is not None and result.error is not None
            seen = "observation" if acts and message.role != "tool" else "result"
            kind = "error" if failed or message.name == "unreadable" else seen
            text = cut(message.content or "", _TEXT_LIMIT)
            steps.append(_Step(kind, text, cut(message.name or message.role, 60)))
    return tuple(steps)


def _reply_steps(call: Call) -> list[_Step]:
    """Return the transcript lines of a model reply, with a note if it is truncated or empty."""
    steps: list[_Step] = []
    if call.reply.content:
        steps.append(_Step("text", cut(call.reply.content, _TEXT_LIMIT)))
    steps += [
        _Step("call", cut(c.arguments, _TEXT_LIMIT // 2), cut(c.name, 60))
        for c in call.reply.tool_calls
    ]
    if not steps:
        steps.append(_Step("note", "an empty turn"))
    if call.sampled.stop_reason == "length":
        steps.append(_Step("note", "cut off at the token limit"))
    return steps


def _next_messages(call: Call, later_calls: Sequence[Call]) -> list[Message] | None:
    """Return the new messages in the agent's next call, or None if there is no such call."""
    known = len(call.messages) + 1
    following = next((c for c in later_calls if c.agent == call.agent), None)
    if following is None or following.messages[: known - 1] != call.messages:
        return None
    return [m for m in following.messages[known:] if m.role != "assistant"]


# ---------------------------------------------------------------- which ones to show

_VERDICTS: Mapping[str, str] = {
    "learned": "learned",
    "worse": "got worse",
    "unsolved": "still fails",
    "kept": "solved all along",
    "more": "earned more",
    "less": "earned less",
    "same": "earned the same",
}
"""Result of a task as text; the last three are for a graded reward without success."""
_LEARNED = 3
"""Number of shown tasks that failed before and are solved after."""


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """Transcripts of one task before and after training."""

    verdict: str
    before: Transcript
    after: Transcript

    @property
    def words(self) -> str:
        """Displayed text of the verdict."""
        return _VERDICTS[self.verdict]


def select_examples(before: Sequence[Transcript], after: Sequence[Transcript]) -> list[BeforeAfter]:
    """Select example tasks to show before and after training: learned tasks of different families,
    one task that got worse, and one that still fails.

    If none of these exists, one task that was always solved is returned. The first rollout of each
    task is taken.
    """
    first, second = dict[str, Transcript](), dict[str, Transcript]()
    for side, episodes in ((first, before), (second, after)):
        for episode in episodes:
            side.setdefault(episode.task_id, episode)
    kinds: dict[str, list[BeforeAfter]] = {kind: [] for kind in _VERDICTS}
    for task, new in second.items():
        if (old := first.get(task)) is not None:
            kind = _compare(old, new)
            kinds[kind].append(BeforeAfter(kind, old, new))
    chosen = _select_varied(kinds["learned"], _LEARNED) + kinds["worse"][:1] + kinds["unsolved"][:1]
    chosen += _select_varied(kinds["more"], _LEARNED) + kinds["less"][:1]
    return chosen or kinds["kept"][:1] or kinds["same"][:1]


def count_outcomes(evaluations: Mapping[str, Sequence[Transcript]]) -> list[tuple[str, list[int]]]:
    """Count the outcomes in each evaluation, sorted by frequency with `solved` first."""
    tallies = [Counter(e.outcome for e in episodes) for episodes in evaluations.values()]
    total = sum(tallies, Counter[str]())
    ordered = sorted(total, key=lambda name: (name != "solved", -total[name], name))
    return [(name, [tally[name] for tally in tallies]) for name in ordered]


def _compare(old: Transcript, new: Transcript) -> str:
    if old.solved is None or new.solved is None:
        first, second = old.reward or 0.0, new.reward or 0.0
        return "more" if second > first else "less" if second < first else "same"
    if new.solved:
        return "kept" if old.solved else "learned"
    return "worse" if old.solved else "unsolved"


def _select_varied(pairs: Sequence[BeforeAfter], number: int) -> list[BeforeAfter]:
    """Select pairs of different task families, with a preference for rollouts that use tools."""
    left = sorted(pairs, key=lambda pair: pair.after.tool_calls == 0)
    shown: Counter[str] = Counter()
    chosen: list[BeforeAfter] = []
    while left and len(chosen) < number:
        pair = min(left, key=lambda p: shown[p.after.family])
        left.remove(pair)
        shown[pair.after.family] += 1
        chosen.append(pair)
    return chosen
