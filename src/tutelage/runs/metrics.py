"""Metrics of the rollouts of a step: rewards, turns, tokens, failures, tools.

Metrics are averages, never sums. `weights/learner.py` has the metrics of the update; `folder.py`
names those that depend on the clock.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import correlation

from tutelage.errors import FailureBudgetError
from tutelage.resources import PromptTemplate
from tutelage.statistics.outcome import Success, is_success
from tutelage.types import Failure, FailureCause, Mode, Rollout, Sampled

TOOL_FAILURES = ("raised", "timeout", "bad_result")
"""Errors of tool calls that are the tool's: the call named an existing tool with valid
arguments."""


def rollout_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Compute the mean rewards, turns, tokens, failures and tool use of a step."""
    total = len(rollouts)
    causes = failures_by_cause(rollouts)
    out = _reward_metrics(rollouts) | {"rollout/failed": sum(causes.values()) / max(1, total)}
    out |= {f"rollout/{cause}": count / max(1, total) for cause, count in causes.items()}
    out |= {
        "rollout/turns": sum(len(r.last.calls) for r in rollouts) / total,
        "rollout/tokens": sum(
            len(c.sampled.token_ids) for r in rollouts for c in r.last.calls
        ) / total,
        "rollout/truncated": sum(map(is_truncated, rollouts)) / total,
    }  # fmt: skip
    drawn = [x for r in rollouts for c in r.last.calls for x in _free_logprobs(c.sampled)]
    if drawn:
        out["rollout/entropy"] = -sum(drawn) / len(drawn)
    # A part that has the name of a sum, such as `mean`, does not stand in its place.
    return out | {**_part_metrics(rollouts), **out} | _tool_metrics(rollouts)


def _free_logprobs(sampled: Sampled) -> Sequence[float]:
    """Return the log-probabilities of the tokens that were not determined by a constraint."""
    if not sampled.allowed:
        return sampled.logprobs
    return [x for x, n in zip(sampled.logprobs, sampled.allowed, strict=True) if n != 1]


def _part_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Compute the mean of each reward part. If some rewards lack a part, `rollout/with_<part>` is
    the number of rollouts that have it."""
    judged = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    parts: dict[str, list[float]] = {}
    for reward in judged:
        for name, value in reward.parts.items():
            parts.setdefault(name, []).append(value)
    out: dict[str, float] = {}
    for name, values in sorted(parts.items()):
        out[f"reward/{name}"] = sum(values) / len(values)
        if len(values) < len(judged):
            out[f"rollout/with_{name}"] = len(values)
    return out


def _reward_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Compute statistics of the rewards, or only counts if no rollout has a reward."""
    rewards = [r.reward.value for r in rollouts if r.reward is not None]
    counts = {"rollout/number": len(rollouts), "rollout/judged": len(rewards)}
    if not rewards:
        return {**counts}
    mean = sum(rewards) / len(rewards)
    variance = sum((x - mean) ** 2 for x in rewards) / len(rewards)
    return {
        "reward/mean": mean,
        "reward/std": variance**0.5,
        "reward/min": min(rewards),
        "reward/max": max(rewards),
        **counts,
    }


def _tool_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    total, out = len(rollouts), dict[str, float]()
    calls: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    empty: Counter[str] = Counter()
    seconds: dict[str, float] = defaultdict(float)
    for result in (t for r in rollouts for t in r.last.tool_results):
        name = result.name if result.error != "unknown_tool" else "unknown"
        calls[name] += 1
        errors[name] += result.error is not None
        failed[name] += result.error in TOOL_FAILURES
        empty[name] += not result.text.strip()
        seconds[name] += result.seconds
    for name in sorted(calls):
        out[f"tools/{name}/calls"] = calls[name] / total
        out[f"tools/{name}/errors"] = errors[name] / calls[name]
        out[f"tools/{name}/failed"] = failed[name] / calls[name]
        out[f"tools/{name}/seconds"] = seconds[name] / calls[name]
        if empty[name]:
            out[f"tools/{name}/empty"] = empty[name] / calls[name]
    return out


def reward_correlations(rollouts: Sequence[Rollout], rule: Success | None) -> dict[str, float]:
    """Compute the correlation of the reward with success, if `rule` is set, and of graded rewards
    with length, among rollouts with the most frequent number of turns."""
    judged = [(r, r.reward.value) for r in rollouts if r.reward and r.last.failure is None]
    out: dict[str, float] = {}
    if rule is not None:
        _add_pearson(out, "success", [(float(is_success(r, rule)), value) for r, value in judged])
    turns = Counter(len(r.last.calls) for r, _ in judged).most_common(1)
    pairs = [
        (float(sum(len(c.sampled.token_ids) for c in r.last.calls)), value)
        for r, value in judged
        if len(r.last.calls) == turns[0][0]
    ]
    if len({value for _, value in pairs}) > 2:
        _add_pearson(out, "length", pairs)
    return out


def _add_pearson(out: dict[str, float], name: str, pairs: Sequence[tuple[float, float]]) -> None:
    """Add Pearson's correlation of the pairs to `out` if both variables vary."""
    xs, ys = [x for x, _ in pairs], [y for _, y in pairs]
    if len(set(xs)) > 1 and len(set(ys)) > 1:
        out[f"rollout/{name}_correlation"] = correlation(xs, ys)


def failures_by_cause(rollouts: Sequence[Rollout]) -> dict[str, int]:
    """Count the failed rollouts by cause, sorted by name."""
    failures = (r.last.failure for r in rollouts)
    return dict(sorted(Counter(f.cause.value for f in failures if f is not None).items()))


def all_failed(rollouts: Sequence[Rollout]) -> list[Failure]:
    """Return the failures if every rollout of a step failed, else an empty list."""
    wrong = FailureCause.ANSWER_ERROR  # an answer that is wrong is something to learn from
    failures = [f for r in rollouts if (f := r.last.failure) is not None and f.cause != wrong]
    measured = any(r.mode is not Mode.TRAIN for r in rollouts)
    if measured and not all(f.cause.infrastructure for f in failures):
        return []
    return failures if len(failures) == len(rollouts) else []


def check_equal_failures(rollouts: Sequence[Rollout], count: int) -> None:
    """Raise `FailureBudgetError` if the first `count` rollouts of a run all failed with the same
    message. The task's name and fields are ignored."""
    errors = [(r.task.id, f.message) for r in rollouts if (f := r.last.failure) is not None]
    told = {text.replace(repr(name), "").partition("; the task has: ")[0] for name, text in errors}
    if len(errors) == len(rollouts) and len(told) == 1:
        raise FailureBudgetError(
            f"no rollout could be graded, and all {count} failed the same way: {errors[0][1]}. Fix "
            "the reward, and start again with another --output"
        )


def is_truncated(rollout: Rollout) -> bool:
    """Return True if the rollout was truncated by a limit."""
    return rollout.last.stop in ("token_budget", "context", "truncated")


def low_reward_warning(rollouts: Sequence[Rollout], failure_reward: float) -> str | None:
    """Return a warning if a rollout earned less than the failure reward, else None.

    A failure in an environment keeps the rewards of its turns.
    """
    played = [r for r in rollouts if r.last.failure is None and r.last.info is None]
    graded = [r.reward.value for r in played if r.reward is not None]
    lowest = min(graded, default=failure_reward)
    if lowest >= failure_reward:
        return None
    return low_reward_text("agent.failure_reward", failure_reward, lowest)


def long_prompt_warning(rollouts: Sequence[Rollout], context: int, limit: int) -> str | None:
    """Return a warning if a task's first prompt exceeds `context` tokens, else None. `limit`
    is the model's maximum."""
    untried = [r for r in rollouts if r.last.stop == "context" and not r.last.calls]
    if not untried:
        return None
    longer = ", or raise `rollout.max_len`" if context < limit else ", the maximum of the model"
    return (
        f"the prompt of task {untried[0].task.id!r} is longer than the context of {context} "
        f"tokens, so it is not played and gets the reward of an empty answer ({len(untried)} of "
        f"{len(rollouts)} rollouts here); shorten it{longer}"
    )


def rollout_warnings(
    rollouts: Sequence[Rollout], failure_reward: float, context: int, limit: int
) -> dict[str, str | None]:
    """Return warnings about low rewards, long prompts and agents without model calls. Each key is a
    substring of its warning."""
    failures = [f for r in rollouts if (f := r.last.failure) and f.cause is FailureCause.NO_CALLS]
    return {
        "never called": failures[0].message if failures else None,
        "agent.failure_reward": low_reward_warning(rollouts, failure_reward),
        "longer than the context": long_prompt_warning(rollouts, context, limit),
    }


def unused_template_warnings(
    rollouts: Sequence[Rollout], resources: Mapping[str, object]
) -> list[str]:
    """Return warnings about prompt templates that are not used in model calls or tool descriptions.
    A template counts as used if a call contains its longest piece between placeholders or half of
    its pairs of neighbouring words, since an agent may split or wrap its prompt. Without calls
    there is no warning."""
    calls = [c for r in rollouts for attempt in r.attempts for c in attempt.calls]
    texts = [str(message.content) for call in calls for message in call.messages]
    texts += [tool.description for call in calls for tool in call.tools]
    read, warnings = "\n".join(dict.fromkeys(texts)), list[str]()
    read_words = f" {' '.join(_split_words(read))} "
    for name, value in resources.items() if read else ():
        if not isinstance(value, PromptTemplate):
            continue
        pieces = value.format(**dict.fromkeys(value.placeholders, "\0")).split("\0")
        words = [w for w in map(_split_words, pieces) if w]
        pairs = [f" {' '.join(p)} " for w in words for p in list(pairwise(w)) or [w]]
        found = 2 * sum(pair in read_words for pair in pairs) >= len(pairs)
        if not found and max(map(str.strip, pieces), key=len) not in read:
            warnings.append(
                f"the prompt template {name!r} is in no model call of the first {len(rollouts)} "
                "rollouts; format it in the agent, or remove it"
            )
    return warnings


def _split_words(text: str) -> list[str]:
    """Split a text into lower-case words, without numbers and punctuation."""
    return re.findall(r"[^\W\d_]+", text.casefold())


def low_reward_text(key: str, failure_reward: float, lowest: float) -> str:
    """Format the warning that a failure earns more than some rollouts because of `key`."""
    return (
        f"a rollout earned {lowest:g}, less than the {failure_reward:g} of a failed one ({key}), "
        f"so failing earns more than trying; set {key} to the lowest possible reward, {lowest:g} "
        "or less"
    )
