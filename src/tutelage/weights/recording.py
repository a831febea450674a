"""What a training step made of its rows, kept in the store: advantages, and numbers for each token.

`with_tokens` collects what the update's forward passes said anyway; nothing is computed for its
sake, so a row from which nothing could be learned, and which was skipped, has no numbers of its
tokens. `StepRecorder` turns it into rows of the store. They are small beside the rollouts (8 bytes
a trained token), and `trainer.record_tokens` bounds them. `store/records.py` says what each number
is.

Legend: B rows, T tokens, K trained tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tutelage.algorithms.rl import importance_weights
from tutelage.config import RunConfig
from tutelage.store import Store, StoreWriter, TrainingRow
from tutelage.weights.batch import Batch
from tutelage.weights.loss import Report

Floats = NDArray[np.float32]


def with_tokens(batch: Batch, passes: Sequence[Report], config: RunConfig) -> Batch:
    """A batch with what the passes of its first epoch said of each trained token: log-probabilities
    before the step, entropies, and importance weights where a correction is on."""
    logp_BT, entropy_BT = (torch.full(batch.mask_BT.shape, torch.nan) for _ in range(2))
    before_BT = batch.trainer_logp_BT if config.updates_per_batch > 1 else None
    for found in passes:
        scores = found.scores
        where = (torch.tensor(found.rows)[scores.rows_K.cpu()], scores.columns_K.cpu())
        known_K = scores.logp_K if before_BT is None else before_BT[where]
        logp_BT[where] = known_K.float().cpu()
        entropy_BT[where] = scores.entropy_K.float().cpu()
    weights_BT = batch.weights_BT
    if config.rollout.correction == "none":
        weights_BT = None
    elif weights_BT is None:
        weights_BT = importance_weights(
            (logp_BT - batch.old_logp_BT).nan_to_num(),
            batch.mask_BT,
            config.rollout.correction,
            config.rollout.correction_cap,
            rollouts_B=batch.rollouts_B,
        )
    if weights_BT is not None:
        weights_BT = weights_BT.masked_fill(logp_BT.isnan(), torch.nan)
    return replace(batch, logp_BT=logp_BT, entropy_BT=entropy_BT, weights_BT=weights_BT)


class StepRecorder:
    """Hands what training steps made of their rows to the store's writer."""

    def __init__(
        self, store: Store, writer: StoreWriter, run_id: str, *, tick: int, limit: int
    ) -> None:
        """Goes on after the step `tick`: what the store has of later ones is done again. `limit`
        trained tokens of the run have numbers of their own."""
        store.discard_training(run_id, tick)
        self._writer, self._run_id, self._limit = writer, run_id, limit
        self._tokens = store.trained_tokens(run_id)

    def record(self, tick: int, batches: Mapping[str, Batch]) -> None:
        """Store the rows from which each policy learned at the step `tick`."""
        for policy, batch in batches.items():
            self._record(tick, policy, batch)

    def _record(self, tick: int, policy: str, batch: Batch) -> None:
        advantages = _flat(batch.advantages_BT, batch)
        tokens = (batch.logp_BT, batch.entropy_BT, batch.weights_BT)
        logprobs, entropies, weights = (None if x is None else _flat(x, batch) for x in tokens)
        rows: list[TrainingRow] = []
        start = 0
        for position, row in enumerate(batch.rows):
            here = slice(start, start + row.trained)
            start = here.stop
            room = self._tokens < self._limit
            self._tokens += row.trained
            advantage, differing = _credit(advantages[here])
            rows.append(
                TrainingRow(
                    step=tick,
                    policy=policy,
                    position=position,
                    rollout_id=batch.rollouts[batch.rollouts_B[position]].id,
                    tokens=row.trained,
                    advantage=advantage,
                    advantages=differing if room else None,
                    logprobs=_packed(logprobs, here, "<f4") if room else None,
                    entropies=_packed(entropies, here, "<f2") if room else None,
                    importance_weights=_packed(weights, here, "<f2") if room else None,
                )
            )
        self._writer.submit_training(self._run_id, rows)


def _flat(values_BT: Tensor, batch: Batch) -> Floats:
    """The numbers of trained tokens, row after row."""
    return values_BT[batch.mask_BT].float().cpu().numpy()


def _credit(advantages_K: Floats) -> tuple[float, bytes | None]:
    """A row's advantage, and those of its tokens where they differ."""
    if (advantages_K == advantages_K[0]).all():
        return float(advantages_K[0]), None
    return float(advantages_K.mean(dtype=np.float64)), advantages_K.astype("<f4").tobytes()


def _packed(values_K: Floats | None, here: slice, kind: str) -> bytes | None:
    """Numbers of a row as they are stored; None where it was not scored."""
    if values_K is None or np.isnan(values_K[here.start]):
        return None
    with np.errstate(over="ignore"):  # a weight beyond float16 is stored as infinity
        return values_K[here].astype(kind).tobytes()
