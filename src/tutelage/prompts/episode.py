"""Conversion of a recorded rollout to an episode of a search.

Its evidence is each tool call with its result, the texts of the model, and the grader's feedback.
"""

from __future__ import annotations

from tutelage.engine.usage import Usage
from tutelage.prompts.contract import Episode
from tutelage.runs.report.transcripts import read_transcript
from tutelage.statistics.outcome import RewardKind, Success, is_success
from tutelage.types import EXPECTED_FIELDS, Rollout


def to_episode(
    rollout: Rollout, feedback: str, usage: Usage | None, rule: Success | None = None
) -> Episode:
    """Convert a rollout to an episode. `feedback` is reported by the grader, `usage` by the server;
    `rule` is the user's success criterion."""
    last = rollout.last
    reward = None if last.reward is None else last.reward.value
    failed = last.failure is not None
    exact: bool | None = not failed and is_success(rollout, rule)
    if not failed and not RewardKind().update([rollout], rule).has_success:
        exact = None
    # Without a server's count: what a policy of this process computed.
    calls = [call for attempt in rollout.attempts for call in attempt.calls]
    tokens = sum(len(c.prompt_ids) + len(c.sampled.token_ids) for c in calls)
    words = {"call": "call {}({})", "result": "{} returned: {}", "error": "{} failed: {}"}
    trace = [
        words[step.kind].format(step.name, step.text) if step.kind in words else step.text
        for step in read_transcript(rollout).steps
    ]
    if last.answer is not None and (not trace or last.answer.strip() not in trace[-1]):
        trace.append(f"answer: {last.answer}")
    said = [feedback] if feedback else []
    if last.failure is not None:
        said.append(last.failure.message)
    elif last.stop not in (None, "answer", "terminated"):
        said.append(f"the agent gave no answer: it ended at {last.stop}")
    if not feedback and reward is not None and reward < 1:
        expected = next((rollout.task.fields.get(n) for n in EXPECTED_FIELDS), None)
        if expected is not None:
            said.append(f"the expected answer is {expected!r}, the agent's is {last.answer!r}")
    parts = {} if last.reward is None else last.reward.parts
    graded = [f"{name}={value:.3g}" for name, value in parts.items() if name != "exact"]
    if graded:
        said.append("graded: " + ", ".join(graded))
    return Episode(
        reward=reward,
        exact=exact,
        feedback="; ".join(said),
        trace="\n".join(trace),
        failure=None if last.failure is None else last.failure.cause,
        usage=usage or Usage(len(calls), tokens),
    )
