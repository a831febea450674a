"""Draw tokens by inverse CDF, with one uniform number per row from its request's own stream.

Pure functions of logits and uniforms. The log-probabilities returned are those of the full
vocabulary at the row's temperature (what a trainer recomputes), whatever top-p or top-k exclude
from the draw. `native.py` calls this once per step. A large vocabulary is summed in blocks, some
rows at once: full tables would cost more than the draw.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tutelage.policy.machine import parallel_map

_LARGE, _BLOCK, _AT_ONCE = 8192, 256, 8
"""Tokens from which on a vocabulary is large, tokens per block, and rows summed at once."""
_BELOW_1 = 1 - 2.0**-23


def draw_uniforms(seed: int, count: int) -> np.ndarray:
    """Return `count` float32 uniforms in [0, 1), a pure function of `seed` (counter-based Philox).

    They are in single precision, as `draw` uses them: a double could round up to 1 there, and
    select a token beyond the last that may be drawn.
    """
    return np.random.Generator(np.random.Philox(key=seed)).random(count, dtype=np.float32)


def draw(
    logits_LV: Tensor,
    uniform_B: Tensor,
    temperature_B: Tensor | None = None,
    top_p_B: Tensor | None = None,
    top_k_B: Tensor | None = None,
    *,
    line_B: Tensor | None = None,
    threads: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw a token per row; return it, its log-probability at the row's temperature, and that at 1.

    A temperature of 0 takes the most likely token, with its log-probability at temperature 1. None
    means 1 for every row; `top_p_B` of 1 and `top_k_B` of 0 exclude nothing. `line_B` is the line
    of the logits that each row reads, by default its own. The number of `threads` does not change
    any bit.
    """
    whole = top_p_B is None or top_k_B is None or bool(((top_p_B >= 1) & (top_k_B == 0)).all())
    if whole and logits_LV.shape[1] >= _LARGE:
        return _draw_by_blocks(logits_LV, uniform_B, temperature_B, line_B, threads)
    if temperature_B is None and top_p_B is None and top_k_B is None:
        # At temperature 1 from the whole vocabulary, process each line once.
        logp_LV = torch.log_softmax(logits_LV.float(), -1)
        cdf_LV = logp_LV.exp().cumsum(-1)
        if line_B is None:
            line_B = torch.arange(len(logits_LV), device=logits_LV.device)
        token_B = _invert_cdf(cdf_LV.index_select(0, line_B), uniform_B)
        logp_B = logp_LV[line_B, token_B]
        return token_B, logp_B, logp_B
    logits_BV = (logits_LV if line_B is None else logits_LV.index_select(0, line_B)).float()
    raw_BV = torch.log_softmax(logits_BV, -1)
    if temperature_B is None:
        greedy_B, warm_BV = None, raw_BV
    else:
        greedy_B = temperature_B == 0
        divisor = torch.where(greedy_B, 1.0, temperature_B)[:, None]
        warm_BV = torch.log_softmax(logits_BV / divisor, -1)
    support_BV = warm_BV
    if top_p_B is not None and top_k_B is not None and not whole:
        support_BV = _truncate(warm_BV, top_p_B, top_k_B)
    token_B = _invert_cdf(support_BV.exp().cumsum(-1), uniform_B)
    if greedy_B is not None:
        token_B = torch.where(greedy_B, logits_BV.argmax(-1), token_B)
    pick = token_B[:, None]
    return token_B, warm_BV.gather(1, pick).squeeze(1), raw_BV.gather(1, pick).squeeze(1)


def _draw_by_blocks(
    logits_LV: Tensor,
    uniform_B: Tensor,
    temperature_B: Tensor | None,
    line_B: Tensor | None,
    threads: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw one token per row from a large vocabulary: first its block, then the token within the
    block."""
    step = _AT_ONCE if logits_LV.device.type == "cpu" else len(uniform_B)

    def draw_rows(rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        lines = logits_LV[rows] if line_B is None else logits_LV.index_select(0, line_B[rows])
        raw_BV = lines.float()
        raw_BV = F.pad(raw_BV, (0, -raw_BV.shape[1] % _BLOCK), value=-torch.inf)
        raw_BV = raw_BV - raw_BV.amax(-1, keepdim=True)
        if temperature_B is None:
            token_B, logp_B, _ = _draw_in_blocks(raw_BV, uniform_B[rows])
            return token_B, logp_B, logp_B
        greedy_B = temperature_B[rows] == 0
        warm_BV = raw_BV / torch.where(greedy_B, 1.0, temperature_B[rows])[:, None]
        token_B, logp_B, total_B1 = _draw_in_blocks(warm_BV, uniform_B[rows])
        token_B = torch.where(greedy_B, raw_BV.argmax(-1), token_B)
        pick, normal = token_B[:, None], raw_BV.exp().sum(-1, keepdim=True).log()
        logp = warm_BV.gather(1, pick) - total_B1.log()
        return token_B, logp.squeeze(1), (raw_BV.gather(1, pick) - normal).squeeze(1)

    starts = range(0, len(uniform_B), step)
    parts = parallel_map(draw_rows, [slice(at, at + step) for at in starts], threads)
    token_B, logp_B, raw_B = (torch.cat(values) for values in zip(*parts, strict=True))
    return token_B, logp_B, raw_B


def _draw_in_blocks(scores_BV: Tensor, uniform_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Draw a token per row; return it, its log-probability and the softmax denominator [B, 1].

    Points lie below the sums that are searched, so the token found has a positive probability.
    """
    mass_BKJ = scores_BV.exp().unflatten(1, (-1, _BLOCK))
    cdf_BK = mass_BKJ.sum(-1).cumsum(-1)
    total_B1 = cdf_BK[:, -1:]
    point_B1 = uniform_B[:, None].to(cdf_BK.dtype).clamp(max=_BELOW_1) * total_B1
    block_B1 = torch.searchsorted(cdf_BK, point_B1, right=True).clamp_(max=cdf_BK.shape[1] - 1)
    before_B1 = torch.where(block_B1 > 0, cdf_BK.gather(1, (block_B1 - 1).clamp(min=0)), 0.0)
    inner_BJ = mass_BKJ[torch.arange(len(mass_BKJ), device=block_B1.device), block_B1[:, 0]]
    inner_BJ = inner_BJ.cumsum(-1)
    rest_B1 = torch.minimum(point_B1 - before_B1, inner_BJ[:, -1:] * _BELOW_1)
    token_B1 = block_B1 * _BLOCK + torch.searchsorted(inner_BJ, rest_B1, right=True)
    logp_B1 = scores_BV.gather(1, token_B1) - total_B1.log()
    return token_B1.squeeze(1), logp_B1.squeeze(1), total_B1


def _invert_cdf(cdf_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """Return the token at which each row's cumulative mass passes the fraction `uniform_B` of the
    total."""
    point_B1 = uniform_B[:, None].to(cdf_BV.dtype) * cdf_BV[:, -1:]
    token_B = torch.searchsorted(cdf_BV, point_B1, right=True).squeeze(1)
    return token_B.clamp_(max=cdf_BV.shape[1] - 1)


def _truncate(logp_BV: Tensor, top_p_B: Tensor, top_k_B: Tensor) -> Tensor:
    """Apply top-k, then top-p, by setting the logits of excluded tokens to -inf.

    Top-p keeps the smallest set of tokens that reaches it.
    """
    ordered, index = logp_BV.sort(-1, descending=True)
    rank = torch.arange(logp_BV.shape[1], device=logp_BV.device)
    keep = (top_k_B[:, None] == 0) | (rank < top_k_B[:, None])
    mass = torch.where(keep, ordered.exp(), 0.0)
    mass = mass / mass.sum(-1, keepdim=True)
    before = mass.cumsum(-1) - mass
    keep &= (before < top_p_B[:, None]) | (rank == 0)
    allowed = torch.zeros_like(keep).scatter(1, index, keep)
    return logp_BV.masked_fill(~allowed, -torch.inf)
