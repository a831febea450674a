"""The value model: a network without its output head, and a linear value head.

The value of a token is that of the state in which it was sampled: a linear function of the hidden
state that predicts it. The trunk is a copy of the policy's or another model; it shares no tensor
with the policy. The head is initialised with zeros, so a fresh critic returns 0 everywhere, needs
no random numbers, and learns from its first step. `weights/critic.py` trains it; the loss is in
`algorithms/rl/value.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tutelage.policy.hf_model import Network
from tutelage.policy.network import TokenTensors
from tutelage.policy.row import Row

HEAD = "value_head"
"""Prefix of the names of the head's tensors."""


class ValueModel:
    """A value model: a trunk and a linear value head in float32."""

    def __init__(self, network: Network, width: int) -> None:
        """Create a value model with the trunk `network`, which must not be used elsewhere. `width`
        is the size of a hidden state."""
        self._network = network
        self._line_H = torch.zeros(width, device=network.device, requires_grad=True)
        self._bias = torch.zeros((), device=network.device, requires_grad=True)

    def named_tensors(self) -> list[tuple[str, Tensor]]:
        """Return the trainable tensors by name, in a fixed order."""
        head = [(f"{HEAD}.weight", self._line_H), (f"{HEAD}.bias", self._bias)]
        return [*self._network.trunk(), *head]

    def parameters(self) -> list[Tensor]:
        """Return the trainable tensors in the order of `named_tensors`."""
        return [t for _, t in self.named_tensors()]

    def values(self, rows: Sequence[Row], dtype: torch.dtype = torch.float32) -> TokenTensors:
        """Compute the value of each trained token of `rows`, with gradients."""
        states = self._network.hidden_states(rows, dtype)
        return states._replace(values=states.values @ self._line_H + self._bias)
