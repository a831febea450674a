"""Compute values per token of a whole batch without gradients, such as log-probabilities.

The rows are split into micro-batches by tokens, and the results for trained tokens are put into one
[B, T] tensor that is 0 elsewhere. `learner.py` uses this for the inputs of estimator and KL before
the first optimizer step.

Legend: B rows, T tokens, K trained tokens of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tutelage.config import RunConfig
from tutelage.policy.model import Policy
from tutelage.policy.network import TokenTensors
from tutelage.policy.packing import plan_micro_batches
from tutelage.policy.row import Row
from tutelage.weights.process_group import ONE_PROCESS, ProcessGroup


@torch.no_grad()
def score_tokens(
    rows: Sequence[Row],
    max_tokens: int,
    score: Callable[[list[Row]], TokenTensors],
    *,
    shared: bool = False,
    group: ProcessGroup = ONE_PROCESS,
) -> Tensor:
    """Compute values of the trained tokens of all rows with `score`, as [B, T] on the CPU.

    The rows are split as in `plan_micro_batches`.
    """
    out_BT = torch.zeros(len(rows), max(len(r.ids) for r in rows))

    def score_rows(indices: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        found_K, rows_K, columns_K = score([rows[b] for b in indices])
        return torch.tensor(indices)[rows_K.cpu()], columns_K.cpu(), found_K.float().cpu()

    plan = plan_micro_batches(rows, max_tokens, shared=shared)
    for numbers_K, columns_K, found_K in group.map(plan, score_rows):
        out_BT[numbers_K, columns_K] = found_K
    return out_BT


def compute_logp(
    policy: Policy,
    rows: Sequence[Row],
    config: RunConfig,
    dtype: torch.dtype,
    group: ProcessGroup = ONE_PROCESS,
) -> Tensor:
    """Compute log-probabilities at the sampling temperature, [B, T]."""

    def score(micro_batch: list[Row]) -> TokenTensors:
        scores = policy.score(micro_batch, temperature=config.rollout.temperature, dtype=dtype)
        return TokenTensors(scores.logp_K, scores.rows_K, scores.columns_K)

    count = config.rollout.log_prob_micro_batch_size_per_gpu
    budget = count and count * max(len(r.ids) for r in rows)
    budget = budget or config.actor.max_tokens_per_micro_batch
    return score_tokens(rows, budget, score, shared=policy.network.large, group=group)
