"""Runs a chooser through an environment: with records for training, or only for the outcome.

A chooser sees the environment and the waiting rows and says an action for each; baselines and the
policy are all choosers (`baselines.py`). A trajectory keeps exactly what was executed: the states,
the actions, and the log-probabilities under the mask that was in force.

Legend: B workflows, T decisions of a workflow, D decisions in all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tutelage.orchestration.routing.environment import Environment
from tutelage.orchestration.routing.outcome import Outcome
from tutelage.orchestration.routing.policy import SCALE, ModelSelector, States, draw_actions, see
from tutelage.orchestration.routing.situation import Situation, Terms
from tutelage.orchestration.routing.workflows import Board, Ints, Workflows
from tutelage.seeds import SeedTree

Chooser = Callable[[Environment, Ints, Situation], Ints]
"""The action of each waiting row, given what is known before it."""


@dataclass(frozen=True, slots=True)
class Played:
    """A batch that was run: its decisions in the order in which they were taken, its outcome."""

    row_D: Ints
    """The workflow of each decision."""
    node_D: Ints
    query_D: Ints
    """The row of the table behind the node."""
    action_D: Ints
    outcome: Outcome


class _Record:
    """Gathers decisions while a batch is run."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._taken: list[tuple[Ints, Ints, Ints, Ints]] = []

    def take(self, rows: Ints, actions: Ints) -> None:
        """Note what is about to be done."""
        nodes = self._environment.nodes[rows]
        self._taken.append((rows, nodes, self._environment.queries(rows), actions))

    def played(self) -> Played:
        """All of it, once the batch is over."""
        rows, nodes, queries, actions = map(np.concatenate, zip(*self._taken, strict=True))
        return Played(rows, nodes, queries, actions, self._environment.outcome())


@dataclass(frozen=True, slots=True)
class Trajectories:
    """The decisions of a batch, in the order taken; `row_D` and `time_D` place them in [B, T]."""

    states: States
    actions_D: Tensor
    log_probs_D: Tensor
    values_D: Tensor
    row_D: Tensor
    time_D: Tensor
    rewards_BT: Tensor
    mask_BT: Tensor
    played: Played

    def spread(self, values_D: Tensor) -> Tensor:
        """Numbers of decisions as [B, T], 0 where there is none."""
        out_BT = values_D.new_zeros(self.mask_BT.shape)
        out_BT[self.row_D, self.time_D] = values_D
        return out_BT

    def gather(self, values_BT: Tensor) -> Tensor:
        """[B, T] numbers as those of decisions."""
        return values_BT[self.row_D, self.time_D]


def play(
    board: Board, flows: Workflows, terms: Terms, choose: Chooser, max_steps: int = 50
) -> Outcome:
    """Run a chooser on all workflows."""
    return play_through(board, flows, terms, choose, max_steps).outcome


def play_through(
    board: Board, flows: Workflows, terms: Terms, choose: Chooser, max_steps: int = 50
) -> Played:
    """`play`, with every decision."""
    environment = Environment(board, flows, terms, max_steps)
    record = _Record(environment)
    while len(rows := environment.rows):
        at = environment.situation(rows)
        actions = choose(environment, rows, at)
        record.take(rows, actions)
        environment.step(rows, actions, at.chance_DW)
    return record.played()


@torch.no_grad()
def collect(
    board: Board,
    flows: Workflows,
    terms: Terms,
    model: ModelSelector,
    seeds: SeedTree,
    max_steps: int = 50,
) -> Trajectories:
    """Sample the policy on all workflows. Rewards are divided by alpha, where it is above 1."""
    environment = Environment(board, flows, terms, max_steps)
    unit = max(1.0, abs(terms.weights.alpha))
    record = _Record(environment)
    parts: list[States] = []
    taken: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    rng = seeds.numpy()
    while len(rows := environment.rows):
        at = environment.situation(rows)
        states = see(at, terms)
        leaning_DA = torch.softmax(
            (SCALE * states.prior_DA).masked_fill(~states.mask_DA, -torch.inf), dim=1
        ).numpy()
        truth_DF = torch.from_numpy(environment.truth(rows, leaning_DA).astype(np.float32))
        states = replace(states, truth_DF=truth_DF)
        logp_DA, values_D = model(states)
        actions_D = draw_actions(logp_DA, rng.random(len(rows)))
        record.take(rows, actions_D.numpy())
        rewards_D = environment.step(rows, actions_D.numpy(), at.chance_DW) / unit
        parts.append(states)
        log_probs_D = logp_DA.gather(1, actions_D[:, None])[:, 0]
        rewards_D = torch.from_numpy(rewards_D.astype(np.float32))
        taken.append((log_probs_D, values_D, torch.full((len(rows),), len(taken)), rewards_D))
    played = record.played()
    log_probs_D, values_D, time_D, rewards_D = map(torch.cat, zip(*taken, strict=True))
    row_D = torch.from_numpy(played.row_D)
    rewards_BT = torch.zeros(len(flows), len(taken))
    rewards_BT[row_D, time_D] = rewards_D
    mask_BT = torch.zeros_like(rewards_BT)
    mask_BT[row_D, time_D] = 1.0
    return Trajectories(
        states=States.cat(parts),
        actions_D=torch.from_numpy(played.action_D),
        log_probs_D=log_probs_D,
        values_D=values_D,
        row_D=row_D,
        time_D=time_D,
        rewards_BT=rewards_BT,
        mask_BT=mask_BT,
        played=played,
    )
