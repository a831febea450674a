"""The fallback for architectures that the fused decoder does not know: their own forward.

Slower, but any causal language model that transformers can run trains and samples through it. Same
interface as the fused network in `network.py`; the engine's side is in `engine/backends.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tutelage.policy.network import Scores, pick
from tutelage.policy.packing import TokenRow


class HFNetwork:
    """A `transformers` causal language model as a `Network`."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self.model: Any = model.to(device=device, dtype=torch.float32)
        self.model.eval()
        self.device = device

    def named(self) -> Iterable[tuple[str, Tensor]]:
        """Trainable tensors, in the model's own order."""
        module: nn.Module = self.model
        return ((n, p) for n, p in module.named_parameters() if p.requires_grad)

    def state(self) -> dict[str, Tensor]:
        """The weights under their Hugging Face names, tied tensors once."""
        seen: set[int] = set()
        out: dict[str, Tensor] = {}
        for name, tensor in self.model.state_dict().items():
            if tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                out[name] = tensor.detach().to("cpu").clone().contiguous()
        return out

    def score(
        self,
        rows: Sequence[TokenRow],
        temperature: float,
        dtype: torch.dtype,
        entropy_gradient: bool,
    ) -> Scores:
        """Log-probabilities of the trained tokens, right-padded, logits only where trained."""
        width = max(len(r.ids) for r in rows)
        ids_BT = torch.zeros(len(rows), width, dtype=torch.long)
        seen_BT = torch.zeros(len(rows), width, dtype=torch.long)
        where = [(b, c) for b, r in enumerate(rows) for c in range(1, len(r.ids)) if r.mask[c]]
        for b, row in enumerate(rows):
            ids_BT[b, : len(row.ids)] = torch.tensor(row.ids)
            seen_BT[b, : len(row.ids)] = 1
        rows_K = torch.tensor([b for b, _ in where], dtype=torch.long, device=self.device)
        columns_K = torch.tensor([c for _, c in where], dtype=torch.long, device=self.device)
        ids_BT = ids_BT.to(self.device)
        with torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32):
            logits_BTV = self.model(
                input_ids=ids_BT, attention_mask=seen_BT.to(self.device), use_cache=False
            ).logits
        z = logits_BTV[rows_K, columns_K - 1].float()
        if temperature != 1.0:
            z = z / temperature
        lines_K = torch.arange(len(z), device=self.device)
        logp, entropy = pick(z, lines_K, ids_BT[rows_K, columns_K], entropy_gradient)
        return Scores(logp, entropy, rows_K, columns_K)
