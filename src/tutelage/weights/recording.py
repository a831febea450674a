"""What a training step made of its rows, kept in the store: advantages, and numbers for each token.

`TokenRecord` collects what the update's forward passes said anyway; nothing is computed for its
sake, so a row from which nothing could be learned, and which was skipped, has no numbers of its
tokens. `StepRecorder` turns it into rows of the store. They are small beside the rollouts (8 bytes
a trained token), and `trainer.record_tokens` bounds them. `learner.py` fills both;
`store/records.py` says what each number is.

Legend: B rows, T tokens, K trained tokens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tutelage.algorithms.rl import rollout_importance_weights
from tutelage.config import RunConfig
from tutelage.policy.network import Scores
from tutelage.store import Store, StoreWriter, TrainingRow
from tutelage.types import Rollout
from tutelage.weights.batch import Batch

Floats = NDArray[np.float32]
Tokens = tuple[Tensor, Tensor, Tensor | None]
"""Log-probabilities, entropies, and importance weights where a correction is on: [B, T] each, NaN
where no pass was made."""
Keep = Callable[[str, Sequence[Rollout], Batch, Tokens], None]
"""Hears of a policy's step: its name, the rollouts that `Batch.rollouts_B` numbers, the batch, and
what was said of its tokens."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """One micro-batch: which rows it had, and what was said of their trained tokens."""

    rows: list[int]
    rows_K: Tensor
    columns_K: Tensor
    logp_K: Tensor
    entropy_K: Tensor


@dataclass(slots=True)
class TokenRecord:
    """What the forward passes of a step's first epoch said of each trained token."""

    before_BT: Tensor | None = None
    """The trainer's log-probabilities before the step, where several optimizer steps follow."""
    weights_BT: Tensor | None = None
    """The importance weights that were applied, where they were known before the passes."""
    _passes: list[_Pass] = field(default_factory=list[_Pass])
    _adding: threading.Lock = field(default_factory=threading.Lock)

    def add(self, rows: list[int], scores: Scores) -> None:
        """Take in the pass over the rows with these numbers; threads may call it at once."""
        found = _Pass(
            rows,
            scores.rows_K,
            scores.columns_K,
            scores.logp_K.detach(),
            scores.entropy_K.detach(),
        )
        with self._adding:
            self._passes.append(found)

    def tensors(self, batch: Batch, config: RunConfig) -> Tokens:
        """What was said of the tokens of a batch."""
        logp_BT, entropy_BT = (torch.full(batch.mask_BT.shape, torch.nan) for _ in range(2))
        for found in self._passes:
            where = (torch.tensor(found.rows)[found.rows_K.cpu()], found.columns_K.cpu())
            known_K = found.logp_K if self.before_BT is None else self.before_BT[where]
            logp_BT[where] = known_K.float().cpu()
            entropy_BT[where] = found.entropy_K.float().cpu()
        if config.rollout.correction == "none":
            return logp_BT, entropy_BT, None
        weights_BT = self.weights_BT
        if weights_BT is None:
            weights_BT = rollout_importance_weights(
                (logp_BT - batch.old_logp_BT).nan_to_num(),
                batch.mask_BT,
                config.rollout.correction,
                config.rollout.correction_cap,
                rollouts_B=batch.rollouts_B,
            )
        return logp_BT, entropy_BT, weights_BT.masked_fill(logp_BT.isnan(), torch.nan)


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

    def keep(
        self, tick: int, policy: str, rollouts: Sequence[Rollout], batch: Batch, tokens: Tokens
    ) -> None:
        """Store the rows from which one policy learned at the step `tick`; see `Keep`."""
        advantages = _flat(batch.advantages_BT, batch)
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
                    rollout_id=rollouts[batch.rollouts_B[position]].id,
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
