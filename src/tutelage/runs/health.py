"""Health of a training, from the metrics of its steps.

`examine` is called after each step and yields the findings that hold then: rewards that never
differ, groups without variance, a reward, entropy or policy that diverged, truncated or failed
rollouts, failing tools. It is pure: the same metrics give the same findings, so a resumed run
reports the same. `findings.py` reports each once and keeps it for the result.

Every threshold is a constant with its reason. A healthy run of any size gives no warnings: what
could be chance in a small step waits for more steps, and a task that is nearly solved is no fault.
`metrics.py` computes the metrics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tutelage.statistics.outcome import format_cause
from tutelage.types import FailureCause

Metrics = Mapping[str, Any]
_CAUSES = tuple(f"rollout/{cause.value}" for cause in FailureCause)

FEW_STEPS = 3
"""Minimum steps that a fault must last, so that one unlucky step is not reported."""
PATIENCE = 14
"""Steps after which a fault is reported however small the steps are."""
FIRST_ROLLOUTS = 16
"""Rollouts of a first step that suffice alone: limits that are too small show at once."""
MANY_ROLLOUTS = 64
"""Rollouts with equal rewards, which a reward that differs does not give by chance."""
SPARSE_ROLLOUTS = 512
"""The same if all rewards are the lowest: a success rate of 1 % would have shown by now (99.4
%)."""
MANY_GROUPS = 32
"""Consecutive groups without variance that are not chance if tasks differ in difficulty."""
NEAR_MAXIMUM = 0.9
"""Fraction of the range from the lowest to the highest reward above which flat groups are
success."""
COMPARED_GROUPS = 16
"""Groups per mean reward before two means are compared."""
COLLAPSED = 0.2
"""Fraction of its best reward, above the lowest, that a collapsed policy keeps: a harder draw of
tasks does not cost 80 %."""
SURE = 5.0
"""Standard errors between two means: chance gives 5 less than once in a million comparisons."""
HALF = 0.5
"""Fraction of truncated or failed rollouts from which most of a step teaches the wrong thing."""
SOME_ROLLOUTS = 32
"""Minimum rollouts, or tool calls, for a fraction of them."""
ENTROPY_ZERO = 1e-3
"""Nats per token below which all rollouts of a task are equal: a healthy policy that has learned
its task well keeps ten times as much, and pretrained models a hundred times."""
ENTROPY_RISE, ENTROPY_FACTOR = 1.0, 3.0
"""Increase of the entropy in nats, and its ratio to the first value, of a policy that collapses;
encouraged exploration adds a few tenths."""
KL_JUMP = 2.0
"""Nats per token by which one update moves a policy that it destroys: PPO aims at 0.01, and the
first update of a small policy that learns well reached 0.7."""
KL_LARGE = 1.0
"""The same for two consecutive updates."""
KL_REFERENCE = 5.0
"""Nats per token from the reference beyond which nothing of it is left; long runs reach 1."""
MISMATCH = 0.5
"""Nats per token between sampler and trainer: number formats differ by less than 0.01."""
ROLLOUT_RULES = ("constant_reward", "truncated", "failed", "broken_tool")
"""Rules that apply where no weights are trained."""
BROKEN_TOOL = 0.95
"""Fraction of a tool's calls that fail through the tool; a model that misuses it succeeds at
times."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Problem or observation in the metrics of a training run, with a suggested fix."""

    name: str
    text: str
    remedy: str = ""
    warning: bool = True

    def __str__(self) -> str:
        return f"{self.text}. Try: {self.remedy}" if self.remedy else self.text


@dataclass(frozen=True, slots=True)
class Setup:
    """Settings of a run that are used to interpret its metrics."""

    groups: int = 1
    """Tasks per step."""
    compares: bool = True
    """True if advantages compare rollouts of one task."""
    reward: str = "the reward function"
    """Name of the reward."""
    failures: Mapping[str, str] = field(default_factory=dict[str, str])
    """Message of the first failed rollout, by cause."""
    limits: str = ""
    """Keys that limit a rollout, with their values."""
    rate: float | None = None
    """Learning rate."""
    rules: Collection[str] | None = None
    """Names of the rules to apply; None applies all."""
    ended: bool = False
    """True if no step follows, so that rules do not wait for more steps."""
    remedies: Mapping[str, str] = field(default_factory=dict[str, str])
    """Other remedies by the name of the finding."""


def examine(steps: Sequence[Metrics], setup: Setup) -> Iterator[Finding]:
    """Yield the current findings. `steps` are the metrics of a phase from its first step on."""
    for found in (rule(steps, setup) for rule in _RULES) if steps else ():
        if found is not None and (setup.rules is None or found.name in setup.rules):
            yield replace(found, remedy=setup.remedies.get(found.name, found.remedy))


# ---------------------------------------------------------------- rewards


def _find_constant_reward(steps: Sequence[Metrics], setup: Setup) -> Finding | None:
    """Return a finding if all rollouts of the run have earned the same reward."""
    if (values := _reward_range(steps)) is None or values[0] != values[1]:
        return None
    value, count = values[0], int(_sum(steps, "rollout/judged"))
    enough = SPARSE_ROLLOUTS if value <= 0 else MANY_ROLLOUTS
    enough = FIRST_ROLLOUTS if setup.ended else enough
    least = 1 if setup.ended else FEW_STEPS
    if len(steps) < least or (count < enough and len(steps) < PATIENCE):
        return None
    text = f"all {count} rollouts so far have earned {value:g}, so nothing has been learned"
    remedy = "harder tasks, if the model solved these before training"
    if value < 1:
        remedy = (
            "look at a rollout (tutelage show RUN); a reward that grades part of the way, easier "
            "tasks, or demonstrations first, if the tasks are too hard"
        )
    same = f"correct {setup.reward} if it always returns the same"
    return Finding("constant_reward", text, f"{remedy}; {same}")


def _find_flat_groups(steps: Sequence[Metrics], setup: Setup) -> Finding | None:
    """Return a finding if recent groups have equal rewards, below the maximum."""
    if not setup.compares:
        return None
    flat = 0
    for step in reversed(steps):
        shares = (step.get("group/zero_variance"), step.get("group/single"))
        if shares[0] is None or not shares[0] or sum(filter(None, shares)) < 1:
            break
        flat += 1
    tail = steps[len(steps) - flat :]
    everything, here = _reward_range(steps), _reward_range(tail)
    if here is None or everything is None or everything[0] == everything[1]:
        return None
    enough = flat >= FEW_STEPS + 1 and flat * setup.groups >= MANY_GROUPS
    if here[0] == here[1]:  # nothing at all is earned: rewards may be sparse
        enough = flat >= FEW_STEPS + 1 and _sum(tail, "rollout/judged") >= MANY_ROLLOUTS
    if here[0] == everything[1]:  # they earn the most that there is
        return None
    mean = _mean(tail, "reward/mean")
    if (not enough and flat < PATIENCE) or mean is None or _is_near_maximum(steps, mean):
        return None
    text = (
        f"in each of the last {flat} steps all rollouts of a task earned the same reward (mean "
        f"{mean:.3g}), so there was nothing to learn"
    )
    remedy = (
        "tasks that the model solves sometimes, more rollouts of a task (agent.num_chains), "
        "algorithm.filter_groups.enable=true, or a higher rollout.temperature if the rollouts of "
        "a task are all alike"
    )
    return Finding("flat_groups", text, remedy)


def _find_solved_tasks(steps: Sequence[Metrics], setup: Setup) -> Finding | None:
    """Return a finding if all recent rollouts earn the maximum reward."""
    everything = _reward_range(steps)
    tail = _last_steps(steps, MANY_ROLLOUTS)
    here = _reward_range(tail)
    if everything is None or here is None or everything[0] == everything[1]:
        return None
    if here[0] < everything[1] or (_mean(tail, "rollout/truncated") or 0.0) >= HALF:
        return None
    text = (
        f"solved: all rollouts of the last {len(tail)} steps earned {here[0]:g}, the most that any "
        "rollout has earned, so there is nothing left to learn from these tasks"
    )
    return Finding("solved", text, warning=False)


def _find_reward_collapse(steps: Sequence[Metrics], setup: Setup) -> Finding | None:
    """Return a finding if the mean reward has fallen from its best to near the lowest."""
    size = max(FEW_STEPS, math.ceil(COMPARED_GROUPS / max(1, setup.groups)))
    everything, now = _reward_range(steps), _mean(steps[-size:], "reward/mean")
    starts = range(len(steps) - 2 * size + 1)
    means = {i: _mean(steps[i : i + size], "reward/mean") for i in starts}
    known = {i: mean for i, mean in means.items() if mean is not None}
    if everything is None or now is None or not known:
        return None
    best = max(known, key=lambda i: known[i])
    then = known[best]
    least = everything[0]
    variance = sum(
        (_mean(w, "reward/std") or 0.0) ** 2 for w in (steps[best : best + size], steps[-size:])
    )
    error = math.sqrt(variance / (size * max(1, setup.groups)))
    if now - least > COLLAPSED * (then - least) or then - now <= SURE * error:
        return None
    text = f"the mean reward has fallen from {then:.3g} to {now:.3g} in the last {size} steps"
    return Finding("reward_collapse", text, _lr_advice(setup))


def _find_divergence(steps: Sequence[Metrics], setup: Setup) -> Finding | None:
    """Return a finding if a loss or gradient is not a finite number."""
    names = ("loss/policy", "grad_norm", "entropy", "kl/ref", "kl/update")
    bad = [n for n in names if not math.isfinite(steps[-1].get(n, 0.0))]
    if not bad:
        return None
    return Finding("diverged", f"{', '.join(bad)} is not a finite number", _lr_advice(setup))


def _find_entropy_collapse(steps: Sequence[Metrics], setup: Setup) -> Finding | None:
    """Return a finding if the entropy is near zero although the task is not solved."""
    tail = steps[-FEW_STEPS:]
    values = [step.get("rollout/entropy") for step in tail]
    mean = _mean(tail, "reward/mean")
    if len(tail) < FEW_STEPS or mean is None or _is_near_maximum(steps, mean):
        return None
    known = [float(value) for value in values if value is not None]
    if len(known) < FEW_STEPS or max(known) >= ENTROPY_ZERO:
        return None
    text = (
        f"the entropy is near zero ({abs(max(known)):.2g} nats per token) at a mean reward of "
        f"{mean:.3g}: the policy samples the same answer every time and has stopped exploring"
    )
    remedy = (
        "rollout.temperature=1, a larger actor.entropy_coeff, a larger actor.clip_ratio_high, or "
        "a smaller actor.optim.lr; start again from an earlier checkpoint"
    )
    return Finding("entropy_collapse", text, remedy)


def _find_entropy_explosion(steps: Sequence[Metrics], setup: Setup) -> Finding | None:
    """Return a finding if the entropy has become much larger than at the start."""
    known = [float(s["rollout/entropy"]) for s in steps if "rollout/entropy" in s]
    if len(known) < FEW_STEPS:
        return None
    first, now = min(known[:FEW_STEPS]), min(known[-2:])
    if now < first + ENTROPY_RISE or now < ENTROPY_FACTOR * first:
        return None
    text = f"the entropy has risen from {first:.2g} to {now:.2g} nats per token"
    remedy = f"a smaller actor.entropy_coeff; {_lr_advice(setup)}"
    return Finding("entropy_explosion", text, remedy)


def _find_kl_jump(steps: Sequence[Metrics], setup: Setup) -> Finding | None:
    """Return a finding if one or several updates have moved the policy too far."""
    moved = [s.get("kl/update", 0.0) for s in steps[-2:]]
    away = [s.get("kl/ref", 0.0) for s in steps[-2:]]
    jumped = moved[-1] > KL_JUMP or (len(moved) == 2 and min(moved) > KL_LARGE)
    if not jumped and (len(away) < 2 or min(away) <= KL_REFERENCE):
        return None
    text = (
        f"one update moves the policy by {moved[-1]:.3g} nats per token (kl/update), a hundred "
        "times what is usual"
    )
    if not jumped:
        text = f"the policy is {away[-1]:.3g} nats per token from its reference (kl/ref)"
    return Finding("kl_jump", text, _lr_advice(setup))


def _find_mismatch(steps: Sequence[Metrics], setup: Setup) -> Finding | None:
    """Return a finding if sampler and trainer compute different probabilities."""
    gaps = [s.get("kl/rollout", 0.0) for s in steps[-FEW_STEPS:]]
    if len(gaps) < FEW_STEPS or min(gaps) <= MISMATCH:
        return None
    text = f"sampler and trainer differ by {gaps[-1]:.3g} nats per token (kl/rollout)"
    return Finding("mismatch", text, "rollout.correction=token_tis, or rollout.name=native")


def _lr_advice(setup: Setup) -> str:
    rate = "" if setup.rate is None else f", which is {setup.rate:g}"
    return (
        f"a smaller actor.optim.lr{rate} (a tenth of it), actor.optim.warmup_steps, or a KL "
        "penalty (actor.use_kl_loss=true); start again from an earlier checkpoint"
    )


def _find_truncation(steps: Sequence[Metrics], setup: Setup) -> Finding | None:
    """Return a finding if at least half of the rollouts were truncated."""
    if (values := _count_affected(steps, "rollout/truncated")) is None:
        return None
    cut, total = values
    text = (
        f"{cut} of {total} rollouts were cut off before they had ended, so their rewards say "
        "little about what the model can do"
    )
    before = steps[0].get("rollout/truncated", 0.0)
    if before < HALF / 2:
        grown = f"{text}; in the first step {before:.0%} were"
        return Finding("truncated", grown, f"{_lr_advice(setup)}; or more room ({setup.limits})")
    return Finding("truncated", text, f"give them more room ({setup.limits})")


def _find_failures(steps: Sequence[Metrics], setup: Setup) -> Finding | None:
    """Return a finding if at least half of the rollouts failed."""
    if (values := _count_affected(steps, "rollout/failed")) is None:
        return None
    failed, total = values
    causes = {name: steps[-1].get(name, 0.0) for name in _CAUSES}
    cause = max(causes, key=lambda name: causes[name]).removeprefix("rollout/")
    text = f"{failed} of {total} rollouts failed, mostly: {format_cause(cause)}"
    text += f" (the first: {setup.failures[cause]})" if cause in setup.failures else ""
    return Finding("failed", text, "look at one: tutelage show RUN --failed")


def _find_broken_tools(steps: Sequence[Metrics], setup: Setup) -> Finding | None:
    """Return a finding if nearly all calls of a tool fail."""
    tail = steps[-PATIENCE:]
    names = {k.split("/")[1] for s in tail for k in s if k.startswith("tools/")} - {"unknown"}
    for name in sorted(names):
        asked, calls = list[Metrics](), list[float]()
        for step in reversed(tail):
            if len(asked) >= FEW_STEPS and sum(calls) >= SOME_ROLLOUTS:
                break
            asked.append(step)
            calls.append(step.get(f"tools/{name}/calls", 0.0) * step.get("rollout/number", 1))
        if len(asked) < FEW_STEPS or sum(calls) < SOME_ROLLOUTS:
            continue
        failed = sum(
            n * s.get(f"tools/{name}/failed", 0.0) for n, s in zip(calls, asked, strict=True)
        )
        if failed >= BROKEN_TOOL * sum(calls):
            text = f"{failed:.0f} of {sum(calls):.0f} calls of the tool {name!r} failed"
            remedy = "run the tool by itself, and look at what it answers: tutelage show RUN"
            return Finding("broken_tool", text, remedy)
    return None


# ---------------------------------------------------------------- arithmetic


def _reward_range(steps: Sequence[Metrics]) -> tuple[float, float] | None:
    """Return the lowest and the highest reward, or None if no rollout has a reward."""
    judged = [s for s in steps if "reward/min" in s]
    if not judged:
        return None
    return min(s["reward/min"] for s in judged), max(s["reward/max"] for s in judged)


def _is_near_maximum(steps: Sequence[Metrics], mean: float) -> bool:
    if (values := _reward_range(steps)) is None:
        return False
    least, top = values
    top = 1.0 if least >= 0 and top <= 1 else top
    return mean >= least + NEAR_MAXIMUM * (top - least)


def _sum(steps: Sequence[Metrics], name: str) -> float:
    return sum(s.get(name, 0.0) for s in steps)


def _mean(steps: Sequence[Metrics], name: str) -> float | None:
    known = [s[name] for s in steps if name in s]
    return sum(known) / len(known) if known else None


def _last_steps(steps: Sequence[Metrics], rollouts: int) -> Sequence[Metrics]:
    """Return the last steps with at least `rollouts` rewards, but at least three steps."""
    for count in range(FEW_STEPS, min(len(steps), PATIENCE) + 1):
        if _sum(steps[-count:], "rollout/judged") >= rollouts or count == PATIENCE:
            return steps[-count:]
    return ()


def _count_affected(steps: Sequence[Metrics], name: str) -> tuple[int, int] | None:
    """Return the numbers of affected and of all rollouts in the last steps in which at least half
    of the rollouts were affected."""
    length = 0
    for step in reversed(steps):
        if step.get(name, 0.0) < HALF:
            break
        length += 1
    tail = steps[len(steps) - length :]
    total = int(_sum(tail, "rollout/number"))
    first = len(steps) == length == 1 and total >= FIRST_ROLLOUTS
    enough = length >= FEW_STEPS and (total >= SOME_ROLLOUTS or length >= PATIENCE)
    if not (first or enough):
        return None
    return round(sum(s[name] * s["rollout/number"] for s in tail)), total


_RULES: tuple[Callable[[Sequence[Metrics], Setup], Finding | None], ...] = (
    _find_divergence, _find_constant_reward, _find_flat_groups, _find_solved_tasks,
    _find_reward_collapse, _find_entropy_collapse, _find_entropy_explosion, _find_kl_jump,
    _find_mismatch, _find_truncation, _find_failures, _find_broken_tools,
)  # fmt: skip
