"""What a user's file adds is called once with a few numbers, before any model loads.

A mistake in an estimator or a loss would otherwise show only after the cold start, minutes later.
"""

from __future__ import annotations

import torch

from tutelage.algorithms.extensions import LOSSES
from tutelage.algorithms.rl.advantages import estimate_advantages
from tutelage.algorithms.rl.losses import policy_loss
from tutelage.config import RunConfig
from tutelage.tools.loading import is_file_reference
from tutelage.weights.loss import options_of

TOKENS = 4


def try_extensions(config: RunConfig) -> None:
    """Call the estimators and the loss that are in the user's files, on two groups of short
    rollouts. Raises `ConfigError` for what they raise or return."""
    with torch.random.fork_rng(devices=[]):  # what they draw here is nobody's
        for name in {config.algorithm.adv_estimator, config.trainer.control}:
            if is_file_reference(name):
                members, rule = config.agent.num_chains, config.algorithm
                rewards_BT = torch.zeros(2 * members, TOKENS)
                rewards_BT[::2, -1] = 1.0
                estimate_advantages(
                    name,
                    rewards_BT,
                    torch.ones_like(rewards_BT, dtype=torch.bool),
                    groups_B=[row // members for row in range(2 * members)],
                    rollouts_B=range(2 * members),
                    values_BT=torch.zeros_like(rewards_BT),
                    baselines_B=torch.zeros(2 * members),
                    gamma=rule.gamma,
                    lam=rule.lam,
                    norm_by_std=rule.norm_adv_by_std_in_grpo,
                    single_member=rule.single_member,
                )
        if is_file_reference(config.actor.policy_loss.loss_mode):
            _try_loss(config)


def _try_loss(config: RunConfig) -> None:
    actor, rows = config.actor, 2 * config.agent.num_chains
    entry = LOSSES.find(actor.policy_loss.loss_mode)
    logp_BT = torch.full((rows, TOKENS), -1.0, requires_grad=True)
    advantages_BT = torch.ones(rows, TOKENS)
    advantages_BT[1::2] = -1.0
    mask_BT = torch.ones(rows, TOKENS, dtype=torch.bool)
    selected = {"selection_BT": mask_BT} if entry.select is not None else {}
    policy_loss(
        actor.policy_loss.loss_mode,
        logp_BT,
        logp_BT.detach() - 0.1,
        advantages_BT,
        mask_BT,
        clip_ratio=actor.clip_ratio,
        clip_ratio_low=actor.clip_ratio_low,
        clip_ratio_high=actor.clip_ratio_high,
        clip_ratio_c=actor.clip_ratio_c,
        aggregation=actor.loss_agg_mode,
        rollouts_B=range(rows),
        **options_of(actor.policy_loss, entry.options),
        **selected,
    )
