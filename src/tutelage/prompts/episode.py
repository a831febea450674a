"""A recorded rollout as a search sees it: reward, exactness, evidence in words, what it cost.

The evidence is what a person would want to read: each tool call with its result, the texts of the
model, and the grader's feedback.
"""

from __future__ import annotations

from tutelage.engine.usage import Usage
from tutelage.prompts.contract import Episode
from tutelage.runs.report.transcripts import read_transcript
from tutelage.statistics.outcome import RewardKind, Success, succeeded
from tutelage.types import EXPECTED_FIELDS, Rollout


def episode_of(
    rollout: Rollout, feedback: str, usage: Usage | None, rule: Success | None = None
) -> Episode:
    """Return the episode. `feedback` is the grader's, `usage` what a server counted, `rule` the
    user's definition of success."""
    last = rollout.last
    reward = None if last.reward is None else last.reward.value
    failed = last.failure is not None
    exact: bool | None = not failed and succeeded(rollout, rule)
    if not failed and not RewardKind().after([rollout], rule).has_success:
        exact = None
    # Without a server's count: what a policy of this process computed.
    calls = [call for attempt in rollout.attempts for call in attempt.calls]
    tokens = sum(len(c.prompt_ids) + len(c.sampled.token_ids) for c in calls)
    return Episode(
        reward=reward,
        exact=exact,
        feedback=_feedback(rollout, feedback),
        trace=_trace_text(rollout),
        failure=None if last.failure is None else last.failure.cause,
        usage=usage or Usage(len(calls), tokens),
    )


def _trace_text(rollout: Rollout) -> str:
    """Tool calls, their results and what was said, a line each."""
    read = read_transcript(rollout)
    words = {"call": "call {}({})", "result": "{} returned: {}", "error": "{} failed: {}"}
    lines = [
        words[step.kind].format(step.name, step.text) if step.kind in words else step.text
        for step in read.steps
    ]
    answer = rollout.last.answer
    if answer is not None and (not lines or answer.strip() not in lines[-1]):
        lines.append(f"answer: {answer}")
    return "\n".join(lines)


def _feedback(rollout: Rollout, said: str) -> str:
    last = rollout.last
    parts = {} if last.reward is None else last.reward.parts
    lines = [said] if said else []
    if last.failure is not None:
        lines.append(last.failure.message)
    elif last.stop not in (None, "answer", "terminated"):
        lines.append(f"the agent gave no answer: it ended at {last.stop}")
    if not said and last.reward is not None and last.reward.value < 1:
        expected = next((rollout.task.fields.get(n) for n in EXPECTED_FIELDS), None)
        if expected is not None:
            lines.append(f"the expected answer is {expected!r}, the agent's is {last.answer!r}")
    told = [f"{name}={value:.3g}" for name, value in parts.items() if name != "exact"]
    if told:
        lines.append("graded: " + ", ".join(told))
    return "; ".join(lines)
