"""What a policy loss takes where nobody says otherwise: resolved, printed, and used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.marks import long

from tutelage import RL
from tutelage.config import Resolved

from .samples import config, make_batch, step_of_rollouts
from .test_update import gradient

LOSS = "actor.policy_loss.loss_mode"
AGGREGATION = "actor.loss_agg_mode"
LOW, HIGH = "actor.clip_ratio_low", "actor.clip_ratio_high"
OWN = [
    ("vanilla", "token-mean", 0.2, 0.2),
    ("gspo", "seq-mean-token-mean", 0.0003, 0.0004),
    ("cispo", "token-mean", 1.0, 0.2),
    ("sapo", "seq-mean-token-mean", None, None),
    ("gpg", "token-mean", None, None),
    ("geo_mean", "seq-mean-token-mean", 0.4, 0.4),
    ("clip_cov", "token-mean", 1.0, 1.0),
    ("kl_cov", "token-mean", None, None),
]


def resolved(recipe: str = "math", **keys: Any) -> Resolved:
    """What a command or a script resolves keys to; they are written with `__` for dots."""
    return RL(**{name.replace("__", "."): value for name, value in keys.items()}).resolve(recipe)


def printed(found: Resolved) -> dict[str, Any]:
    """The table of a dry run: values by key."""
    return {key: value for key, value, _, _ in found.to_table()}


@pytest.mark.parametrize(("loss", "aggregation", "low", "high"), OWN)
def test_the_resolved_configuration_prints_what_a_loss_takes(
    loss: str, aggregation: str, low: float | None, high: float | None
) -> None:
    found = resolved(**{LOSS: loss, "algorithm.adv_estimator": "grpo"})
    table = printed(found)
    if loss == "vanilla":  # the embedded job's preset is made for it
        low, high = 0.2, 0.28
    assert (table[AGGREGATION], table[LOW], table[HIGH]) == (aggregation, low, high)
    assert found.warnings == ()
    if loss == "gspo":
        assert found.origin[LOW] == found.origin[AGGREGATION] == f"derived from {LOSS}"


def test_the_embedded_job_keeps_its_preset() -> None:
    found = resolved()
    table = printed(found)
    assert (table[AGGREGATION], table[LOW], table[HIGH]) == ("token-mean", 0.2, 0.28)
    assert found.origin[LOW].startswith("preset math")
    assert table["actor.policy_loss.ppo_kl_coef"] == 0.1


@pytest.mark.parametrize(
    "chosen", [{AGGREGATION: "token-mean"}, {LOW: 0.2}, {"actor.clip_ratio": 0.2}]
)
def test_a_choice_wins(chosen: dict[str, Any]) -> None:
    found = resolved(**{LOSS: "gspo", **chosen})
    table = printed(found)
    assert {key: table[key] for key in chosen} == chosen
    if "actor.clip_ratio" in chosen:
        assert table[LOW] is table[HIGH] is None, "both come from it"


@pytest.mark.parametrize("loss", ["gspo", *long("sapo", "geo_mean")])
def test_an_update_averages_by_sequence_where_the_loss_does(
    fresh: Callable[..., Any], loss: str
) -> None:
    """Through the trainer, from a configuration that says nothing of it."""
    policy = fresh("qwen2", 3)
    plain = config(f"{LOSS}={loss}", "actor.entropy_coeff=0.01")
    by_hand = config(
        f"{LOSS}={loss}", "actor.entropy_coeff=0.01", f"{AGGREGATION}=seq-mean-token-mean"
    )
    batch = make_batch(step_of_rollouts(policy, 3), plain)
    found, wanted = (gradient(policy, batch, c)[0] for c in (plain, by_hand))
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
