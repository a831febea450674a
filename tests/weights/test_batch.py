"""Rollouts to a batch: what is counted, what is left out, and what stands on which token."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference.flat_advantages import estimate

from tutelage.algorithms.rl import ESTIMATORS
from tutelage.errors import FailureBudgetError
from tutelage.types import Call, FailureCause, Rollout
from tutelage.weights.batch import add_advantages, make_rows

from .samples import config, conversation, make_batch, rollout

CAUSES = list(FailureCause)


class Uniform:
    """A stand-in for a policy: every token has the same log-probability."""

    config = SimpleNamespace(model_type="uniform")

    def named(self) -> Any:
        return iter(())

    def score(self, rows: Any) -> Any:
        class Scores:
            logp_K = torch.full((sum(sum(r.mask) for r in rows),), -1.5)

        return Scores


UNIFORM = Uniform()


def turns(rng: random.Random, count: int, *, broken: bool = False) -> list[Call]:
    """The calls of one rollout."""
    return conversation(UNIFORM, rng, turns=count, broken=broken, noise=0.2)


def test_what_stands_on_each_token() -> None:
    rng = random.Random(0)
    first, second = turns(rng, 2), turns(rng, 3)
    batch = make_batch([rollout("a", "g", first, 1.0), rollout("b", "g", second, 0.0)], config())
    assert batch.rollouts_B == [0, 1]
    for b, calls in enumerate((first, second)):
        row = batch.rows[b]
        assert row.ids == calls[-1].prompt_ids + calls[-1].sampled.token_ids
        sampled = [t for c in calls for t in c.sampled.token_ids]
        told = [x for c in calls for x in c.sampled.logprobs]
        mask = batch.mask_BT[b, : len(row.ids)]
        assert [row.ids[i] for i in mask.nonzero()[:, 0].tolist()] == sampled
        assert torch.allclose(batch.old_logp_BT[b][batch.mask_BT[b]], torch.tensor(told))
        assert not batch.advantages_BT[b][~batch.mask_BT[b]].any(), "law 2: observations have none"
        assert not batch.mask_BT[b, len(row.ids) :].any()
    # GRPO: (1 - 0.5) / std and (0 - 0.5) / std, on every trained token alike.
    up, down = (batch.advantages_BT[b][batch.mask_BT[b]] for b in (0, 1))
    assert len(up.unique()) == len(down.unique()) == 1
    assert float(up[0]) == pytest.approx(0.5 / 0.5**0.5, rel=1e-4)
    assert float(down[0]) == -float(up[0])


def test_a_rollout_of_several_rows_is_one_rollout() -> None:
    """It counts once in its group, and all of its rows get its advantage."""
    rng = random.Random(1)
    rollouts = [
        rollout("a", "g", turns(rng, 3, broken=True), 1.0),
        rollout("b", "g", turns(rng, 1), 0.0),
        rollout("c", "g", turns(rng, 2), 0.0),
    ]
    batch = make_batch(rollouts, config())
    assert batch.rollouts_B == [0, 0, 0, 1, 2]
    assert batch.groups == 1
    values = [set(batch.advantages_BT[b][batch.mask_BT[b]].tolist()) for b in range(5)]
    assert all(len(v) == 1 for v in values)
    assert values[0] == values[1] == values[2]
    mean, std = 1 / 3, torch.tensor([1.0, 0.0, 0.0]).std()
    assert values[0].pop() == pytest.approx((1 - mean) / float(std), rel=1e-4)
    assert values[3].pop() == pytest.approx((0 - mean) / float(std), rel=1e-4)


@pytest.mark.parametrize("cause", CAUSES)
def test_who_is_to_blame_decides_what_counts(cause: FailureCause) -> None:
    """An agent's failure counts with its failure reward; what infrastructure lost does not."""
    rng = random.Random(2)
    clean = [rollout("a", "g", turns(rng, 1), 1.0), rollout("b", "g", turns(rng, 1), 1.0)]
    reward = None if cause.infrastructure else 0.0
    failed = rollout("c", "g", turns(rng, 2), reward, cause=cause)
    batch = make_batch([*clean, failed], config())
    if cause.infrastructure:
        assert len(batch.rows) == 2
        assert batch.zero_variance == 1
        assert not batch.advantages_BT.any()
    else:
        assert len(batch.rows) == 3
        assert batch.zero_variance == 0
        assert (batch.advantages_BT[2][batch.mask_BT[2]] < 0).all()


@pytest.mark.parametrize("cause", [FailureCause.AGENT_ERROR, FailureCause.TIMEOUT])
def test_a_crash_before_the_first_token_keeps_its_group_from_being_flat(
    cause: FailureCause,
) -> None:
    rng = random.Random(5)
    made = [rollout(f"{i}", "g", turns(rng, 1), 1.0) for i in range(3)]
    made.append(rollout("crash", "g", [], 0.0, cause=cause))
    batch = make_batch(made, config())
    assert (batch.groups, batch.zero_variance, batch.single_member) == (1, 0, 0)
    assert (batch.advantages_BT[batch.mask_BT] > 0).all()


def test_a_group_of_crashes_alone_is_flat_and_not_closed() -> None:
    rng = random.Random(6)
    made = [rollout(f"{i}", "g", turns(rng, 1), float(i)) for i in range(2)]
    made += [rollout(f"c{i}", "h", [], 0.0, cause=FailureCause.AGENT_ERROR) for i in range(2)]
    batch = make_batch(made, config())
    assert (batch.groups, batch.zero_variance, batch.single_member) == (2, 1, 0)


@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
@given(seed=st.integers(0, 10_000))
@settings(max_examples=12, deadline=None)
def test_every_estimator_counts_rollouts_without_a_row(estimator: str, seed: int) -> None:
    """As the slow, flat formulas do when a rollout without a trained token is a row of mask 0."""
    rng = random.Random(seed)
    made: list[Rollout] = []
    for g in range(rng.randint(1, 3)):
        for m in range(rng.randint(1, 4)):
            # One that is sampled in each group and batch; the others may have crashed at once.
            calls = turns(rng, rng.randint(1, 2), broken=rng.random() < 0.4)
            empty = m > 0 and rng.random() < 0.4
            reward = rng.choice([0.0, 0.5, 1.0])
            made.append(rollout(f"{g}-{m}", f"g{g}", [] if empty else calls, reward))
    baselines = {r.group: rng.choice([0.0, 0.5]) for r in made}
    found = make_rows(made, config())
    values_BT = torch.randn(found.mask_BT.shape, generator=torch.Generator().manual_seed(seed))
    setting = config(f"algorithm.adv_estimator={estimator}", "agent.num_chains=4")
    batch = add_advantages(
        found,
        setting,
        values_BT=values_BT if estimator == "gae" else None,
        baselines=baselines if estimator == "remax" else None,
    )

    counted = [r for r in made if r.reward is not None]
    silent = [i for i, r in enumerate(counted) if not r.last.calls]
    width = found.mask_BT.shape[1]
    blank = [[0.0] * width for _ in silent]
    owners = [*found.rollouts_B, *silent]
    rewards = [*found.rewards_BT.tolist(), *blank]
    for row, number in enumerate(silent, start=len(found.rows)):
        rewards[row] = [*rewards[row][:-1], counted[number].reward.value]  # type: ignore[union-attr]
    expected, returned = estimate(
        estimator,
        rewards,
        [*found.mask_BT.int().tolist(), *([0] * width for _ in silent)],
        groups=[counted[i].group for i in owners],
        rollouts=owners,
        values=[*values_BT.tolist(), *blank],
        baselines=[baselines[counted[i].group] for i in owners],
        single_member="zero",
    )
    rows = len(found.rows)
    assert batch.advantages_BT.shape == found.mask_BT.shape
    assert torch.allclose(batch.advantages_BT, torch.tensor(expected[:rows]), atol=1e-3)
    assert torch.allclose(batch.returns_BT, torch.tensor(returned[:rows]), atol=1e-3)


def test_a_rollout_of_another_policy_alone_is_no_sample_of_this_one() -> None:
    """Two policies share groups; a crash before either spoke counts for both."""
    rng = random.Random(7)

    def said(name: str, policy: str | None, reward: float) -> Rollout:
        return rollout(name, "g", [replace(c, policy=policy) for c in turns(rng, 1)], reward)

    made = [
        said("a", "main", 1.0),
        said("b", "main", 1.0),
        said("c", "critic", 0.0),
        said("d", "critic", 1.0),
    ]
    crash = rollout("e", "g", [], 0.0, cause=FailureCause.AGENT_ERROR)
    untrained = said("f", None, 0.0)
    for name, rewards in (("main", [1.0, 1.0]), ("critic", [0.0, 1.0])):
        alone = make_rows(made, config(), name)
        assert alone.rowless == []
        assert alone.rewards_BT.sum(1).tolist() == rewards
        with_crash = make_rows([*made, crash, untrained], config(), name)
        assert with_crash.rowless == [4, 5]
    assert add_advantages(make_rows(made, config()), config()).zero_variance == 1
    assert add_advantages(make_rows([*made, crash], config()), config()).zero_variance == 0


@pytest.mark.parametrize(("lost", "stops"), [(4, False), (5, True), (8, True)])
def test_the_failure_budget(lost: int, stops: bool) -> None:
    """More than half of a step lost to infrastructure: the run stops and gives the reason."""
    rng = random.Random(6)
    causes = [FailureCause.ENGINE_ERROR, FailureCause.REWARD_ERROR, FailureCause.ENGINE_ERROR]
    rollouts = [
        rollout(f"{i}", "g", turns(rng, 1), None, cause=causes[i % 3])
        if i < lost
        else rollout(f"{i}", "g", turns(rng, 1), float(i % 2))
        for i in range(8)
    ]
    if not stops:
        assert len(make_batch(rollouts, config()).rows) == 8 - lost
        return
    with pytest.raises(FailureBudgetError) as caught:
        make_batch(rollouts, config())
    told = str(caught.value)
    assert told.startswith(f"{lost} of 8 rollouts of a step failed (")
    assert "x engine error" in told
    assert "x no reward" in told
    assert told.endswith("First error: engine_error of 0")
    assert caught.value.exit_code == 1


def test_nothing_sampled_at_all_stops_the_run() -> None:
    empty = [rollout(f"{i}", "g", [], 0.0, stop="context") for i in range(3)]
    empty.append(rollout("t", "g", [], 0.0, cause=FailureCause.TIMEOUT))
    with pytest.raises(FailureBudgetError, match=r"none of 4 .* \(3 x context, 1 x timeout\)"):
        make_batch(empty, config())


def test_calls_that_others_made_are_told_from_no_calls() -> None:
    (one,) = turns(random.Random(0), 1)
    played = [rollout(f"{i}", "g", [replace(one, policy=None)], 1.0) for i in range(4)]
    with pytest.raises(FailureBudgetError, match="no call of the agents 'main' trains") as stopped:
        make_batch(played, config())
    assert "never called" not in str(stopped.value)


def test_a_group_that_closed_with_fewer_than_two_teaches_nothing_and_is_counted() -> None:
    rng = random.Random(3)
    lost = FailureCause.CANCELLED
    made = [
        rollout("a0", "a", turns(rng, 1), 1.0),
        rollout("a1", "a", turns(rng, 1), None, cause=lost),
        rollout("b0", "b", turns(rng, 1), 1.0),
        rollout("b1", "b", turns(rng, 1), 0.0),
        rollout("c0", "c", turns(rng, 1), None, cause=lost),
        rollout("d0", "d", turns(rng, 1), 0.5),
        rollout("d1", "d", turns(rng, 1), 0.5),
    ]
    batch = make_batch(made, config())
    assert (batch.groups, batch.single_member, batch.zero_variance) == (4, 2, 1)
    assert not batch.advantages_BT[0].any()
    assert batch.advantages_BT[1].any()
