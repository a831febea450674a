"""Findings on trainings that learn something else than intended.

`health.py` finds trainings that break; here are those that go on smoothly in the wrong direction: a
reward for failures or for length, tools that return nothing, rollouts without a reward, and a
policy that updates do not move. Thresholds are constants with their reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt
from statistics import fmean, median

from tutelage.runs.health import Finding, Metrics, Setup

FEW_STEPS = 5
"""Minimum steps for a finding, so that it is not chance."""
MANY_ROLLOUTS = 64
"""Minimum rollouts, or tool calls, for a fraction or a correlation."""
AGAINST = -0.5
"""Correlation of reward and success below which failing pays: 64 rollouts give it by chance less
than once in 30,000 times."""
BY_LENGTH = 0.98
"""Correlation of reward and tokens, among rollouts of as many turns, from which nothing else
counts: a right answer that is longer than a wrong one reaches 0.9."""
EMPTY = 0.95
"""Fraction of a tool's calls that return nothing: a query without results is an exception."""
LOST = 0.2
"""Fraction of rollouts without a reward: an overloaded judge now and then loses a few."""
UNMOVED = 1e-7
"""Nats per token of rounding errors: the smallest useful learning rates move a policy a hundred
times as much."""

PULL = 0.5
"""Ratio of KL penalty to reward from which the penalty hides the reward; at the usual coefficients
it is a hundredth."""
RISEN = 2.0
"""Standard errors by which a reward that has risen is above its first."""


def examine_learning(steps: Sequence[Metrics], setup: Setup) -> Iterator[Finding]:
    """Yield the current findings. `steps` are the metrics of a phase from its first step on."""
    if not steps:  # a replayed round has played nothing
        return
    found = (_find_inverted_reward(steps), _find_length_reward(steps), _find_lost_rollouts(steps))
    found = (*found, _find_static_policy(steps, setup), _find_empty_tool(steps))
    found = (*found, _find_large_kl(steps, setup))
    yield from (finding for finding in found if finding is not None)


def _find_inverted_reward(steps: Sequence[Metrics]) -> Finding | None:
    """Return a finding if successful rollouts earn less than others."""
    known = [s for s in steps if "rollout/success_correlation" in s][-FEW_STEPS:]
    value = _weighted_mean(known, "rollout/success_correlation", "rollout/judged")
    if value is None or value > AGAINST:
        return None
    text = f"rollouts that succeed earn less than those that fail (correlation {value:.2f})"
    remedy = "the sign of the reward, and what reward.success takes for a success"
    return Finding("reward_against_success", text, remedy)


def _find_length_reward(steps: Sequence[Metrics]) -> Finding | None:
    """Return a finding if the reward depends only on the length of the reply."""
    tail = [s for s in steps if "rollout/length_correlation" in s][-FEW_STEPS:]
    value = _weighted_mean(tail, "rollout/length_correlation", "rollout/judged")
    if len(tail) < FEW_STEPS or value is None or value < BY_LENGTH:
        return None
    text = (
        f"the reward follows the length of the reply and nothing else (correlation {value:.3f}, "
        f"{tail[-1]['rollout/tokens']:.0f} tokens now), so the policy learns to write more"
    )
    remedy = "a reward that is bounded, or given for a right answer alone"
    return Finding("reward_by_length", text, remedy)


def _find_lost_rollouts(steps: Sequence[Metrics]) -> Finding | None:
    """Return a finding if many rollouts have no reward because a judge or server fails."""
    tail = [s for s in steps if "rollout/number" in s][-FEW_STEPS:]
    total, judged = (sum(s[f"rollout/{of}"] for s in tail) for of in ("number", "judged"))
    if len(tail) < FEW_STEPS or total < MANY_ROLLOUTS or total - judged < LOST * total:
        return None
    text = f"{total - judged:.0f} of the last {total:.0f} rollouts have no reward and train nothing"
    remedy = "look at one (tutelage show RUN --failed); the judge, grader or server that it names"
    return Finding("lost", text, remedy)


def _find_static_policy(steps: Sequence[Metrics], setup: Setup) -> Finding | None:
    """Return a finding if no update has changed the policy although there was a gradient.

    Steps of a long warm-up with a small learning rate do not count.
    """
    full = [s for s in steps if s.get("lr", 0.0) >= (setup.rate or 0.0) / 10 and s.get("grad_norm")]
    moves = [abs(s["kl/update"]) for s in full if "kl/update" in s]
    if len(moves) < FEW_STEPS or max(moves) > UNMOVED:
        return None
    text = (
        f"{len(moves)} updates have not moved the policy (kl/update {max(moves):.1g} at most), so "
        "it stays what it was"
    )
    rate = "" if setup.rate is None else f", which is {setup.rate:g}"
    return Finding("unmoved", text, f"a larger actor.optim.lr{rate}")


def _find_empty_tool(steps: Sequence[Metrics]) -> Finding | None:
    """Return a finding if nearly all calls of a tool return an empty text."""
    names = sorted(key.split("/")[1] for key in steps[-1] if key.endswith("/empty"))
    for name in names:
        counts = [s.get(f"tools/{name}/calls", 0.0) * s["rollout/number"] for s in steps]
        shares = [s.get(f"tools/{name}/empty", 0.0) for s in steps]
        calls, empty = sum(counts), sum(n * share for n, share in zip(counts, shares, strict=True))
        if calls >= MANY_ROLLOUTS and empty >= EMPTY * calls:
            text = f"{empty:.0f} of {calls:.0f} calls of the tool {name!r} returned nothing"
            remedy = "run the tool by itself; return what it found, or say that there is nothing"
            return Finding("empty_tool", text, remedy)
    return None


def _find_large_kl(steps: Sequence[Metrics], setup: Setup) -> Finding | None:
    """Return a finding if the KL penalty outweighs a reward that has not risen."""
    known = [s for s in steps if "reward/mean" in s and "kl/pull" in s]
    first, last = known[:FEW_STEPS], known[-FEW_STEPS:]
    if len(known) < 2 * FEW_STEPS or (pull := median(s["kl/pull"] for s in last)) < PULL:
        return None
    gain = fmean(s["reward/mean"] for s in last) - fmean(s["reward/mean"] for s in first)
    spread = fmean(s["reward/std"] ** 2 for s in (*first, *last))
    if gain > RISEN * sqrt(2 * spread / (FEW_STEPS * max(1, setup.groups))):
        return None
    text = (
        f"the KL penalty counts for {pull:.2g} times as much as the reward (kl/pull) in the last "
        f"{FEW_STEPS} steps, and the mean reward has not risen: the policy is held where it began"
    )
    key = "algorithm.kl_ctrl.kl_coef" if "kl/coef" in last[-1] else "actor.kl_loss_coef"
    return Finding("kl_too_large", text, f"a smaller {key}, or a larger actor.optim.lr")


def _weighted_mean(steps: Sequence[Metrics], name: str, weight: str) -> float | None:
    """Compute the mean over rollouts, or return None if there are too few."""
    total = sum(s[weight] for s in steps)
    return sum(s[name] * s[weight] for s in steps) / total if total >= MANY_ROLLOUTS else None
