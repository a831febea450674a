"""Model selector: a pointer network over workers, accept and stop, and its PPO training step.

A worker is represented by its features only, so the same weights work for any number of workers,
including new ones. Logits are `scale * (utility - best utility)` with a learned scale, plus a
residual that is exactly zero at the start: before training, the policy is a softmax over expected
utilities, and training learns corrections. The value head reads the context, a summary of the
workers and, in training, the true outcomes of the workflow. Some queries cannot be answered by any
worker; a critic with this information reduces the variance of the advantages (asymmetric critic,
arXiv 1710.06542). The policy never sees it. Losses and advantages come from `algorithms/rl`; each
decision is one trained token in the row of its workflow.

`baselines` returns the rules that the policy is compared with. `collect` samples trajectories of
executed actions, with log-probabilities under the mask at that time; `ppo_update` trains on them.
`phase2.py` has the training loop.

Legend: B workflows, T decisions of a workflow, D decisions, W workers, A actions (workers, accept,
stop), F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tutelage.algorithms.rl import entropy, estimate_advantages, policy_loss, value_loss
from tutelage.errors import RewardError
from tutelage.orchestration.data.outcomes import Floats, OutcomeTable
from tutelage.orchestration.routing.predictor import verdict_probs
from tutelage.orchestration.routing.settings import Phase2Settings
from tutelage.orchestration.routing.simulator import (
    TRUTHS,
    Chooser,
    DecisionBatch,
    Ints,
    QueryTable,
    RewardTerms,
    WorkflowBatch,
    WorkflowSimulator,
    look_ahead,
)
from tutelage.seeds import SeedTree

LOOKAHEAD, POLICY = "one-step lookahead", "PPO"
WORKER_FEATURES = 13
CONTEXT_FEATURES = 22
HIDDEN = 64
SCALE = 40.0
"""Initial logits per unit of utility / alpha: actions within alpha / 40 of the best utility are
sampled often, much worse actions rarely. With a much lower value, the policy first has to learn to
be greedy."""
GAIN = 30.0
"""Factor of the residual, so that this small network learns within a few hundred updates at the
published learning rate of 3e-5, which is meant for large networks. The learning rate of the critic
is multiplied by it too (`parameter_groups`)."""


@dataclass(frozen=True, slots=True)
class DecisionFeatures:
    """Input features of the policy and the critic for a batch of decisions."""

    workers_DWF: Tensor
    context_DF: Tensor
    prior_DA: Tensor
    """(utility - best utility) / alpha, at least -2; 0 for masked actions."""
    mask_DA: Tensor
    truth_DF: Tensor
    """True outcomes (`WorkflowSimulator.true_features`) for the critic; 0 outside of training."""

    def __len__(self) -> int:
        return len(self.mask_DA)

    def take(self, rows: Tensor) -> DecisionFeatures:
        """Return a subset of the decisions."""
        return DecisionFeatures(*(getattr(self, field.name)[rows] for field in fields(self)))

    @staticmethod
    def cat(batches: DecisionFeatures | Sequence[DecisionFeatures]) -> DecisionFeatures:
        """Concatenate batches of decisions. Raises `RewardError` for other types or different
        numbers of workers."""
        if isinstance(batches, DecisionFeatures):
            return batches
        names = [each.name for each in fields(DecisionFeatures)]
        try:
            return DecisionFeatures(*(torch.cat([getattr(p, n) for p in batches]) for n in names))
        except (AttributeError, TypeError, RuntimeError) as error:
            raise RewardError(
                "states must be DecisionFeatures with the same number of workers, such as the "
                f"choice.features of steps with a router trained by PPO ({error})"
            ) from error

    @staticmethod
    def from_batch(obs: DecisionBatch, terms: RewardTerms) -> DecisionFeatures:
        """Compute the features of a batch of decisions."""
        alpha, workers = max(abs(terms.weights.alpha), 1e-9), obs.chance_DW.shape[1]
        utility_DA = np.where(obs.mask_DA, look_ahead(obs, terms), np.nan)
        best_D1 = np.nanmax(utility_DA, axis=1, keepdims=True)
        mine_DW = np.nan_to_num(utility_DA[:, :workers], nan=-alpha)
        able_DW = obs.mask_DA[:, :workers]
        pass_DW, right_if_pass_DW, _ = verdict_probs(obs.chance_DW)
        cost_ref_D1, latency_ref_D1 = obs.cost_ref_D[:, None], obs.latency_ref_D[:, None]
        left_D = obs.budget_D - obs.spent_D
        bounded_D, timed_D = np.isfinite(left_D), np.isfinite(obs.deadline_D)
        safe_left_D = np.where(bounded_D, np.maximum(left_D, 1e-12), 1.0)
        # Features of each worker.
        worker_parts = (
            2 * obs.chance_DW - 1,
            pass_DW,
            right_if_pass_DW * obs.others_D[:, None],
            obs.cost_DW * obs.nodes_D[:, None] / cost_ref_D1,
            np.where(bounded_D[:, None], np.minimum(obs.cost_DW / safe_left_D[:, None], 2), 0),
            obs.seconds_DW * obs.nodes_D[:, None] / latency_ref_D1 / 2,
            (obs.end_DW - obs.end_D[:, None]) / latency_ref_D1,
            np.minimum(obs.load_DW, 4) / 2,
            np.broadcast_to((obs.tries_D / obs.max_tries)[:, None], able_DW.shape),
            able_DW,
            np.clip((mine_DW - best_D1) / alpha, -1, 0),
            np.clip(mine_DW / alpha, -1, 1),
            mine_DW >= best_D1 - 1e-12,
        )
        masked_DW = np.where(able_DW, obs.chance_DW, 0.0)
        padded_DW = np.column_stack([masked_DW, np.zeros((len(masked_DW), 2))])
        ranked_DW = -np.sort(-padded_DW, axis=1)
        time_left_D = np.where(timed_D, obs.deadline_D - obs.now_D, 0.0)
        spare_D = left_D - obs.rest_cost_D
        # Features that are the same for all workers.
        context_parts = (
            obs.nodes_D / 5,
            obs.open_D / 5,
            obs.tries_D / obs.max_tries,
            obs.last_D > 0,
            obs.last_D,
            obs.others_D,
            *ranked_DW[:, :3].T,
            np.clip(obs.spent_D / obs.cost_ref_D, 0, 3),
            np.clip(obs.rest_cost_D / obs.cost_ref_D, 0, 3),
            bounded_D,
            np.where(bounded_D, np.clip(left_D / obs.cost_ref_D, 0, 3), 0),
            np.where(bounded_D, np.clip(spare_D / obs.cost_ref_D, -2, 2), 0),
            timed_D,
            np.where(timed_D, np.clip(time_left_D / obs.latency_ref_D, -1, 3), 0),
            np.where(timed_D, np.clip((obs.deadline_D - obs.ends_D) / obs.latency_ref_D, -2, 3), 0),
            np.clip(obs.now_D / obs.latency_ref_D, 0, 3),
            np.clip((obs.ends_D - obs.now_D - obs.tail_D) / obs.latency_ref_D, -2, 2),
            np.clip(obs.tail_D / obs.latency_ref_D, 0, 2),
            np.clip(best_D1[:, 0] / alpha, -1, 1),
            np.clip(np.nan_to_num(utility_DA[:, workers], nan=0.0) / alpha, -1, 1),
        )
        prior_DA = np.where(obs.mask_DA, np.maximum((utility_DA - best_D1) / alpha, -2.0), 0.0)
        seen = (np.stack(worker_parts, axis=2), np.stack(context_parts, axis=1), prior_DA)
        features, context, prior = (torch.from_numpy(part.astype(np.float32)) for part in seen)
        mask_DA, truth_DF = torch.from_numpy(obs.mask_DA), torch.zeros(len(prior_DA), TRUTHS)
        return DecisionFeatures(features, context, prior, mask_DA, truth_DF)


class ModelSelector(nn.Module):
    """Policy and value network; `forward` returns masked log-probabilities and values."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        # Separate generator, so that weights do not depend on the global random state.
        generator = torch.Generator().manual_seed(seed)
        self.scale = nn.Parameter(torch.tensor(SCALE).log())
        self.encode = _Layers(generator, WORKER_FEATURES + CONTEXT_FEATURES, HIDDEN, HIDDEN)
        self.point = _Layers(generator, 2 * HIDDEN, HIDDEN, 1, zero=True)
        self.settle = _Layers(generator, HIDDEN + CONTEXT_FEATURES, HIDDEN, 2, zero=True)
        self.value = _Layers(generator, HIDDEN + CONTEXT_FEATURES + TRUTHS, HIDDEN, 1, zero=True)

    def forward(self, states: DecisionFeatures) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities [D, A], -inf for masked actions, and the values [D] in units
        of scaled rewards."""
        workers = states.workers_DWF.shape[1]
        context_DWF = states.context_DF[:, None].expand(-1, workers, -1)
        code_DWH = torch.tanh(self.encode(torch.cat([states.workers_DWF, context_DWF], dim=2)))
        able_DW1 = states.mask_DA[:, :workers, None]
        # Mean over legal workers, which does not depend on their number or order.
        pooled_DH = (code_DWH * able_DW1).sum(dim=1) / able_DW1.sum(dim=1).clamp(min=1)
        pooled_DWH = pooled_DH[:, None].expand(-1, workers, -1)
        point_DW = self.point(torch.cat([code_DWH, pooled_DWH], dim=2))[..., 0]
        summary_DF = torch.cat([pooled_DH, states.context_DF], dim=1)
        residual_DA = torch.cat([point_DW, self.settle(summary_DF)], dim=1)
        logits_DA = self.scale.exp() * states.prior_DA + GAIN * residual_DA
        logits_DA = logits_DA.masked_fill(~states.mask_DA, -torch.inf)
        # Detach, so that the critic, which sees the true outcomes, does not train the encoder.
        known_DF = torch.cat([summary_DF.detach(), states.truth_DF], dim=1)
        return torch.log_softmax(logits_DA, dim=1), self.value(known_DF)[:, 0]

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Return the parameter groups of an optimizer: the policy with the given learning rate, the
        critic with `GAIN` times this rate."""
        named = list(self.named_parameters())
        policy = [p for name, p in named if not name.startswith("value.")]
        critic = {"params": list(self.value.parameters()), "lr": GAIN * learning_rate}
        return [{"params": policy, "lr": learning_rate}, critic]

    def compute_loss(
        self,
        *,
        states: DecisionFeatures | Sequence[DecisionFeatures],
        actions: Tensor | Sequence[int],
        old_log_probs: Tensor | Sequence[float],
        advantages: Tensor | Sequence[float],
        returns: Tensor | Sequence[float],
        clip_epsilon: float = 0.2,
        value_coef: float = 0.5,
        entropy_coef: float = 0.01,
    ) -> dict[str, Tensor]:
        """Compute the PPO loss of D decisions. Tensor arguments are vectors of length D.

        `states` are the `choice.features` of the steps of executions, as a list or concatenated by
        `DecisionFeatures.cat`. `total_loss = policy_loss - entropy_coef * entropy + value_coef *
        value_loss`, where value_loss is the mean squared error. The result also has `approx_kl` and
        `clip_fraction`, without gradient. Raises `RewardError` for invalid states.
        """
        states = DecisionFeatures.cat(states)
        actions, old_log_probs, advantages, returns = map(
            torch.as_tensor, (actions, old_log_probs, advantages, returns)
        )
        logp_DA, values_D = self(states)
        row_1D = torch.ones(1, len(states))
        chosen_1D, old_1D = logp_DA.gather(1, actions[:, None]).T, old_log_probs[None]
        surrogate, tensors = policy_loss(
            "vanilla", chosen_1D, old_1D, advantages[None], row_1D, clip_ratio=clip_epsilon
        )
        values_1D = values_D[None]
        half_error, _ = value_loss(values_1D, returns[None], values_1D.detach(), row_1D, clip=0.0)
        spread = entropy(logp_DA[None]).mean()
        return {
            "total_loss": surrogate + value_coef * 2 * half_error - entropy_coef * spread,
            "policy_loss": surrogate,
            "value_loss": 2 * half_error,
            "entropy": spread,
            **{name: tensors[name] for name in ("approx_kl", "clip_fraction")},
        }


class _Layers(nn.Module):
    """MLP: linear, tanh, linear. `zero` initializes the second linear layer with 0."""

    def __init__(
        self, generator: torch.Generator, inputs: int, hidden: int, outputs: int, zero: bool = False
    ) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(hidden, inputs, generator=generator) / inputs**0.5)
        self.first_bias = nn.Parameter(torch.zeros(hidden))
        drawn = torch.randn(outputs, hidden, generator=generator) / hidden**0.5
        self.second = nn.Parameter(torch.zeros(outputs, hidden) if zero else drawn)
        self.second_bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(nn.functional.linear(x, self.first, self.first_bias))
        return nn.functional.linear(hidden, self.second, self.second_bias)


def compute_gae(
    *,
    rewards: Tensor | Sequence[Any],
    values: Tensor | Sequence[Any],
    gamma: float = 0.99,
    lambda_gae: float = 0.95,
) -> Tensor:
    """Return the GAE advantages of one trajectory [T], or of several [B, T] of equal length, not
    whitened. Raises `RewardError` for other shapes and for values that are not finite.

    The value after the last step is 0. As in `algorithms/rl`, returns are advantages + values.
    """
    rewards = torch.as_tensor(rewards, dtype=torch.float32)
    values = torch.as_tensor(values, dtype=torch.float32)
    fit = rewards.shape == values.shape and rewards.dim() in (1, 2)
    if not fit or not bool((rewards + values).isfinite().all()):
        raise RewardError(
            "rewards and values must be finite and have the same shape, [T] or [B, T], got "
            f"{rewards.tolist()!r:.200} and {values.tolist()!r:.200}"
        )
    rows_BT, values_BT = torch.atleast_2d(rewards), torch.atleast_2d(values)
    mask_BT = torch.ones_like(rows_BT)
    _, returns_BT = estimate_advantages(
        "gae", rows_BT, mask_BT, values_BT=values_BT, gamma=gamma, lam=lambda_gae
    )
    return (returns_BT - values_BT).reshape(rewards.shape)


def draw_actions(logp_DA: Tensor, uniform_D: NDArray[np.float64]) -> Tensor:
    """Sample an action for each decision, [D], by inverse transform sampling from `uniform_D`."""
    ladder_DA = logp_DA.double().exp().cumsum(dim=1)
    target_D1 = torch.from_numpy(uniform_D)[:, None] * ladder_DA[:, -1:]
    # First action whose cumulative probability exceeds the target; masked actions add nothing.
    return (ladder_DA <= target_D1).sum(dim=1).clamp(max=logp_DA.shape[1] - 1)


def greedy_policy(model: ModelSelector, terms: RewardTerms) -> Chooser:
    """Return a policy that selects the most probable action of a model."""

    def choose(simulator: WorkflowSimulator, rows: Ints, obs: DecisionBatch) -> Ints:
        with torch.no_grad():
            logp_DA, _ = model(DecisionFeatures.from_batch(obs, terms))
        return logp_DA.argmax(dim=1).numpy()

    return choose


def baselines(train: OutcomeTable, terms: RewardTerms) -> dict[str, Chooser]:
    """Return the baseline policies, by name.

    "cheapest" and "most accurate" try one worker and accept its answer in any case; "most accurate"
    uses the accuracy in the training table. The lookahead maximizes `simulator.look_ahead`.
    """
    right_W = (train.right_QW & train.known_QW).sum(axis=0)
    share_W = right_W / np.maximum(train.known_QW.sum(axis=0), 1)

    return {
        "cheapest": lambda _, rows, at: try_once(-at.cost_DW, at),
        "most accurate": lambda _, rows, at: try_once(share_W, at),
        LOOKAHEAD: lookahead_policy(terms),
    }


def lookahead_policy(terms: RewardTerms) -> Chooser:
    """Return a policy that selects the action with the highest one-step expected utility."""
    return lambda _, rows, at: look_ahead(at, terms).argmax(axis=1)


def try_once(scores: Floats, obs: DecisionBatch) -> Ints:
    """Select the legal worker with the highest score ([D, W] or [W]) at the first try; accept the
    answer at later tries, or stop if accepting is not legal."""
    workers = obs.chance_DW.shape[1]
    able_DW = obs.mask_DA[:, :workers]
    best_D = np.where(able_DW, scores, -np.inf).argmax(axis=1)
    settle_D = np.where(obs.mask_DA[:, workers], workers, workers + 1)
    return np.where(able_DW.any(axis=1) & (obs.tries_D == 0), best_D, settle_D)


@dataclass(frozen=True, slots=True)
class Trajectories:
    """Decisions of a batch of workflows, in order. `places` has their indices in [B, T]."""

    states: DecisionFeatures
    actions_D: Tensor
    log_probs_D: Tensor
    values_D: Tensor
    places: tuple[Tensor, Tensor]
    rewards_BT: Tensor
    mask_BT: Tensor
    outcome: WorkflowSimulator


@torch.no_grad()
def collect(
    query_table: QueryTable,
    workflows: WorkflowBatch,
    terms: RewardTerms,
    model: ModelSelector,
    seeds: SeedTree,
) -> Trajectories:
    """Sample trajectories of the policy, with rewards divided by max(1, |alpha|)."""
    simulator = WorkflowSimulator(query_table, workflows, terms)
    unit = max(1.0, abs(terms.weights.alpha))
    parts: list[DecisionFeatures] = []
    taken: list[tuple[Tensor, ...]] = []
    rng = seeds.numpy()
    while len(rows := simulator.rows):
        at = simulator.observe(rows)
        states = DecisionFeatures.from_batch(at, terms)
        masked_DA = (SCALE * states.prior_DA).masked_fill(~states.mask_DA, -torch.inf)
        leaning_DW = torch.softmax(masked_DA, dim=1)[:, :-2].numpy()
        truth_DF = simulator.true_features(rows, at, leaning_DW).astype(np.float32)
        states = replace(states, truth_DF=torch.from_numpy(truth_DF))
        logp_DA, values_D = model(states)
        actions_D = draw_actions(logp_DA, rng.random(len(rows)))
        rewards_D = simulator.step(rows, actions_D.numpy(), at.chance_DW) / unit
        log_probs_D = logp_DA.gather(1, actions_D[:, None])[:, 0]
        time_D = torch.full((len(rows),), len(taken))
        decided = (actions_D, log_probs_D, values_D, torch.from_numpy(rows), time_D)
        taken.append((*decided, torch.from_numpy(rewards_D.astype(np.float32))))
        parts.append(states)
    actions_D, log_probs_D, values_D, row_D, time_D, rewards_D = map(
        torch.cat, zip(*taken, strict=True)
    )
    rewards_BT = torch.zeros(len(workflows), len(taken))
    mask_BT = torch.zeros_like(rewards_BT)
    rewards_BT[row_D, time_D] = rewards_D
    mask_BT[row_D, time_D] = 1.0
    states = DecisionFeatures.cat(parts)
    return Trajectories(
        states, actions_D, log_probs_D, values_D, (row_D, time_D), rewards_BT, mask_BT, simulator
    )


def ppo_update(
    model: ModelSelector,
    optimizer: torch.optim.Optimizer,
    batch: Trajectories,
    settings: Phase2Settings,
    seeds: SeedTree,
) -> dict[str, Any]:
    """Run the PPO epochs on one batch and return the mean metrics of the last epoch."""
    values_BT, (gamma, lam) = torch.zeros_like(batch.mask_BT), (settings.gamma, settings.lambda_gae)
    values_BT[batch.places] = batch.values_D
    advantages_BT, returns_BT = estimate_advantages(
        "gae", batch.rewards_BT, batch.mask_BT, values_BT=values_BT, gamma=gamma, lam=lam
    )
    advantages_D, returns_D = advantages_BT[batch.places], returns_BT[batch.places]
    records: list[dict[str, float]] = []
    epoch = 0
    for epoch in range(settings.epochs):
        records = []
        generator = torch.Generator().manual_seed(seeds.child("order", epoch).value())
        order = torch.randperm(len(advantages_D), generator=generator)
        for picked in order.split(settings.minibatch_size):
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
            records.append({name: number.item() for name, number in loss.items()})
        if float(np.mean([t["approx_kl"] for t in records])) > settings.target_kl:
            break
    means = {name: float(np.mean([t[name] for t in records])) for name in records[0]}
    return {"train_loss": means.pop("total_loss"), **means, "epochs": epoch + 1}
