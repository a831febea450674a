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

from collections.abc import Callable, Mapping
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from tutelage.errors import ConfigError

DagLoss = Literal["seed", "notears", "poly", "dagma"]
IGNORED = -100
"""Target of a position that has none."""
_SMALL = 16
"""Graphs of at most this number of nodes are scored together."""


def dag_loss(edges_BNN: Tensor, lengths_B: Tensor, kind: DagLoss = "poly") -> Tensor:
    """Mean over the graphs. `edges_BNN` are probabilities; graph b has `lengths_B[b]` nodes.

    The result does not depend on padding. Raises `ConfigError` for an unknown kind.
    """
    if kind not in _TERMS:
        raise ConfigError(f"dag_loss is {kind!r}; choose from {list(get_args(DagLoss))}")
    total = edges_BNN.new_zeros(())
    for rows_R in _alike(lengths_B):
        sizes_R = lengths_B[rows_R]
        count = int(sizes_R.max())
        real_RN = torch.arange(count) < sizes_R[:, None]
        inside = real_RN[:, :, None] & real_RN[:, None, :]
        total = total + _TERMS[kind](edges_BNN[rows_R, :count, :count] * inside, sizes_R).sum()
    return total / max(1, len(lengths_B))


def _alike(lengths_B: Tensor) -> list[Tensor]:
    """The rows that are scored together: all small graphs, and large ones of one size. Empty rows
    and columns add nothing, but powers for a large graph would overflow in a small one."""
    groups = [((lengths_B > 0) & (lengths_B <= _SMALL)).nonzero()[:, 0]]
    groups += [
        (lengths_B == size).nonzero()[:, 0]
        for size in lengths_B[lengths_B > _SMALL].unique().tolist()
    ]
    return [rows for rows in groups if len(rows)]


# Each term takes (R, N, N) probabilities, 0 outside of the graphs, and the (R,) sizes.


def _seed(p: Tensor, sizes: Tensor) -> Tensor:
    d = sizes.to(p.dtype)
    return p.tril().sum((-2, -1)) / (d * (d + 1) / 2)


def _notears(p: Tensor, sizes: Tensor) -> Tensor:
    del sizes
    return _trace(torch.linalg.matrix_exp(p * p)) - p.shape[-1]


def _poly(p: Tensor, sizes: Tensor) -> Tensor:
    """(I + Q / d)^d by repeated squaring, each graph with its own d."""
    eye = torch.eye(p.shape[-1])
    base = eye + p * p / sizes[:, None, None]
    power = eye.expand_as(base)
    for bit in range(int(sizes.max()).bit_length()):
        if bit:
            base = base @ base
        odd = ((sizes >> bit) & 1).bool()
        power = torch.where(odd[:, None, None], power @ base, power)
    return _trace(power) - p.shape[-1]


def _dagma(p: Tensor, sizes: Tensor) -> Tensor:
    s = sizes.to(p.dtype) + 1.0
    graph = s[:, None, None] * torch.eye(p.shape[-1]) - p * p
    return p.shape[-1] * s.log() - torch.linalg.slogdet(graph).logabsdet


def _trace(m: Tensor) -> Tensor:
    return m.diagonal(dim1=-2, dim2=-1).sum(-1)


_TERMS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "seed": _seed,
    "notears": _notears,
    "poly": _poly,
    "dagma": _dagma,
}


def type_loss(logits_BNT: Tensor, targets_BN: Tensor) -> Tensor:
    """Mean cross-entropy over the positions with a target, the end among them."""
    return F.cross_entropy(logits_BNT.flatten(0, 1), targets_BN.flatten(), ignore_index=IGNORED)


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
    keeps, where it is known whether there is an edge; 0 when there is no such pair.
    """
    count = logits_BNN.shape[1]
    steps = torch.arange(count)
    forward = steps[:, None] < steps[None, :]
    there = forward[None] & (steps[None, None, :] < lengths_B[:, None, None])
    there = there & (adjacency_BNN != IGNORED)
    if not bool(there.any()):
        return logits_BNN.sum() * 0.0
    return F.binary_cross_entropy_with_logits(logits_BNN[there], adjacency_BNN[there].float())
