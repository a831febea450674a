"""The critic: a value model, its optimizer, and its update from a batch.

Only estimators that declare it have one. Its trunk starts as a copy of the policy at the start of
reinforcement learning, or as the model of `critic.model.path`. A batch is split into optimizer
batches of rollouts in the same way as the policy's, each with its number of trained tokens as the
denominator, so that neither micro-batches nor rows change the gradient. The loss is in
`algorithms/rl/value.py`; `learner.py` calls the update.

Legend: B rows, T tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tutelage.algorithms.rl.value import explained_variance, value_loss
from tutelage.config import RunConfig
from tutelage.errors import RunError
from tutelage.policy.numerics import Numerics
from tutelage.policy.packing import plan_micro_batches
from tutelage.policy.row import Row
from tutelage.policy.value import HEAD, ValueModel
from tutelage.seeds import SeedTree
from tutelage.weights.batch import Batch
from tutelage.weights.optim import Optimizer, make_optimizer
from tutelage.weights.process_group import ONE_PROCESS, ProcessGroup
from tutelage.weights.scoring import score_tokens


class Critic:
    """A value model with its optimizer."""

    def __init__(
        self,
        model: ValueModel,
        config: RunConfig,
        numerics: Numerics,
        group: ProcessGroup = ONE_PROCESS,
    ) -> None:
        self.model = model
        self._config, self._numerics, self._group = config, numerics, group
        # What is sharded and what is whole are not stepped by one operation.
        self._optimizer: Optimizer = make_optimizer(
            model.named_tensors(), config.critic.optim, group=group, prefix=HEAD
        )

    def values(self, rows: list[Row]) -> Tensor:
        """Return the value of each trained token [B, T], without gradient."""
        budget, dtype = self._config.actor.max_tokens_per_micro_batch, self._numerics.dtype
        return score_tokens(
            rows, budget, lambda some: self.model.values(some, dtype), group=self._group
        )

    def bootstrap_values(self, batch: Batch) -> Tensor | None:
        """Return the values of the last states of truncated rollouts, [B, T], at their last tokens.

        Returns None if `algorithm.bootstrap_truncated` is off.
        """
        if not self._config.algorithm.bootstrap_truncated:
            return None
        last = {number: b for b, number in enumerate(batch.rollouts_B)}
        ended = [b for number, b in last.items() if batch.rollouts[number].truncated]
        ends = [int(batch.mask_BT[b].nonzero()[-1]) for b in ended]
        # A value is that of the state before a token, so one more token stands for what follows.
        rows = [
            Row((*batch.rows[b].ids[: end + 1], batch.rows[b].ids[end]), (0,) * (end + 1) + (1,))
            for b, end in zip(ended, ends, strict=True)
        ]
        out_BT = torch.zeros_like(batch.rewards_BT)
        if rows:
            following_BT = self.values(rows)
            out_BT[ended, ends] = following_BT[range(len(rows)), [end + 1 for end in ends]]
        return out_BT

    def update(self, batch: Batch, *, seeds: SeedTree, rate: float) -> dict[str, float]:
        """Train on a batch with values and returns, and return mean metrics over optimizer steps.

        `value/explained_variance` is that of the values before the update.
        """
        config = self._config
        size = config.critic.ppo_mini_batch_size or config.actor.ppo_mini_batch_size
        steps: list[tuple[float, float, float]] = []
        for epoch in range(config.actor.ppo_epochs):
            for part in batch.mini_batches(size, seeds.child("epoch", epoch)):
                loss, fraction = self._accumulate_gradient(batch, part)
                steps.append((loss, fraction, self._optimizer.step(rate)))
        names = ("loss/value", "value/clip_fraction", "value/grad_norm")
        means = (sum(values) / len(steps) for values in zip(*steps, strict=True))
        values_K, returns_K = batch.old_values_BT[batch.mask_BT], batch.returns_BT[batch.mask_BT]
        return {
            **dict(zip(names, means, strict=True)),
            "value/mean": float(values_K.mean()),
            "value/explained_variance": explained_variance(values_K, returns_K),
        }

    def _accumulate_gradient(self, batch: Batch, row_numbers: list[int]) -> tuple[float, float]:
        """Accumulate the gradient of an optimizer batch, and return its loss and clip fraction."""
        config, rows = self._config, batch.rows
        count = config.critic.ppo_micro_batch_size_per_gpu
        count = count or config.actor.ppo_micro_batch_size_per_gpu
        budget = batch.token_budget(row_numbers, count, config.actor)
        plan = plan_micro_batches([rows[b] for b in row_numbers], budget)
        total = float(batch.mask_BT[row_numbers].sum())

        def loss(indices: list[int]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            numbers = [row_numbers[i] for i in indices]
            token_tensors = self.model.values([rows[b] for b in numbers], self._numerics.dtype)
            cut = batch.make_slicer(numbers, token_tensors.values.device)
            mask = cut(batch.mask_BT)
            values = torch.zeros_like(cut(batch.returns_BT)).index_put(
                (token_tensors.rows_K, token_tensors.columns_K), token_tensors.values
            )
            value, fraction = value_loss(
                values,
                cut(batch.returns_BT),
                cut(batch.old_values_BT),
                mask,
                clip=config.critic.cliprange_value,
                denominator=total,
            )
            return value, (value.detach(), fraction * mask.sum() / total)

        threads = self._numerics.threads
        reports = self._group.accumulate(self.model.parameters(), plan, loss, threads=threads)
        return float(sum(r[0] for r in reports)), float(sum(r[1] for r in reports))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the weights and of the optimizer."""
        weights = {n: t.detach() for n, t in self.model.named_tensors()}
        return {"weights": weights, "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict. Raises `RunError` if it belongs to another model."""
        shapes = {n: t.shape for n, t in self.model.named_tensors()}
        if {n: t.shape for n, t in state_dict["weights"].items()} != shapes:
            raise RunError(
                "the critic in the checkpoint differs from the configured one; set the same "
                "critic.model.path, or start a new run"
            )
        self._group.load(self.model.named_tensors(), state_dict["weights"])
        self._optimizer.load_state_dict(state_dict["optimizer"])
