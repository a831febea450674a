"""Training rows to packed micro-batches: flat tokens, shared prompts, padded attention views.

A row is a list of token ids with a mask of the tokens that are trained. Rows that begin with the
same untrained prompt (the rollouts of one group do) keep one copy of it in the micro-batch. How
rows are cut into micro-batches changes no gradient but by rounding: denominators are the whole
batch's. `decoder.py` computes on the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tutelage.policy.decoder import Packed, Segment
from tutelage.policy.kernels import rounded


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One training sequence: ids, and 1 in `mask` where a token was sampled and is trained."""

    ids: tuple[int, ...]
    mask: tuple[int, ...]

    def prompt_length(self) -> int:
        """Number of leading tokens that carry no loss."""
        for i, m in enumerate(self.mask):
            if m:
                return i
        return len(self.mask)


def plan_micro_batches(rows: Sequence[TokenRow], max_tokens: int) -> list[list[int]]:
    """Cut rows into micro-batches of about `max_tokens` tokens of attention work.

    Rows that share a prompt stay together where they fit, and neighbours have similar lengths, so
    that little is padded. Deterministic. Returns lists of row numbers.
    """
    by_prompt: dict[tuple[int, ...], list[int]] = {}
    for i, row in enumerate(rows):
        by_prompt.setdefault(row.ids[: row.prompt_length()], []).append(i)
    families = sorted(by_prompt.values(), key=lambda f: (max(len(rows[i].ids) for i in f), f[0]))
    batches: list[list[int]] = []
    current: list[int] = []
    used = 0
    for family in families:
        for i in sorted(family, key=lambda i: (len(rows[i].ids), i)):
            size = len(rows[i].ids)
            if current and used + size > max_tokens:
                batches.append(current)
                current, used = [], 0
            current.append(i)
            used += size
    if current:
        batches.append(current)
    return batches


def pack(rows: Sequence[TokenRow], device: torch.device, dtype: torch.dtype) -> Packed:
    """Lay `rows` out flat. Every row needs at least one token; `rows_K` counts from 0 here."""
    prefixes: dict[tuple[int, ...], int] = {}
    prefix_of: list[int] = []
    for row, cut in zip(rows, _shared_lengths(rows), strict=True):
        prefix_of.append(prefixes.setdefault(row.ids[:cut], len(prefixes)))
    shared = list(prefixes)
    flat: list[int] = [t for p in shared for t in p]
    positions: list[int] = [i for p in shared for i in range(len(p))]
    starts, at = [], 0
    for p in shared:
        starts.append(at)
        at += len(p)
    suffix_start = at
    own_starts: list[int] = []
    sources: list[int] = []
    where: list[tuple[int, int]] = []
    for r, row in enumerate(rows):
        cut = len(shared[prefix_of[r]])
        own_starts.append(len(flat))
        flat.extend(row.ids[cut:])
        positions.extend(range(cut, len(row.ids)))
        for c in range(max(1, cut), len(row.ids)):
            if row.mask[c]:
                sources.append(own_starts[r] + c - 1 - cut)
                where.append((r, c))
    prefix_lengths = [len(p) for p in shared]
    own_lengths = [len(row.ids) - prefix_lengths[prefix_of[r]] for r, row in enumerate(rows)]
    segments: list[Segment] = []
    if suffix_start:
        segments.append(_prefix_segment(starts, prefix_lengths, device, dtype))
    segments.append(
        _suffix_segment(
            suffix_start, own_starts, own_lengths, prefix_of, starts, prefix_lengths, device, dtype
        )
    )
    padding = [0] * (rounded(len(flat)) - len(flat))
    sources += [0] * (rounded(len(sources)) - len(sources))
    targets = [rows[r].ids[c] for r, c in where]
    return Packed(
        ids_N=torch.tensor(flat + padding, device=device),
        positions_N=torch.tensor(positions + padding, device=device),
        segments=tuple(segments),
        sources_K=torch.tensor(sources, dtype=torch.long, device=device),
        targets_K=torch.tensor(targets, dtype=torch.long, device=device),
        rows_K=torch.tensor([r for r, _ in where], dtype=torch.long, device=device),
        columns_K=torch.tensor([c for _, c in where], dtype=torch.long, device=device),
    )


def _shared_lengths(rows: Sequence[TokenRow]) -> list[int]:
    """How many leading tokens each row shares: its whole prompt where groups have one, else what
    all rows have in common (a system turn). The last prompt token predicts the first trained one,
    so it is never shared."""
    cuts = [max(0, row.prompt_length() - 1) for row in rows]
    prompts = {row.ids[:cut] for row, cut in zip(rows, cuts, strict=True)}
    if 2 * len(prompts) <= len(rows):
        return cuts
    low, high = min(r.ids for r in rows), max(r.ids for r in rows)
    common = 0
    while common < min(cuts) and low[common] == high[common]:
        common += 1
    return [common] * len(rows)


def _grid(starts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Flat indices [R, T] of ragged runs, padded with each run's own start, and what is real."""
    steps = torch.arange(int(lengths.max()) if len(lengths) else 0)
    real = steps < lengths[:, None]
    return starts[:, None] + torch.where(real, steps, 0), real


def _causal(rows: int, count: int) -> Tensor:
    return torch.ones(count, count, dtype=torch.bool).tril().expand(rows, count, count)


def _additive(allowed: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    mask = torch.zeros(allowed.shape, dtype=dtype)
    return mask.masked_fill_(~allowed, -torch.inf).to(device)


def _prefix_segment(
    starts: list[int], lengths: list[int], device: torch.device, dtype: torch.dtype
) -> Segment:
    """Each shared prompt attends to itself, causally. Empty prompts have no row."""
    kept = [g for g, n in enumerate(lengths) if n]
    at, count = torch.tensor([starts[g] for g in kept]), torch.tensor([lengths[g] for g in kept])
    grid, real = _grid(at, count)
    return Segment(
        start=0,
        queries_RT=grid.to(device),
        keys_RL=grid.to(device),
        mask_RTL=_additive(_causal(len(kept), grid.shape[1]), device, dtype),
        valid_Q=real.flatten().nonzero().squeeze(1).to(device),
        prefix_R=None,
        prefix_GP=None,
    )


def _suffix_segment(
    start: int,
    own_starts: list[int],
    own_lengths: list[int],
    prefix_of: list[int],
    prefix_starts: list[int],
    prefix_lengths: list[int],
    device: torch.device,
    dtype: torch.dtype,
) -> Segment:
    """Each row attends to its shared prompt and, causally, to itself."""
    queries, real = _grid(torch.tensor(own_starts), torch.tensor(own_lengths))
    rows, count = queries.shape
    group = torch.tensor(prefix_of)
    lengths = torch.tensor(prefix_lengths)
    prefix_grid, prefix_real = _grid(torch.tensor(prefix_starts), lengths)
    width = prefix_grid.shape[1]
    # An empty prompt has no token of its own: point its (masked) keys at a valid place.
    prefix_grid = torch.where(prefix_real, prefix_grid, 0)
    allowed = torch.cat(
        [prefix_real[group][:, None].expand(rows, count, width), _causal(rows, count)], dim=2
    )
    return Segment(
        start=start,
        queries_RT=queries.to(device),
        keys_RL=torch.cat([prefix_grid[group], queries], dim=1).to(device),
        mask_RTL=_additive(allowed, device, dtype),
        valid_Q=real.flatten().nonzero().squeeze(1).to(device),
        prefix_R=group.to(device) if width else None,
        prefix_GP=prefix_grid.to(device) if width else None,
    )
