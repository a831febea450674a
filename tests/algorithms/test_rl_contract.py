"""The public signatures of `tutelage.algorithms.rl`: other parts and users rely on them."""

import inspect
import subprocess
import sys

import pytest
import torch

from tutelage.algorithms import rl

SIGNATURES = {
    "estimate_advantages": "name, rewards_BT, mask_BT, *, groups_B=None, rollouts_B=None, "
    "values_BT=None, baselines_B=None, successes_B=None, gamma=1.0, lam=1.0, norm_by_std=True, "
    "single_member='zero'",
    "kl_penalty": "logp_BT, ref_logp_BT, kind",
    "policy_loss": "mode, logp_BT, old_logp_BT, advantages_BT, mask_BT, *, clip_ratio=None, "
    "clip_ratio_low=None, clip_ratio_high=None, clip_ratio_c=3.0, aggregation=None, "
    "rollouts_B=None, denominator=None, **mode_options",
    "aggregate": "x_BT, mask_BT, mode, *, rollouts_B=None, denominator=None, scale=None",
    "aggregation_denominator": "mask_BT, mode, *, rollouts_B=None, scale=None",
    "value_loss": "values_BT, returns_BT, old_values_BT, mask_BT, *, clip=0.5, rollouts_B=None, "
    "denominator=None",
    "AdaptiveKL": "coef, target, horizon",
    "importance_weights": "log_ratio_BT, mask_BT, level, cap, *, rollouts_B=None",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name):
    parameters = inspect.signature(getattr(rl, name)).parameters.values()
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    assert str(inspect.Signature(bare)) == f"({SIGNATURES[name]})"


def test_update_of_the_controllers():
    for controller in (rl.AdaptiveKL, rl.FixedKL):
        assert list(inspect.signature(controller.update).parameters) == ["self", "kl", "n"]


def test_names_that_the_config_may_use():
    assert sorted(rl.ESTIMATORS) == [
        "advantage_filtered",
        "best_of_n",
        "gae",
        "gpg",
        "grpo",
        "grpo_passk",
        "maxrl",
        "opo",
        "raft",
        "reinforce_plus_plus",
        "reinforce_plus_plus_baseline",
        "remax",
        "rloo",
    ]
    assert sorted(rl.LOSSES) == [
        "cispo",
        "clip_cov",
        "geo_mean",
        "gpg",
        "gspo",
        "kl_cov",
        "sapo",
        "vanilla",
    ]
    assert sorted(rl.AGGREGATIONS) == [
        "seq-mean-token-mean",
        "seq-mean-token-sum",
        "seq-mean-token-sum-norm",
        "token-mean",
    ]


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
    assert torch.equal(plain, changed) is (setting not in rl.ESTIMATORS[name].reads)
