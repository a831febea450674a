"""The public signatures of `tutelage.algorithms.rl`: other parts and users rely on them."""

import subprocess
import sys

import pytest
import torch

from tutelage.algorithms import rl


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
