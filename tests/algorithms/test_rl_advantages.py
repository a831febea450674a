"""Advantage estimators: agreement with the flat formulas, known answers, the intended differences
from verl, and what each refuses."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import flat_advantages
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rl_batches import Batch, batches

from tutelage.algorithms import rl
from tutelage.algorithms.rl import ESTIMATORS, advantages, count_groups, estimate_advantages, whiten
from tutelage.algorithms.rl.advantages.packed import Estimate
from tutelage.errors import ConfigError

GROUP = [
    "grpo",
    "rloo",
    "reinforce_plus_plus_baseline",
    "opo",
    "gpg",
    "grpo_passk",
    "maxrl",
    "best_of_n",
    "advantage_filtered",
]


def run(name: str, batch: Batch, dtype: torch.dtype = torch.float64, **options):
    return estimate_advantages(
        name,
        batch.tensor("rewards", dtype),
        batch.tensor("mask"),
        groups_B=batch.groups,
        rollouts_B=batch.rollouts,
        values_BT=batch.tensor("values", dtype),
        baselines_B=batch.tensor("baselines", dtype),
        **options,
    )


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def outcome(name: str, scores: list[float], groups: list[str], **options) -> list[float]:
    """Advantages of one-token rollouts."""
    rewards = rows(*([s] for s in scores))
    advantages, _ = estimate_advantages(
        name, rewards, torch.ones_like(rewards), groups_B=groups, **options
    )
    return advantages[:, 0].tolist()


# --- agreement with the formulas -----------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@settings(max_examples=60, deadline=None)
@given(
    batch=batches(),
    gamma=st.sampled_from([1.0, 0.9]),
    lam=st.sampled_from([1.0, 0.8, 0.0]),
    norm=st.booleans(),
    single=st.sampled_from(["zero", "verl"]),
)
def test_agrees_with_the_flat_formula(name, batch, gamma, lam, norm, single):
    if name == "grpo_passk":
        single = "zero"
    options = {"gamma": gamma, "lam": lam, "norm_by_std": norm, "single_member": single}
    got = run(name, batch, **options)
    wanted = flat_advantages.estimate(
        name,
        batch.rewards,
        batch.mask,
        groups=batch.groups,
        rollouts=batch.rollouts,
        values=batch.values,
        baselines=batch.baselines,
        **options,
    )
    for ours, theirs in zip(got, wanted, strict=True):
        # The flat mean of equal rewards is off by a rounding error, over a deviation of 1e-6 (or
        # 1e-4 in whitening): that error and no more.
        torch.testing.assert_close(ours, rows(*theirs), rtol=1e-7, atol=1e-9)


# --- known answers -------------------------------------------------------------------------------


def test_known_answers_of_a_group():
    scores, groups = [1.0, 0.0, 0.0, 1.0], ["a"] * 4
    std = (4 * 0.25 / 3) ** 0.5
    assert outcome("grpo", scores, groups)[0] == pytest.approx(0.5 / (std + 1e-6))
    assert outcome("grpo", scores, groups, norm_by_std=False) == [0.5, -0.5, -0.5, 0.5]
    assert outcome("rloo", scores, groups) == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])
    assert outcome("gpg", scores, groups) == [1.0, -1.0, -1.0, 1.0]
    assert outcome("maxrl", [1, 0, 0, 0], groups) == [3.0, -1.0, -1.0, -1.0]
    assert outcome("maxrl", [0.0] * 4, groups) == [0.0] * 4
    assert outcome("grpo_passk", [0.2, 1.0, 0.5], ["a"] * 3, norm_by_std=False) == [0, 0.5, 0]
    assert outcome("grpo_passk", [1.0, 1.0, 0.5], ["a"] * 3) == [0, 0, 0]


IMITATED = [
    # A cheap success, a dear one, a near miss, a failure.
    ("raft", [1.0, 1.0, 0.7, 0.0], [1, 1, 0, 0]),
    ("best_of_n", [1.0, 0.85, 0.7, 0.0], [1, 0, 0, 0]),
    ("advantage_filtered", [1.0, 0.85, 0.7, 0.0], [1, 1, 1, 0]),
    # The best may be shared, and nobody is above the mean of equals.
    ("best_of_n", [1.0, 1.0, 0.0, 0.0], [1, 1, 0, 0]),
    ("raft", [1.0, 1.0, 1.0, 1.0], [1, 1, 1, 1]),
    ("best_of_n", [1.0, 1.0, 1.0, 1.0], [0, 0, 0, 0]),
    ("advantage_filtered", [1.0, 1.0, 1.0, 1.0], [0, 0, 0, 0]),
    # Where all fail, the least bad is the best, and no success.
    ("raft", [-0.1, -0.5, -0.5, -0.9], [0, 0, 0, 0]),
    ("best_of_n", [-0.1, -0.5, -0.5, -0.9], [1, 0, 0, 0]),
    ("advantage_filtered", [-0.1, -0.5, -0.5, -0.9], [1, 0, 0, 0]),
    # At the mean but for rounding is not above it.
    ("advantage_filtered", [0.1, 0.2, 0.3], [0, 0, 1]),
]


@pytest.mark.parametrize(("name", "scores", "imitated"), IMITATED)
def test_what_an_imitation_imitates(name, scores, imitated):
    assert outcome(name, scores, ["g"] * len(scores)) == imitated
    # Beside another group, whatever its rewards: groups are compared with themselves alone.
    other = [5.0, 0.0]
    groups = ["g"] * len(scores) + ["h"] * 2
    assert outcome(name, scores + other, groups)[: len(scores)] == imitated


def test_raft_takes_whatever_is_said_to_be_a_success():
    scores, won = [0.2, 0.9, 1.0], torch.tensor([True, False, True])
    assert outcome("raft", scores, ["g"] * 3, successes_B=won) == [1, 0, 1]
    rewards = rows([0.0], [0.4])
    split_in_two = estimate_advantages(
        "raft",
        rewards,
        torch.ones_like(rewards),
        rollouts_B=["r", "r"],
        successes_B=torch.tensor([1, 1]),
    )
    assert [a[:, 0].tolist() for a in split_in_two] == [[1, 1], [1, 1]]
    with pytest.raises(ValueError, match="successes_B differs between rows of one rollout"):
        estimate_advantages(
            "raft", rewards, torch.ones_like(rewards), rollouts_B=["r", "r"],
            successes_B=torch.tensor([1, 0]),
        )  # fmt: skip


def test_opo_weighs_rewards_by_trained_tokens():
    rewards = rows([0, 0, 3], [1, 0, 0])
    mask = rows([1, 1, 1], [1, 0, 0])
    advantages, _ = estimate_advantages("opo", rewards, mask, groups_B=["a", "a"])
    baseline = (3 * 3 + 1 * 1) / 4
    assert advantages.tolist() == [[3 - baseline] * 3, [1 - baseline, 0, 0]]


def test_gae_known_answer():
    rewards, values = rows([0, 0, 1]), rows([0.5, 9, 0.25])
    mask = rows([1, 0, 1])
    advantages, returns = estimate_advantages(
        "gae", rewards, mask, values_BT=values, gamma=0.5, lam=0.5
    )
    last = 1 - 0.25
    first = 0.5 * 0.25 - 0.5 + 0.25 * last
    torch.testing.assert_close(returns, rows([first + 0.5, 0, last + 0.25]))
    mean, half = (first + last) / 2, (last - first) / 2
    scale = (2 * half**2 + 1e-8) ** 0.5
    torch.testing.assert_close(advantages, rows([(first - mean) / scale, 0, (last - mean) / scale]))


def test_equal_rewards_give_exactly_zero():
    # The mean of three 0.1 is not 0.1 in floating point; a tiny deviation must not blow that up.
    for name in GROUP:
        rewards = torch.full((3, 1), 0.1, dtype=torch.float32)
        advantages, _ = estimate_advantages(
            name, rewards, torch.ones_like(rewards), groups_B=["a"] * 3
        )
        assert advantages.abs().max() == 0


def test_whiten():
    x, mask = rows([1, 100, 3], [5, 0, 0]), rows([1, 0, 1], [1, 0, 0])
    root = (4 + 1e-8) ** 0.5
    torch.testing.assert_close(whiten(x, mask), rows([-2 / root, 0, 0], [2 / root, 0, 0]))
    assert whiten(x, rows([1, 0, 0], [0, 0, 0])).abs().sum() == 0
    assert whiten(x, torch.zeros_like(mask)).abs().sum() == 0


# --- the laws ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_rollouts_without_a_trained_token(name):
    rewards, mask = rows([0, 1.0], [0, 1], [0, 0.5]), rows([1, 1], [0, 0], [1, 0])
    options = {"values_BT": rewards, "baselines_B": torch.zeros(3).double()}
    advantages, returns = estimate_advantages(
        name, rewards, mask, groups_B=["a", "a", "a"], **options
    )
    assert torch.isfinite(advantages).all()
    assert torch.isfinite(returns).all()
    assert advantages[1].abs().sum() == 0
    nothing, _ = estimate_advantages(
        name, rewards, torch.zeros_like(mask), groups_B=["a", "a", "a"], **options
    )
    assert nothing.abs().sum() == 0
    none = torch.zeros(0, 2)
    options = {"values_BT": none, "baselines_B": torch.zeros(0)}
    empty, _ = estimate_advantages(name, none, none, groups_B=[], **options)
    assert empty.shape == (0, 2)


def test_an_empty_rollout_counts_in_its_group():
    rewards, mask = rows([1.0], [0.0]), rows([1], [0])
    advantages, _ = estimate_advantages("rloo", rewards, mask, groups_B=["a", "a"])
    assert advantages.tolist() == [[1.0], [0.0]]


# --- where we differ from verl on purpose --------------------------------------------------------


def test_difference_a_returns_go_on_across_observations():
    rewards, mask = rows([0, 0, 0, 1]), rows([1, 1, 0, 1])
    _, returns = estimate_advantages("reinforce_plus_plus", rewards, mask, gamma=0.5)
    # verl resets at the observation: 0, 0 for the first turn.
    assert returns.tolist() == [[0.25, 0.5, 0, 1]]


@pytest.mark.parametrize("name", ["gae", "remax", "reinforce_plus_plus"])
def test_difference_b_a_reward_on_a_masked_token_moves_to_the_last_trained_token(name):
    mask = rows([1, 1, 0], [1, 0, 1])
    options = {"values_BT": torch.zeros_like(mask), "baselines_B": torch.zeros(2).double()}
    stray = estimate_advantages(name, rows([0, 0, 1], [0, 1, 0]), mask, **options)
    placed = estimate_advantages(name, rows([0, 1, 0], [0, 0, 1]), mask, **options)
    for ours, expected in zip(stray, placed, strict=True):
        torch.testing.assert_close(ours, expected)
    assert stray[1].tolist() == [[1, 1, 0], [1, 0, 1]]


def test_difference_b_across_rows_of_a_rollout():
    # The stray reward of the first row belongs at the end of the rollout, in the second row.
    mask = rows([1, 0], [0, 1])
    _, returns = estimate_advantages(
        "remax",
        rows([0, 1], [0, 0]),
        mask,
        rollouts_B=["r", "r"],
        baselines_B=torch.zeros(2).double(),
    )
    assert returns.tolist() == [[1, 0], [0, 1]]


def test_difference_d_statistics_are_per_rollout():
    # Rollout x became two rows. Per row the group would be [0, 1, 0] with mean 1/3.
    rewards, mask = rows([0, 0], [0, 1], [0, 0]), rows([1, 1], [1, 1], [1, 0])
    ids = {"groups_B": ["g"] * 3, "rollouts_B": ["x", "x", "y"]}
    for name, x, y in [
        ("rloo", 1.0, -1.0),
        ("gpg", 1.0, -1.0),  # B = 2 rollouts, one of them rewarded, times 1/2
        ("opo", 1 / 5, -4 / 5),  # lengths 4 and 1
    ]:
        advantages, _ = estimate_advantages(name, rewards, mask, **ids)
        torch.testing.assert_close(advantages, rows([x, x], [x, x], [y, 0]))
    _, returns = estimate_advantages("reinforce_plus_plus", rewards, mask, gamma=0.5, **ids)
    assert returns.tolist() == [[0.125, 0.25], [0.5, 1], [0, 0]]
    values = rows([0, 0], [0, 0], [0, 0])
    _, returns = estimate_advantages("gae", rewards, mask, values_BT=values, gamma=0.5, **ids)
    assert returns.tolist() == [[0.125, 0.25], [0.5, 1], [0, 0]]


@pytest.mark.parametrize("name", GROUP)
def test_difference_e_a_group_of_one_teaches_nothing(name):
    advantages = outcome(name, [1.0, 0.0, 0.7], ["a", "a", "alone"])
    assert advantages[2] == 0
    assert advantages[0] != 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [("grpo", 0.7), ("rloo", 0.7), ("opo", 0.7), ("gpg", 0.7), ("maxrl", 0.0)],
)
def test_a_group_of_one_as_in_verl(name, expected):
    assert outcome(name, [0.7], ["alone"], single_member="verl") == pytest.approx(
        [expected], rel=2e-6
    )


def test_a_group_of_one_as_in_verl_whitened_or_refused():
    lone = outcome("reinforce_plus_plus_baseline", [0.7, 0.1], ["a", "b"], single_member="verl")
    scale = (0.18 + 1e-8) ** 0.5
    assert lone == pytest.approx([0.3 / scale, -0.3 / scale])
    with pytest.raises(ConfigError, match=r"agent\.num_chains"):
        outcome("grpo_passk", [0.7], ["alone"], single_member="verl")


def test_lonely_rollouts_stay_out_of_the_whitening():
    with_lone = outcome("reinforce_plus_plus_baseline", [1, 0, 1, 0, 9], [*"aabb", "alone"])
    without = outcome("reinforce_plus_plus_baseline", [1, 0, 1, 0], [*"aabb"])
    assert with_lone == [*without, 0]


def test_groups_without_contrast_are_counted():
    rewards = rows([1], [0], [0.5], [0.5], [1], [1], [0])
    counts = count_groups(
        rewards,
        torch.ones_like(rewards),
        ["mixed", "mixed", "flat", "flat", "one", "two-rows", "two-rows"],
        rollouts_B=[0, 1, 2, 3, 4, 5, 5],
    )
    assert counts == (4, 2, 1)


# --- ids and refusals ----------------------------------------------------------------------------


def test_refuses_what_it_cannot_mean():
    rewards = rows([0, 1])
    with pytest.raises(ConfigError, match="'grppo'; did you mean 'grpo'"):
        estimate_advantages("grppo", rewards, rewards, groups_B=["a"])
    with pytest.raises(ConfigError, match=r"single_member='zeros'.*did you mean 'zero'"):
        estimate_advantages("rloo", rewards, rewards, groups_B=["a"], single_member="zeros")
    with pytest.raises(ValueError, match="need groups_B"):
        estimate_advantages("rloo", rewards, rewards)
    with pytest.raises(ValueError, match="length 2 for 1 row;"):
        estimate_advantages("rloo", rewards, rewards, groups_B=["a", "b"])
    two = rows([0], [1])
    with pytest.raises(ValueError, match="groups_B differs between rows of one rollout"):
        estimate_advantages("rloo", two, two, groups_B=["a", "b"], rollouts_B=["r", "r"])


# ------------------------------------------------------------ what others rely on


def test_every_public_name_exists_and_algorithms_is_light():
    assert all(hasattr(rl, name) for name in rl.__all__)
    code = "import sys, tutelage.algorithms; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


SETTINGS = {
    "algorithm.gamma": {"gamma": 0.5},
    "algorithm.lam": {"lam": 0.5},
    "algorithm.norm_adv_by_std_in_grpo": {"norm_by_std": False},
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", sorted(rl.ESTIMATORS))
def test_an_estimator_reads_the_settings_that_it_declares_and_no_others(name, setting):
    """What it does not read is listed as a key without effect."""
    torch.manual_seed(0)
    mask = torch.ones(4, 3)
    rewards = torch.tensor([[0.1, 0, 1.0], [0, 0.2, 0.0], [0.3, 0, 1.0], [0, 0, 0.7]])
    given = {"groups_B": [0, 0, 1, 1], "values_BT": torch.rand(4, 3), "baselines_B": torch.rand(4)}
    plain, _ = rl.estimate_advantages(name, rewards, mask, **given)
    changed, _ = rl.estimate_advantages(name, rewards, mask, **given, **SETTINGS[setting])
    assert torch.equal(plain, changed) is (setting not in rl.ESTIMATORS[name].config_keys)


def test_an_estimator_that_divides_by_zero_is_named() -> None:
    batch: Any = SimpleNamespace(mask_NL=torch.tensor([[True, False]]))
    values_NL = torch.tensor([[float("nan"), 0.0]])
    with pytest.raises(ConfigError, match=r"adv_estimator='mine.py:spread' returned NaN"):
        advantages._check_estimate("mine.py:spread", Estimate(values_NL, values_NL), batch)
