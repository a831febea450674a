"""Behaviour cloning: the policy's network, taught what the oracle would have done.

The states are those that the untrained policy meets; the label of each is the oracle's action
there. The network, its prior and its features are those of PPO, so the comparison is of the two
ways to learn. The oracle knows outcomes that no feature shows, which is what cloning cannot copy.
"""

from __future__ import annotations

import numpy as np
import torch

from tutelage.orchestration.routing.baselines import oracle
from tutelage.orchestration.routing.environment import Environment
from tutelage.orchestration.routing.policy import ModelSelector, States, draw_actions, see
from tutelage.orchestration.routing.situation import Terms
from tutelage.orchestration.routing.workflows import Board, draw_workflows
from tutelage.seeds import SeedTree


def clone_oracle(
    board: Board,
    terms: Terms,
    seeds: SeedTree,
    *,
    workflows: int = 4096,
    epochs: int = 4,
    learning_rate: float = 3e-4,
    minibatch_size: int = 256,
) -> ModelSelector:
    """A model selector that imitates the oracle, by cross-entropy."""
    model = ModelSelector(seeds.child("model").value(31))
    states, labels_D = _labelled(board, terms, model, seeds, workflows)
    optimizer = torch.optim.Adam(model.parameters(), learning_rate)
    for epoch in range(epochs):
        generator = torch.Generator().manual_seed(seeds.child("order", epoch).value())
        order = torch.randperm(len(labels_D), generator=generator)
        for picked in order.split(minibatch_size):
            logp_DA, _ = model(states.take(picked))
            # What a mask forbids has a log-probability of minus infinity; no label is masked.
            loss = -logp_DA.gather(1, labels_D[picked, None]).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    return model


@torch.no_grad()
def _labelled(
    board: Board, terms: Terms, model: ModelSelector, seeds: SeedTree, workflows: int
) -> tuple[States, torch.Tensor]:
    flows = draw_workflows(board, workflows, seeds.child("workflows"))
    environment = Environment(board, flows, terms)
    wise, rng = oracle(terms), seeds.child("actions").numpy()
    parts: list[States] = []
    labels: list[np.ndarray] = []
    while len(rows := environment.rows):
        at = environment.situation(rows)
        states = see(at, terms)
        logp_DA, _ = model(states)
        parts.append(states)
        labels.append(wise(environment, rows, at))
        actions_D = draw_actions(logp_DA, rng.random(len(rows)))
        environment.step(rows, actions_D.numpy(), at.chance_DW)
    return States.cat(parts), torch.from_numpy(np.concatenate(labels))
