"""Pack training rows into micro-batches: a prefix tree of tokens with padded attention views.

A row is a list of token ids with a mask of the trained tokens. Rows that begin with the same tokens
(rollouts of one group share the prompt, and often much of the conversation) share the computation
of these tokens: a micro-batch is the flattened prefix tree of its rows, and equal rows cost as much
as one. The partition into micro-batches changes gradients by rounding only: denominators are those
of the whole batch. `training.py` computes on the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tutelage.policy.kernels import round_up
from tutelage.policy.row import Row

Ints = NDArray[np.int64]

_VECTOR_BYTES = 64
"""Size of the widest CPU vectors. Rows of scores are padded to a multiple of it, since softmax is
slow for incomplete vectors."""

_SPREAD = 2.0
"""Maximum ratio of lengths within an attention segment."""


@dataclass(frozen=True, slots=True)
class AttentionSegment:
    """Padded attention indices of rows of similar length in a micro-batch.

    A row's queries `queries_RT` are the tokens that it adds to the tree, its keys `keys_RL` its
    whole path from the root, of which the first `before_R` belong to earlier rows. Both contain
    flat indices, padded with the index of the padding token. Query t of a row attends to its keys
    up to `before_R` + t.
    """

    queries_RT: Tensor
    keys_RL: Tensor
    before_R: Tensor


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch: flat tokens, their positions, attention segments, and trained tokens.

    Each flat token is a query of exactly one segment. The last flat tokens, at least one, are
    padding that rounds the shape (see `kernels.py`). `sources_S` are the flat tokens whose next
    token is trained, without repeats and padded; target k of `targets_K` is predicted from source
    `lines_K`, and is token `columns_K` of row `rows_K` of the batch.
    """

    ids_N: Tensor
    positions_N: Tensor
    segments: tuple[AttentionSegment, ...]
    sources_S: Tensor
    lines_K: Tensor
    targets_K: Tensor
    rows_K: Tensor
    columns_K: Tensor

    @staticmethod
    def pack(rows: Sequence[Row], device: torch.device, dtype: torch.dtype) -> MicroBatch:
        """Pack training rows into a micro-batch for activations of `dtype`.

        Each row needs at least one token. `rows_K` are indices into `rows`.
        """
        lanes = _VECTOR_BYTES // dtype.itemsize
        # The runs of the prefix tree, from sorted rows, so that each row shares most with the one
        # before it; and the index of the run in which each row ends.
        runs, run_of = list[_TreeRow](), [0] * len(rows)
        for r in sorted(range(len(rows)), key=lambda r: rows[r].ids):
            path = np.array(rows[r].ids, np.int64)
            before = _common_prefix(runs[-1].ids, path) if runs else 0
            if before < len(path):
                runs.append(_TreeRow(path, before, path))
            run_of[r] = len(runs) - 1
        parts: list[list[_TreeRow]] = []  # runs of similar size, to save padding
        for run in sorted(runs, key=lambda run: -run.size):
            if not parts or parts[-1][0].size > _SPREAD * run.size:
                parts.append([])
            parts[-1].append(run)
        total = 0
        for run in (run for part in parts for run in part):
            run.start, total = total, total + run.size
        padded = round_up(total + 1)
        ids, positions = np.zeros(padded, np.int64), np.zeros(padded, np.int64)
        shared = np.empty(0, np.int64)
        for run in runs:  # in the order of the tree: each run shares a prefix with the one before
            own = np.arange(run.start, run.start + run.size)
            run.path = shared = np.concatenate([shared[: run.before], own])
            ids[own], positions[own] = run.ids[run.before :], np.arange(run.before, len(run.ids))
        columns = [np.flatnonzero(np.array(row.mask[1:])) + 1 for row in rows]
        where = np.concatenate([runs[i].path[c - 1] for i, c in zip(run_of, columns, strict=True)])
        targets = np.concatenate([runs[i].ids[c] for i, c in zip(run_of, columns, strict=True)])
        sources, lines = np.unique(where, return_inverse=True)
        rest = np.full(round_up(len(sources)) - len(sources), padded - 1)

        def tensor(numbers: Ints) -> Tensor:
            return torch.from_numpy(numbers.astype(np.int64)).to(device)

        segments: list[AttentionSegment] = []
        for part in parts:
            width = round_up(max(len(run.ids) for run in part), lanes)
            queries, keys = (np.full((len(part), n), padded - 1) for n in (part[0].size, width))
            for r, run in enumerate(part):
                queries[r, : run.size] = run.path[run.before :]
                keys[r, : len(run.path)] = run.path
            before_R = np.array([run.before for run in part])
            segments.append(AttentionSegment(tensor(queries), tensor(keys), tensor(before_R)))
        return MicroBatch(
            ids_N=tensor(ids),
            positions_N=tensor(positions),
            segments=tuple(segments),
            sources_S=tensor(np.concatenate([sources, rest])),
            lines_K=tensor(lines),
            targets_K=tensor(targets),
            rows_K=tensor(np.repeat(np.arange(len(rows)), [len(c) for c in columns])),
            columns_K=tensor(np.concatenate(columns)),
        )


def plan_micro_batches(
    rows: Sequence[Row], max_tokens: int, *, shared: bool = False
) -> list[list[int]]:
    """Split rows into micro-batches of about `max_tokens` tokens, as lists of row indices.

    With `shared`, tokens that a row shares with the previous row are not counted. Rows with the
    same prompt stay together if they fit, and neighbours have similar lengths, to save padding. The
    result is deterministic.
    """
    batches: list[list[int]] = []
    used = 0
    for i, size, new in _packing_order(rows, shared):
        if not batches or used + new > max_tokens:
            batches.append([])
            used, new = 0, size
        batches[-1].append(i)
        used += new
    return batches


def group_by_owner(plan: Sequence[Sequence[int]], owners: Sequence[int]) -> list[list[int]]:
    """Move all rows of each owner to the micro-batch that contains the owner's first row."""
    homes: dict[int, int] = {}
    moved: list[list[int]] = [[] for _ in plan]
    for number, chosen in enumerate(plan):
        for i in chosen:
            moved[homes.setdefault(owners[i], number)].append(i)
    return [chosen for chosen in moved if chosen]


def plan_for_two_threads(rows: Sequence[Row], max_tokens: int) -> list[list[int]]:
    """Split rows into an even number of micro-batches of nearly equal size, for two threads.

    Two micro-batches together have at most about `max_tokens` tokens, without those that a row
    shares with the previous row. Rows are in the same order as in `plan_micro_batches`."""
    order = list(_packing_order(rows, shared=True))
    total = sum(new for _, _, new in order)
    batches: list[list[int]] = [[] for _ in range(2 * -(-total // max_tokens))]
    done = 0
    for i, _, new in order:
        # A row equal to the one before adds nothing to `done`, which may then be `total` already.
        batches[min(done * len(batches) // total, len(batches) - 1)].append(i)
        done += new
    return [batch for batch in batches if batch]


def _packing_order(rows: Sequence[Row], shared: bool) -> Iterator[tuple[int, int, int]]:
    """Yield rows in packing order: index, token count, and count of tokens not shared with the
    previous row."""
    by_prompt: dict[tuple[int, ...], list[int]] = {}
    for i, row in enumerate(rows):
        by_prompt.setdefault(row.ids[: row.prompt_length()], []).append(i)
    families = sorted(by_prompt.values(), key=lambda f: (max(len(rows[i].ids) for i in f), f[0]))
    before: Ints | None = None
    for family in families:
        for i in sorted(family, key=lambda i: (len(rows[i].ids), i)):
            size = len(rows[i].ids)
            ids = np.array(rows[i].ids) if shared else None
            common = 0 if ids is None or before is None else _common_prefix(before, ids)
            before = ids
            yield i, size, size - common


@dataclass(slots=True)
class _TreeRow:
    """A row's unshared tokens in the prefix tree, from position `before` and flat index `start`."""

    ids: Ints
    before: int
    path: Ints
    start: int = 0

    @property
    def size(self) -> int:
        return len(self.ids) - self.before


def _common_prefix(a: Ints, b: Ints) -> int:
    """Return the length of the common prefix of two arrays."""
    size = min(len(a), len(b))
    different = np.flatnonzero(a[:size] != b[:size])
    return int(different[0]) if len(different) else size
