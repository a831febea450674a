"""The two kinds of network behind one interface, and the scoring of training rows.

`Network` is what a policy needs of a model: its tensors, its weights under Hugging Face names, and
the log-probabilities of trained tokens. `FusedNetwork` runs the fused decoder (`decoder.py`);
`hf_model.py` has the fallback for other architectures; `model.py` chooses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from tutelage.policy import decoder
from tutelage.policy.kernels import linear
from tutelage.policy.packing import TokenRow, pack
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
        hidden = decoder.hidden(self.weights, batch, dtype)
        logp, entropy = score_hidden(
            hidden, self.weights.head, batch.targets_K, temperature, entropy_gradient
        )
        return Scores(logp, entropy, batch.rows_K, batch.columns_K)


def score_hidden(
    hidden_KH: Tensor, head: Tensor, targets_K: Tensor, temperature: float, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy [K] of targets, in chunks when the scores would be large."""
    count = hidden_KH.shape[0]
    chunk = max(1, _LOGITS_LIMIT // head.shape[0])

    def one(h: Tensor, head: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        z = linear(h, head.to(h.dtype)).float()
        if temperature != 1.0:
            z = z / temperature
        return pick(z, t, entropy_gradient)

    if count <= chunk:
        return one(hidden_KH, head, targets_K)
    from torch.utils.checkpoint import checkpoint

    parts: list[tuple[Tensor, Tensor]] = []
    for at in range(0, count, chunk):
        part: Any = checkpoint(
            one, hidden_KH[at : at + chunk], head, targets_K[at : at + chunk], use_reentrant=False
        )
        parts.append(part)
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def pick(z_KV: Tensor, targets_K: Tensor, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
    """Log-probability of the targets and entropy, [K] each, of tempered scores."""
    logp_KV = torch.log_softmax(z_KV, -1)
    logp_K = logp_KV.gather(1, targets_K[:, None]).squeeze(1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy_K = -(logp_KV.exp() * logp_KV).sum(-1)
    return logp_K, entropy_K
