"""Store the rows of a training step with their advantages and values per token.

The values come from the update's forward passes (`learner.py`). No pass is made for them alone, so
a row that was skipped, because nothing could be learned from it, has no values. They are small
compared with the rollouts (8 bytes per trained token). `store/records.py` describes them.

Legend: B rows, T tokens, K trained tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tutelage.store import StoreWriter, TrainingRow
from tutelage.weights.batch import Batch


def record(writer: StoreWriter, run_id: str, tick: int, batches: Mapping[str, Batch]) -> None:
    """Store the training rows of each policy for the step `tick`."""
    for policy, batch in batches.items():
        tensors = (batch.advantages_BT, batch.logp_BT, batch.entropy_BT, batch.weights_BT)
        advantages, logprobs, entropies, weights = (
            None if x_BT is None else x_BT[batch.mask_BT].float().cpu().numpy() for x_BT in tensors
        )
        assert advantages is not None, "every batch has advantages"
        rows: list[TrainingRow] = []
        start = 0
        for position, row in enumerate(batch.rows):
            here = slice(start, start + row.n_trained)
            start = here.stop
            own = advantages[here]
            same = bool((own == own[0]).all())
            rows.append(
                TrainingRow(
                    step=tick,
                    policy=policy,
                    position=position,
                    rollout_id=batch.rollouts[batch.rollouts_B[position]].id,
                    tokens=row.n_trained,
                    advantage=float(own[0] if same else own.mean(dtype=np.float64)),
                    advantages=None if same else own.astype("<f4").tobytes(),
                    logprobs=_pack_values(logprobs, here, "<f4"),
                    entropies=_pack_values(entropies, here, "<f2"),
                    importance_weights=_pack_values(weights, here, "<f2"),
                )
            )
        writer.submit_training(run_id, rows)


def _pack_values(values_K: NDArray[np.float32] | None, span: slice, dtype: str) -> bytes | None:
    """Return the values of a row as bytes, or None if the row was not scored."""
    if values_K is None or np.isnan(values_K[span.start]):
        return None
    with np.errstate(over="ignore"):  # a weight beyond float16 is stored as infinity
        return values_K[span].astype(dtype).tobytes()
