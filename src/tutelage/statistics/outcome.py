"""Success rates and mean rewards of rollouts.

A rollout without a reward is *lost*: infrastructure failed, so it is no evidence. A *failed* one (a
timeout, an exception of the agent) counts with the failure reward, and is listed by its cause. If
more than `LOST` of the rollouts are lost, the rest may be biased, so there is no rate and no mean,
only counts and the cause.

*Success* is defined by the environment (`info["success"]`), else by the user (`reward.success`),
else by the grader's part `exact`, else by a reward of 1 if every reward is 0 or 1. A graded reward
without any of them has no success; its headline is the mean. `RewardKind` keeps the definition the
same for a whole run, so that rows of a table are comparable.

`runs/stored_evaluation.py` reads the output of `Evaluation.record`; `intervals.py` has the
intervals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from tutelage.config.fields import parse_success
from tutelage.engine.usage import Cost
from tutelage.errors import DataError, RewardError
from tutelage.seeds import SeedTree
from tutelage.statistics.intervals import (
    Difference,
    mean_interval,
    paired_bootstrap,
    rate_interval,
)
from tutelage.types import EXACT, JSON, SUCCESS, FailureCause, Reward, Rollout

LOST = 0.01
"""Share of rollouts without a reward above which there is no rate and no mean."""
FULL = 1.0 - 1e-9
"""Minimum reward that counts as 1."""


def format_cause(cause: str) -> str:
    """Return a readable text for a failure cause; files and metrics use the raw value."""
    words = {"reward_error": "no reward", "answer_error": "reward raised"}
    return words.get(cause, cause.replace("_", " "))


@dataclass(frozen=True, slots=True)
class Success:
    """Success criterion: a minimum of the reward, or of one of its parts."""

    part: str | None
    least: float

    @staticmethod
    def parse(text: str | None) -> Success | None:
        """Parse a criterion such as `right`, `>=0.5` or `right>=0.5`; return None for None."""
        if text is None:
            return None
        part, least = parse_success(text)
        return Success(part, FULL if least is None else least - 1e-9)

    def is_met(self, reward: Reward, location: str) -> bool:
        """Return True if the reward meets the criterion. Raises `RewardError` for a missing
        part."""
        if self.part is None:
            return reward.value >= self.least
        if self.part not in reward.parts:
            known = ", ".join(map(repr, reward.parts)) or "none"
            raise RewardError(
                f"reward.success={self.part!r} is not a part of the reward of {location}; its "
                f"parts are: {known}. Return it in addition to 'reward', or use another part"
            )
        return reward.parts[self.part] >= self.least


@dataclass(frozen=True, slots=True)
class RewardKind:
    """Properties of the rewards of a run, determined once for all reported numbers."""

    graded: bool = False
    """True if a reward was neither 0 nor 1."""
    has_success: bool = True
    """True if every reward defined the success of its rollout."""

    def update(self, rollouts: Iterable[Rollout], rule: Success | None = None) -> RewardKind:
        """Return the kind updated with these rollouts. Failed rollouts are ignored, because no
        grader rewarded them."""
        kind = self
        for rollout in rollouts:
            reward = rollout.reward
            if reward is not None and rollout.last.failure is None:
                whole = _is_binary(reward.value)
                said = SUCCESS in (rollout.last.info or {})
                known = rule is not None or said or EXACT in reward.parts or whole
                kind = RewardKind(kind.graded or not whole, kind.has_success and known)
        return kind


UNSEEN = RewardKind()
"""Kind of a run without any reward yet."""


@dataclass(frozen=True, slots=True)
class RolloutOutcome:
    """Outcome of one rollout: the reward (None if the rollout was lost) and the failure."""

    task: str
    reward: float | None
    success: bool
    cause: str | None = None
    message: str = ""
    called: bool = True
    """True if a model was called."""


@dataclass(frozen=True, slots=True)
class OutcomeSums:
    """Counts and rates over rollouts; all rates are over the judged rollouts."""

    rollouts: int
    tasks: int
    judged: int
    lost: Mapping[str, int]
    """Rollouts without a reward, by cause."""
    failed: Mapping[str, int]
    """Judged rollouts that failed and count with the failure reward, by cause."""
    reason: str
    """Message of the first lost rollout."""
    no_calls: int
    """Judged rollouts that did not fail and made no model call."""
    success: float | None
    """Success rate; None if success is undefined, or too many rollouts were lost."""
    interval: tuple[float, float] | None
    """95 % interval of the success rate."""
    mean_reward: float | None
    """Mean reward; None if too many rollouts were lost."""
    reward_interval: tuple[float, float] | None

    def record(self) -> JSON:
        """Convert the sums to a JSON object for result files; see `runs/stored_evaluation.py`."""
        record: JSON = {entry.name: getattr(self, entry.name) for entry in fields(OutcomeSums)}
        record |= {name: dict(record[name]) for name in ("lost", "failed")}
        ends = {n: record[n] for n in ("interval", "reward_interval")}
        return record | {n: end and list(end) for n, end in ends.items()}


@dataclass(frozen=True, slots=True, repr=False)
class Evaluation(OutcomeSums):
    """Counts and rates of an evaluation, with its rollouts; `str()` returns a short summary."""

    played: Sequence[Rollout]
    kind: RewardKind
    solved: float
    """Share of successes, or, if success is undefined, of rewards of at least 1; used only by the
    cold start."""
    by_family: Mapping[str, Evaluation] = field(default_factory=dict[str, "Evaluation"])
    in_training: int | None = None
    """Number of tasks that the policy was trained on; None if unknown."""
    repeated: int = 0
    """Number of duplicate tasks."""
    cost: Cost = field(default_factory=Cost)
    """Cost of the model calls, if counted."""

    @property
    def ungraded(self) -> str:
        """Return the first failure message if no rollout could be graded, else an empty string."""
        if self.judged > self.failed.get(FailureCause.ANSWER_ERROR.value, 0):
            return ""
        return next((r.last.failure.message for r in self.played if r.last.failure), "no reward")

    def compare(self, other: Evaluation, seed: int = 0) -> Difference:
        """Return the difference in mean reward, `other` minus this evaluation, paired by task, with
        a 95 % interval.

        Raises `DataError` if the two have no common judged task.
        """
        first, second = _mean_rewards_by_task(self.played), _mean_rewards_by_task(other.played)
        shared = [task for task in first if task in second]
        if not shared:
            raise DataError("the two evaluations have no common judged task")
        rng = SeedTree(seed).child("compare", "pair", "reward").numpy()
        return paired_bootstrap([first[t] for t in shared], [second[t] for t in shared], rng)

    def __repr__(self) -> str:
        lines = [f"Evaluation of {self.rollouts} rollouts on {self.tasks} tasks"]
        for name, value, ends in (
            ("reward", self.mean_reward, self.reward_interval),
            ("success", self.success, self.interval),
        ):
            message = "" if ends is None else f" (95 %: {ends[0]:.3f} to {ends[1]:.3f})"
            lines += [] if value is None else [f"  {name:<8} {value:.3f}{message}"]
        if self.judged < self.rollouts:
            lines.append(f"  judged   {self.judged} of {self.rollouts}: {self.reason}")
        lines += [f"  no calls {self.no_calls} of {self.rollouts}"] * bool(self.no_calls)
        return "\n".join([*lines, f"  cost     {self.cost}"] if self.cost.calls else lines)


def too_many_lost(judged: int, rollouts: int) -> bool:
    """Return True if too few rollouts were judged to compute a rate."""
    return rollouts - judged > LOST * rollouts or judged == 0


def is_success(rollout: Rollout, rule: Success | None = None) -> bool:
    """Return True if a rollout succeeded according to its environment, else the rule, else the
    reward part `exact`, else a reward of 1."""
    reward = rollout.reward
    said = (rollout.last.info or {}).get(SUCCESS)
    if reward is None or (rollout.last.failure is not None and (rule or said) is not None):
        return False
    if said is not None:
        return bool(said)
    if rule is not None:
        return rule.is_met(reward, f"task {rollout.task.id!r}")
    if EXACT in reward.parts:
        return reward.parts[EXACT] >= FULL
    return reward.value >= FULL


def summarise(
    rollouts: Sequence[Rollout], rule: Success | None = None, kind: RewardKind | None = None
) -> Evaluation:
    """Summarise rollouts, in total, by family, and by templates seen or unseen in training. `kind`
    is the reward kind of the run, if it was determined from other rollouts."""
    kind = kind or RewardKind().update(rollouts, rule)
    families: dict[str, list[Rollout]] = {}
    templates: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        family, template = map(rollout.task.fields.get, ("family", "template"))
        if isinstance(family, str):
            families.setdefault(family, []).append(rollout)
        if template in ("seen", "unseen"):
            templates.setdefault(f"{template} templates", []).append(rollout)
    groups = [*sorted(families.items()), *sorted(templates.items())]
    by_family = {name: _evaluate_rollouts(some, rule, kind) for name, some in groups}
    return _evaluate_rollouts(rollouts, rule, kind, by_family)


def _evaluate_rollouts(
    rollouts: Sequence[Rollout],
    rule: Success | None,
    kind: RewardKind,
    by_family: Mapping[str, Evaluation] | None = None,
) -> Evaluation:
    """Summarise rollouts without grouping them by family."""
    outcomes: list[RolloutOutcome] = []
    for rollout in rollouts:
        reward, failure, last = rollout.reward, rollout.last.failure, rollout.last
        outcomes.append(
            RolloutOutcome(
                rollout.task.id,
                reward and reward.value,
                is_success(rollout, rule),
                failure and failure.cause.value,
                failure.message if failure else "",
                bool(last.calls) or last.stop != "answer",
            )
        )
    sums, wins = sum_outcomes(outcomes, kind), [o.success for o in outcomes if o.reward is not None]
    return Evaluation(
        **{entry.name: getattr(sums, entry.name) for entry in fields(sums)},
        played=rollouts,
        kind=kind,
        solved=sum(wins) / max(1, len(wins)),
        by_family=by_family or {},
    )


def sum_outcomes(outcomes: Sequence[RolloutOutcome], kind: RewardKind) -> OutcomeSums:
    """Compute the counts and rates of rollout outcomes."""
    judged = [j for j in outcomes if j.reward is not None]
    rewards, tasks = [j.reward or 0.0 for j in judged], [j.task for j in judged]
    wins = [j.success for j in judged]
    flag = not too_many_lost(len(judged), len(outcomes))
    defined = flag and kind.has_success
    lost = [j for j in outcomes if j.reward is None]
    return OutcomeSums(
        rollouts=len(outcomes),
        tasks=len({j.task for j in outcomes}),
        judged=len(judged),
        lost=dict(Counter(j.cause or "not ended" for j in lost).most_common()),
        failed=dict(Counter(j.cause for j in judged if j.cause is not None).most_common()),
        reason=next((j.message for j in lost if j.message), ""),
        no_calls=sum(j.cause is None and not j.called for j in judged),
        success=sum(wins) / len(wins) if defined else None,
        interval=rate_interval(wins, tasks) if defined else None,
        mean_reward=sum(rewards) / len(rewards) if flag else None,
        reward_interval=_reward_interval(rewards, tasks) if flag else None,
    )


def _reward_interval(rewards: Sequence[float], tasks: Sequence[str]) -> tuple[float, float] | None:
    """Return the 95 % interval of a mean reward: the Wilson interval if all rewards are 0 or 1,
    else a t-interval, clipped to 0..1 if all rewards are in that range."""
    if all(map(_is_binary, rewards)):
        return rate_interval([reward > 0.5 for reward in rewards], tasks)
    ends = mean_interval(rewards, tasks)
    if ends is None or not all(0 <= reward <= 1 for reward in rewards):
        return ends
    return max(0.0, ends[0]), min(1.0, ends[1])


def _mean_rewards_by_task(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return the mean reward of each task over its judged rollouts."""
    mapping: dict[str, list[float]] = {}
    for rollout in rollouts:
        if rollout.reward is not None:
            mapping.setdefault(rollout.task.id, []).append(rollout.reward.value)
    return {task: sum(values) / len(values) for task, values in mapping.items()}


def _is_binary(value: float) -> bool:
    """Return True if a reward is 0 or 1."""
    return abs(value) < 1e-9 or abs(value - 1) < 1e-9
