"""PPO on a batch of trajectories: the functions of the language models, one decision being a token.

`policy.py` has the loss of a minibatch, `rollout.py` the trajectories, `phase2.py` the training.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tutelage.algorithms.rl import estimate_advantages
from tutelage.orchestration.routing.policy import ModelSelector
from tutelage.orchestration.routing.rollout import Trajectories
from tutelage.orchestration.routing.settings import Phase2Settings
from tutelage.seeds import SeedTree


def ppo_update(
    model: ModelSelector,
    optimizer: torch.optim.Optimizer,
    batch: Trajectories,
    settings: Phase2Settings,
    seeds: SeedTree,
) -> dict[str, Any]:
    """Several epochs over one batch of trajectories; returns the metrics of the last epoch."""
    advantages_BT, returns_BT = estimate_advantages(
        "gae",
        batch.rewards_BT,
        batch.mask_BT,
        values_BT=batch.spread(batch.values_D),
        gamma=settings.gamma,
        lam=settings.lambda_gae,
    )
    advantages_D, returns_D = batch.gather(advantages_BT), batch.gather(returns_BT)
    told: list[dict[str, float]] = []
    epochs = 0
    for epoch in range(settings.epochs):
        generator = torch.Generator().manual_seed(seeds.child("order", epoch).value())
        told = []
        for picked in torch.randperm(len(advantages_D), generator=generator).split(
            settings.minibatch_size
        ):
            loss = model.compute_loss(
                states=batch.states.take(picked),
                actions=batch.actions_D[picked],
                old_log_probs=batch.log_probs_D[picked],
                advantages=advantages_D[picked],
                returns=returns_D[picked],
                clip_epsilon=settings.epsilon,
                value_coef=settings.value_coef,
                entropy_coef=settings.entropy_coef,
            )
            optimizer.zero_grad()
            loss["total_loss"].backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
            optimizer.step()
            told.append({name: number.item() for name, number in loss.items()})
        epochs += 1
        if float(np.mean([t["approx_kl"] for t in told])) > settings.target_kl:
            break
    means = {name: float(np.mean([t[name] for t in told])) for name in told[0]}
    return {"train_loss": means.pop("total_loss"), **means, "epochs": epochs}
