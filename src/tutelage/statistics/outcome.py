"""What rollouts add up to: the one owner of success rates and mean rewards.

A rollout without a reward is *lost*: infrastructure failed, so it is no evidence. A *failed* one (a
timeout, an agent that raised) counts with the reward of failures, and is named by its cause. Where
more than `LOST` of the rollouts are lost, what is left may be a biased part, so there is no rate
and no mean, only counts and the cause.

*Success* is what the environment says (`info["success"]`), else what the user says it is
(`reward.success`), else the grader's own part `exact`, else a reward of 1 where every reward is 0
or 1. A graded reward without any of them has no success. The headline of a graded reward is its
mean. `RewardKind` keeps both one for a whole run, so that rows of one table are of one kind.

`runs/stored_evaluation.py` reads back what `Evaluation.record` wrote, and words it; `intervals.py`
has the intervals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from tutelage.config.fields import read_success
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
"""Share of rollouts without a judgement above which no rate and no mean is told."""
FULL = 1.0 - 1e-9
"""From which on a reward counts as 1."""


def cause_words(cause: str) -> str:
    """A cause of failure as people read it; files and metrics have its value."""
    words = {"reward_error": "no reward", "answer_error": "reward raised"}
    return words.get(cause, cause.replace("_", " "))


@dataclass(frozen=True, slots=True)
class Success:
    """What counts as success: the reward, or a part of it, reaches a bound."""

    part: str | None
    least: float

    @staticmethod
    def of(text: str | None) -> Success | None:
        """Read `right`, `>=0.5` or `right>=0.5`, as `reward.success` has it; None stays None."""
        if text is None:
            return None
        part, least = read_success(text)
        return Success(part, FULL if least is None else least - 1e-9)

    def met(self, reward: Reward, where: str) -> bool:
        """Whether a reward is a success. Raises `RewardError` where it has no such part."""
        if self.part is None:
            return reward.value >= self.least
        if self.part not in reward.parts:
            known = ", ".join(map(repr, reward.parts)) or "none"
            raise RewardError(
                f"reward.success={self.part!r} is not a part of the reward of {where}; its parts "
                f"are: {known}. Return it beside 'reward', or use another part"
            )
        return reward.parts[self.part] >= self.least


@dataclass(frozen=True, slots=True)
class RewardKind:
    """What the rewards of a run are: decided once, for all of its numbers."""

    graded: bool = False
    """Some reward was neither 0 nor 1."""
    has_success: bool = True
    """Every reward said whether its rollout succeeded."""

    def after(self, rollouts: Iterable[Rollout], rule: Success | None = None) -> RewardKind:
        """The kind when these have been seen too. What failed earned no reward of the grader's."""
        kind = self
        for rollout in rollouts:
            reward = rollout.reward
            if reward is not None and rollout.last.failure is None:
                whole = _is_whole(reward.value)
                said = SUCCESS in (rollout.last.info or {})
                known = rule is not None or said or EXACT in reward.parts or whole
                kind = RewardKind(kind.graded or not whole, kind.has_success and known)
        return kind


UNSEEN = RewardKind()
"""Of a run that has seen no reward yet."""


@dataclass(frozen=True, slots=True)
class RolloutOutcome:
    """What became of one rollout: its reward, None where it was lost, and why it failed."""

    task: str
    reward: float | None
    success: bool
    cause: str | None = None
    message: str = ""
    called: bool = True
    """Whether a model was called."""


@dataclass(frozen=True, slots=True)
class OutcomeSums:
    """What judgements add up to; every rate is over the rollouts that were judged."""

    rollouts: int
    tasks: int
    judged: int
    lost: Mapping[str, int]
    """Rollouts without a reward, by cause."""
    failed: Mapping[str, int]
    """Judged ones that failed and count with the reward of failures, by cause."""
    reason: str
    """What the first of the lost ones said."""
    no_calls: int
    """Judged ones that did not fail and made no model call."""
    success: float | None
    """None where success is not defined, or too many rollouts were lost."""
    interval: tuple[float, float] | None
    """95 % interval of the success rate."""
    mean_reward: float | None
    """None where too many rollouts were lost."""
    reward_interval: tuple[float, float] | None

    def record(self) -> JSON:
        """As JSON, for result files; `runs/stored_evaluation.py` reads it."""
        record: JSON = {entry.name: getattr(self, entry.name) for entry in fields(OutcomeSums)}
        record |= {name: dict(record[name]) for name in ("lost", "failed")}
        ends = {n: record[n] for n in ("interval", "reward_interval")}
        return record | {n: end and list(end) for n, end in ends.items()}


@dataclass(frozen=True, slots=True, repr=False)
class Evaluation(OutcomeSums):
    """What rollouts add up to; `str()` is a few lines."""

    played: Sequence[Rollout]
    kind: RewardKind
    solved: float
    """The share that succeeded, or where success is not defined that earned at least 1. A cold
    start is steered by it; it is shown to nobody."""
    by_family: Mapping[str, Evaluation] = field(default_factory=dict[str, "Evaluation"])
    in_training: int | None = None
    """How many of the tasks the policy was trained on; None where that is not known."""
    repeated: int = 0
    """How many of the tasks repeat another one."""
    cost: Cost = field(default_factory=Cost)
    """The cost of the model calls, where it was counted."""

    @property
    def ungraded(self) -> str:
        """What the first rollout failed of, where the grader could judge none; empty elsewhere."""
        if self.judged > self.failed.get(FailureCause.ANSWER_ERROR.value, 0):
            return ""
        return next((r.last.failure.message for r in self.played if r.last.failure), "no reward")

    def compare(self, other: Evaluation, seed: int = 0) -> Difference:
        """The mean reward of `other` less this one's, paired by task, with its 95 % interval.

        Raises `DataError` where the two have no judged task in common.
        """
        first, second = _by_task(self.played), _by_task(other.played)
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
    """Whether so few of the rollouts were judged that they tell no rate."""
    return rollouts - judged > LOST * rollouts or judged == 0


def succeeded(rollout: Rollout, rule: Success | None = None) -> bool:
    """Whether a rollout succeeded: as its environment says, else by the rule, else by its part
    `exact`, else by a reward of 1."""
    reward = rollout.reward
    said = (rollout.last.info or {}).get(SUCCESS)
    if reward is None or (rollout.last.failure is not None and (rule or said) is not None):
        return False
    if said is not None:
        return bool(said)
    if rule is not None:
        return rule.met(reward, f"task {rollout.task.id!r}")
    if EXACT in reward.parts:
        return reward.parts[EXACT] >= FULL
    return reward.value >= FULL


def summarise(
    rollouts: Sequence[Rollout], rule: Success | None = None, kind: RewardKind | None = None
) -> Evaluation:
    """Add rollouts up: all, those of each family, and those of tasks whose templates training has
    seen or not. `kind` is the run's, where more than these decide it."""
    kind = kind or RewardKind().after(rollouts, rule)
    families: dict[str, list[Rollout]] = {}
    templates: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        family, template = map(rollout.task.fields.get, ("family", "template"))
        if isinstance(family, str):
            families.setdefault(family, []).append(rollout)
        if template in ("seen", "unseen"):
            templates.setdefault(f"{template} templates", []).append(rollout)
    groups = [*sorted(families.items()), *sorted(templates.items())]
    by_family = {name: _add_up(some, rule, kind) for name, some in groups}
    return _add_up(rollouts, rule, kind, by_family)


def _add_up(
    rollouts: Sequence[Rollout],
    rule: Success | None,
    kind: RewardKind,
    by_family: Mapping[str, Evaluation] | None = None,
) -> Evaluation:
    outcomes: list[RolloutOutcome] = []
    for rollout in rollouts:
        reward, failure, last = rollout.reward, rollout.last.failure, rollout.last
        outcomes.append(
            RolloutOutcome(
                rollout.task.id,
                reward and reward.value,
                succeeded(rollout, rule),
                failure and failure.cause.value,
                failure.message if failure else "",
                bool(last.calls) or last.stop != "answer",
            )
        )
    sums, wins = add_up(outcomes, kind), [o.success for o in outcomes if o.reward is not None]
    return Evaluation(
        **{entry.name: getattr(sums, entry.name) for entry in fields(sums)},
        played=rollouts,
        kind=kind,
        solved=sum(wins) / max(1, len(wins)),
        by_family=by_family or {},
    )


def add_up(some: Sequence[RolloutOutcome], kind: RewardKind) -> OutcomeSums:
    """The sums of judgements, whatever made them."""
    judged = [j for j in some if j.reward is not None]
    rewards, tasks = [j.reward or 0.0 for j in judged], [j.task for j in judged]
    wins = [j.success for j in judged]
    flag = not too_many_lost(len(judged), len(some))
    defined = flag and kind.has_success
    lost = [j for j in some if j.reward is None]
    return OutcomeSums(
        rollouts=len(some),
        tasks=len({j.task for j in some}),
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
    """95 % interval of a mean reward. Rewards that are all 0 or 1 are a proportion and get
    Wilson's, others a t-interval, cut to 0..1 where every reward lies there: a t-interval of few
    tasks is symmetric and leaves the range that the mean can have."""
    if all(map(_is_whole, rewards)):
        return rate_interval([reward > 0.5 for reward in rewards], tasks)
    ends = mean_interval(rewards, tasks)
    if ends is None or not all(0 <= reward <= 1 for reward in rewards):
        return ends
    return max(0.0, ends[0]), min(1.0, ends[1])


def _by_task(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """The mean reward of each task, of its rollouts that were judged."""
    mapping: dict[str, list[float]] = {}
    for rollout in rollouts:
        if rollout.reward is not None:
            mapping.setdefault(rollout.task.id, []).append(rollout.reward.value)
    return {task: sum(values) / len(values) for task, values in mapping.items()}


def _is_whole(value: float) -> bool:
    return abs(value) < 1e-9 or abs(value - 1) < 1e-9
