"""The two kinds of network behind one interface, and the scoring of training rows.

`Network` is what a policy needs of a model: its tensors, its weights under Hugging Face names, and
the log-probabilities of trained tokens. `FusedNetwork` runs the fused decoder (`training.py`);
`hf_model.py` has the fallback for other architectures; `model.py` chooses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from tutelage.policy import training
from tutelage.policy.kernels import linear
from tutelage.policy.packing import Packed, TokenRow, pack
from tutelage.policy.weights import Weights, to_hf

_LOGITS_LIMIT = 1 << 26
"""Vocabulary scores held at once while scoring; more are computed in chunks and recomputed."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What the trainer needs of each trained token, K of them.

    `logp_K` is the log-probability at the sampling temperature, with gradient; `entropy_K` the
    entropy of that distribution (with gradient only when asked for); `rows_K` and `columns_K` say
    which row and token it is.
    """

    logp_K: Tensor
    entropy_K: Tensor
    rows_K: Tensor
    columns_K: Tensor


class Network(Protocol):
    """What differs between the fused decoder and a Hugging Face model."""

    device: torch.device

    def named(self) -> Iterable[tuple[str, Tensor]]:
        """Trainable tensors, in a fixed order."""
        ...

    def score(
        self,
        rows: Sequence[TokenRow],
        temperature: float,
        dtype: torch.dtype,
        entropy_gradient: bool,
    ) -> Scores:
        """Log-probabilities of the trained tokens of `rows`."""
        ...

    def state(self) -> dict[str, Tensor]:
        """The weights under their Hugging Face names."""
        ...


class FusedNetwork:
    """The fused decoder as a `Network`."""

    def __init__(self, weights: Weights, device: torch.device) -> None:
        self.weights = weights.to(device, torch.float32)
        self.device = device
        for tensor in self.weights.parameters():
            tensor.requires_grad_()

    def named(self) -> Iterable[tuple[str, Tensor]]:
        """Trainable tensors, in a fixed order."""
        return self.weights.named()

    def state(self) -> dict[str, Tensor]:
        """The weights under their Hugging Face names."""
        return to_hf(self.weights)

    def score(
        self,
        rows: Sequence[TokenRow],
        temperature: float,
        dtype: torch.dtype,
        entropy_gradient: bool,
    ) -> Scores:
        """Log-probabilities of the trained tokens of `rows`, by the packed forward."""
        batch = pack(rows, self.device, dtype)
        hidden = training.hidden(self.weights, batch, dtype)
        logp, entropy = score_hidden(
            hidden, self.weights.head, batch, temperature, entropy_gradient
        )
        return Scores(logp, entropy, batch.rows_K, batch.columns_K)


def score_hidden(
    hidden_SH: Tensor, head: Tensor, batch: Packed, temperature: float, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy [K] of targets, in chunks when the scores would be large."""
    chunk = max(1, _LOGITS_LIMIT // head.shape[0])

    def one(h: Tensor, head: Tensor, lines: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        z = linear(h, head.to(h.dtype)).float()
        if temperature != 1.0:
            z = z / temperature
        return pick(z, lines, targets, entropy_gradient)

    if hidden_SH.shape[0] <= chunk:
        return one(hidden_SH, head, batch.lines_K, batch.targets_K)
    from torch.utils.checkpoint import checkpoint

    parts: list[tuple[Tensor, Tensor]] = []
    wanted: list[Tensor] = []
    for at in range(0, hidden_SH.shape[0], chunk):
        here = ((batch.lines_K >= at) & (batch.lines_K < at + chunk)).nonzero().squeeze(1)
        lines, targets = batch.lines_K[here] - at, batch.targets_K[here]
        part: Any = checkpoint(
            one, hidden_SH[at : at + chunk], head, lines, targets, use_reentrant=False
        )
        parts.append(part)
        wanted.append(here)
    back = torch.cat(wanted).argsort()
    return torch.cat([p[0] for p in parts])[back], torch.cat([p[1] for p in parts])[back]


def pick(
    z_SV: Tensor, lines_K: Tensor, targets_K: Tensor, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Log-probability of targets and entropy, [K] each, from their lines of tempered scores."""
    logp_SV = torch.log_softmax(z_SV, -1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy_S = -(logp_SV.exp() * logp_SV).sum(-1)
    return logp_SV[lines_K, targets_K], entropy_S[lines_K]
