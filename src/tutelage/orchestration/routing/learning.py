"""How the model selector learns: PPO on trajectories, or imitation of the oracle.

PPO's functions are those of the language models, one decision being a token of a workflow's row. A
trajectory keeps exactly what was executed: the states, the actions, and the log-probabilities under
the mask that was in force. Cloning has the same network, prior and features, so the comparison is
of the two ways to learn; the oracle knows outcomes that no feature shows, which is what cloning
cannot copy. `policy.py` has the loss of a minibatch, `phase2.py` the training.

Legend: B workflows, T decisions of a workflow, D decisions in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tutelage.algorithms.rl import estimate_advantages
from tutelage.orchestration.routing.choosers import oracle
from tutelage.orchestration.routing.decisions import RewardTerms
from tutelage.orchestration.routing.policy import (
    SCALE,
    DecisionFeatures,
    ModelSelector,
    draw_actions,
)
from tutelage.orchestration.routing.settings import Phase2Settings
from tutelage.orchestration.routing.simulator import SimulationResult, WorkflowSimulator
from tutelage.orchestration.routing.workflows import QueryTable, WorkflowBatch
from tutelage.seeds import SeedTree

CLONED_FROM = 4096
"""Workflows whose decisions are imitated."""


@dataclass(frozen=True, slots=True)
class _Trajectories:
    """The decisions of a batch, in the order taken; rows and `time_D` place them in [B, T]."""

    states: DecisionFeatures
    actions_D: Tensor
    log_probs_D: Tensor
    values_D: Tensor
    row_D: Tensor
    time_D: Tensor
    rewards_BT: Tensor
    mask_BT: Tensor
    outcome: SimulationResult


@torch.no_grad()
def collect(
    query_table: QueryTable,
    flows: WorkflowBatch,
    terms: RewardTerms,
    model: ModelSelector,
    seeds: SeedTree,
) -> _Trajectories:
    """Sample the policy on all workflows. Rewards are divided by alpha, where it is above 1."""
    simulator = WorkflowSimulator(query_table, flows, terms)
    unit = max(1.0, abs(terms.weights.alpha))
    parts: list[DecisionFeatures] = []
    taken: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    rng = seeds.numpy()
    while len(rows := simulator.rows):
        at = simulator.observe(rows)
        states = DecisionFeatures.of(at, terms)
        masked_DA = (SCALE * states.prior_DA).masked_fill(~states.mask_DA, -torch.inf)
        truth_DF = simulator.truth(rows, torch.softmax(masked_DA, dim=1).numpy())
        states = replace(states, truth_DF=torch.from_numpy(truth_DF.astype(np.float32)))
        logp_DA, values_D = model(states)
        actions_D = draw_actions(logp_DA, rng.random(len(rows)))
        rewards_D = simulator.step(rows, actions_D.numpy(), at.chance_DW) / unit
        parts.append(states)
        log_probs_D = logp_DA.gather(1, actions_D[:, None])[:, 0]
        rewards_D = torch.from_numpy(rewards_D.astype(np.float32))
        taken.append((log_probs_D, values_D, torch.full((len(rows),), len(taken)), rewards_D))
    outcome = simulator.outcome()
    log_probs_D, values_D, time_D, rewards_D = map(torch.cat, zip(*taken, strict=True))
    row_D = torch.from_numpy(outcome.row_D)
    rewards_BT = torch.zeros(len(flows), len(taken))
    rewards_BT[row_D, time_D] = rewards_D
    mask_BT = torch.zeros_like(rewards_BT)
    mask_BT[row_D, time_D] = 1.0
    states, actions_D = DecisionFeatures.cat(parts), torch.from_numpy(outcome.action_D)
    return _Trajectories(
        states, actions_D, log_probs_D, values_D, row_D, time_D, rewards_BT, mask_BT, outcome
    )


def ppo_update(
    model: ModelSelector,
    optimizer: torch.optim.Optimizer,
    batch: _Trajectories,
    settings: Phase2Settings,
    seeds: SeedTree,
) -> dict[str, Any]:
    """Several epochs over one batch of trajectories; returns the metrics of the last epoch."""
    places = batch.row_D, batch.time_D
    values_BT = torch.zeros_like(batch.mask_BT)
    values_BT[places] = batch.values_D
    gamma, lam, rewards_BT = settings.gamma, settings.lambda_gae, batch.rewards_BT
    advantages_BT, returns_BT = estimate_advantages(
        "gae", rewards_BT, batch.mask_BT, values_BT=values_BT, gamma=gamma, lam=lam
    )
    advantages_D, returns_D = advantages_BT[places], returns_BT[places]
    records: list[dict[str, float]] = []
    epoch = 0
    for epoch in range(settings.epochs):
        records = []
        for picked in _minibatches(len(advantages_D), settings.minibatch_size, seeds, epoch):
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
            _descend(model, optimizer, loss["total_loss"], settings.max_grad_norm)
            records.append({name: number.item() for name, number in loss.items()})
        if float(np.mean([t["approx_kl"] for t in records])) > settings.target_kl:
            break
    means = {name: float(np.mean([t[name] for t in records])) for name in records[0]}
    return {"train_loss": means.pop("total_loss"), **means, "epochs": epoch + 1}


def _minibatches(count: int, size: int, seeds: SeedTree, epoch: int) -> Sequence[Tensor]:
    """The decisions of an epoch, in an order of its own."""
    generator = torch.Generator().manual_seed(seeds.child("order", epoch).value())
    return torch.randperm(count, generator=generator).split(size)


def _descend(
    model: ModelSelector, optimizer: torch.optim.Optimizer, loss: Tensor, norm: float
) -> None:
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), norm)
    optimizer.step()


def clone_oracle(query_table: QueryTable, terms: RewardTerms, seeds: SeedTree) -> ModelSelector:
    """A model selector that imitates the oracle, by cross-entropy.

    The states are those that the untrained policy visits; the label of each is the oracle's action.
    """
    model = ModelSelector(seeds.child("model").value(31))
    states, labels_D = _labelled(query_table, terms, model, seeds)
    optimizer = torch.optim.Adam(model.parameters(), 3e-4)
    for epoch in range(4):
        for picked in _minibatches(len(labels_D), 256, seeds, epoch):
            logp_DA, _ = model(states.take(picked))
            # What a mask forbids has a log-probability of minus infinity; no label is masked.
            _descend(model, optimizer, -logp_DA.gather(1, labels_D[picked, None]).mean(), 0.5)
    return model


@torch.no_grad()
def _labelled(
    query_table: QueryTable, terms: RewardTerms, model: ModelSelector, seeds: SeedTree
) -> tuple[DecisionFeatures, torch.Tensor]:
    flows = WorkflowBatch.draw(query_table, CLONED_FROM, seeds.child("workflows"))
    simulator = WorkflowSimulator(query_table, flows, terms)
    wise, rng = oracle(terms), seeds.child("actions").numpy()
    parts: list[DecisionFeatures] = []
    labels: list[np.ndarray] = []
    while len(rows := simulator.rows):
        at = simulator.observe(rows)
        states = DecisionFeatures.of(at, terms)
        logp_DA, _ = model(states)
        parts.append(states)
        labels.append(wise(simulator, rows, at))
        actions_D = draw_actions(logp_DA, rng.random(len(rows)))
        simulator.step(rows, actions_D.numpy(), at.chance_DW)
    return DecisionFeatures.cat(parts), torch.from_numpy(np.concatenate(labels))
