"""The supervised loss: cross-entropy of a plan, and how far its soft graph is from a DAG.

The DAG terms look at edge probabilities P before any threshold, over all ordered pairs with the
diagonal, so that they carry a gradient. With Q = P∘P and d nodes:

    seed     mean of the diagonal and of the edges that point backwards
    notears  tr(exp(Q)) - d                      (Zheng et al. 2018)
    poly     tr((I + Q / d)^d) - d               (Yu et al. 2019)
    dagma    -log det(s I - Q) + d log s         (Bello et al. 2022), s = d + 1

All are 0 on strictly upper triangular P. `notears`, `poly` and `dagma` are 0 for every acyclic P;
`seed` also asks for the decoder's order. `network.py` gives the scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from tutelage.errors import ConfigError

DagLoss = Literal["seed", "notears", "poly", "dagma"]
IGNORED = -100
"""Target of a position that has none."""


def dag_loss(edges_BNN: Tensor, lengths_B: Tensor, kind: DagLoss = "poly") -> Tensor:
    """Mean over the graphs. `edges_BNN` are probabilities; graph b has `lengths_B[b]` nodes.

    Graphs of one size are scored together, so that the result does not depend on padding. Raises
    `ConfigError` for an unknown kind.
    """
    if kind not in _TERMS:
        raise ConfigError(f"dag_loss is {kind!r}; choose from {list(get_args(DagLoss))}")
    total = edges_BNN.new_zeros(())
    for size in lengths_B.unique().tolist():
        if size > 0:
            total = total + _TERMS[kind](edges_BNN[lengths_B == size, :size, :size]).sum()
    return total / max(1, len(lengths_B))


def _seed(p: Tensor) -> Tensor:
    d = p.shape[-1]
    wrong = torch.tril(torch.ones(d, d, dtype=torch.bool))
    return p[:, wrong].mean(-1)


def _notears(p: Tensor) -> Tensor:
    return _trace(torch.linalg.matrix_exp(p * p)) - p.shape[-1]


def _poly(p: Tensor) -> Tensor:
    d = p.shape[-1]
    return _trace(torch.linalg.matrix_power(torch.eye(d) + p * p / d, d)) - d


def _dagma(p: Tensor) -> Tensor:
    d = p.shape[-1]
    s = d + 1.0
    return d * math.log(s) - torch.linalg.slogdet(s * torch.eye(d) - p * p).logabsdet


def _trace(m: Tensor) -> Tensor:
    return torch.einsum("...ii->...", m)


_TERMS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "seed": _seed,
    "notears": _notears,
    "poly": _poly,
    "dagma": _dagma,
}


def type_loss(logits_BNT: Tensor, targets_BN: Tensor, smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy over the positions with a target, the end among them."""
    return F.cross_entropy(
        logits_BNT.flatten(0, 1),
        targets_BN.flatten(),
        ignore_index=IGNORED,
        label_smoothing=smoothing,
    )


def set_loss(logits_BT: Tensor, targets_BN: Tensor) -> Tensor:
    """Binary cross-entropy of "this tool is in the plan", summed over tools, a mean over plans."""
    tools = logits_BT.shape[1]
    wanted = torch.zeros(len(logits_BT), tools + 1)
    places = torch.where((targets_BN >= 0) & (targets_BN < tools), targets_BN, tools)
    wanted.scatter_(1, places, 1.0)
    loss = F.binary_cross_entropy_with_logits(logits_BT, wanted[:, :tools], reduction="sum")
    return loss / len(logits_BT)


def edge_loss(logits_BNN: Tensor, adjacency_BNN: Tensor, lengths_B: Tensor) -> Tensor:
    """Mean binary cross-entropy over the pairs i < j of nodes, which are those that decoding
    keeps; 0 when no plan has two nodes.
    """
    count = logits_BNN.shape[1]
    steps = torch.arange(count)
    forward = steps[:, None] < steps[None, :]
    there = forward[None] & (steps[None, None, :] < lengths_B[:, None, None])
    if not bool(there.any()):
        return logits_BNN.sum() * 0.0
    return F.binary_cross_entropy_with_logits(logits_BNN[there], adjacency_BNN[there].float())
