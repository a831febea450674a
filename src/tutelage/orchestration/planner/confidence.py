"""How sure a planner is of a plan: signals of the search, and a logistic model fitted on held-out
requests.

A plan is right when it has the tools that were wanted. What is known to be wrong is made of the
held-out workflows themselves, by planning them without some of their tools, and of requests that a
catalog does not serve (`data/elsewhere.py`). The threshold keeps most of the right plans; below it
no tool fits. `model.py` asks, `fit.py` fits before the last epochs on all data, `saving.py` stores.

Shapes: `B` requests, `P` words, `N` nodes, `T` tools, `S` signals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tutelage.orchestration.planner.logistic import fit_logistic
from tutelage.orchestration.planner.text import Features

SIGNALS = (
    "log-probability of the plan, for each decision",
    "share of the best beam",
    "margin to the second beam, for each decision",
    "similarity to the nearest known request",
    "share of known words, by rarity",
    "share of known words",
    "share of words that speak of the plan's tools, by rarity",
    "best word of the least spoken tool",
    "text shared with the plan's tools",
    "text shared with the least of them",
    "chance of the least likely tool to be in the plan",
    "best tool that is not in the plan",
    "words",
    "nodes",
    "particulars of the request that no argument has",
    "arguments that are missing",
)
KEEP = 0.93
"""Share of the right plans above the threshold, on the requests that it is chosen on."""
LOWEST, HIGHEST = 0.02, 0.95
"""Bounds of the threshold."""
DOUBT = 0.05
"""Chance at which a kind of mistake may have escaped the held-out plans."""
_PENALTY = 5.0
"""Small sets have few right plans; more of them outweigh it."""
_BOUND = 4.0
"""Standard deviations that a signal counts at most."""


@dataclass(frozen=True, slots=True)
class Confidence:
    """A fitted logistic model over the signals, and the threshold below which no tool fits."""

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    """One for each signal, and last the bias."""
    threshold: float
    kept: float = 1.0
    """Share of the right plans that the threshold keeps, on the requests that it was chosen on."""
    refused: float = 0.0
    """Share of the requests outside of the catalog that it refuses there."""

    def of(self, signals_BS: Tensor) -> Tensor:
        """(B,): the probability that each plan is right."""
        rows = _standard(signals_BS.double(), torch.tensor(self.mean), torch.tensor(self.scale))
        return torch.sigmoid(rows @ torch.tensor(self.weights, dtype=torch.float64))


def floor_of(held_out: int) -> float:
    """The least threshold that a number of held-out plans allows.

    A kind of mistake that is a share s of all plans is in none of n held-out ones with the chance
    (1 - s)^n. Those with a share of up to 1 - DOUBT^(1 / n) may have escaped the model, so what it
    is less sure of than that, it knows nothing of: 0.45 for 5 plans, 0.14 for 20, 0.01 for 400. It
    is 0.5 at most, since a plan that is more likely right than wrong may be made.
    """
    return min(0.5, max(LOWEST, 1 - DOUBT ** (1 / held_out)))


def fit_confidence(
    signals_BS: Tensor, right_B: Sequence[bool], outside_B: Sequence[bool], held_out: int
) -> Confidence | None:
    """The model and its threshold; None where all plans are right, or none is.

    `outside_B` says which requests the catalog does not serve; `held_out` is the number of
    workflows that the rest is made of, which bounds the threshold from below.
    """
    wanted = torch.tensor(right_B, dtype=torch.float64)
    if not 0 < float(wanted.sum()) < len(wanted):
        return None
    values = signals_BS.double()
    mean, scale = values.mean(0), values.std(0, correction=0).clamp(min=1e-6)
    rows = _standard(values, mean, scale)
    pull = torch.full((rows.shape[1],), _PENALTY, dtype=torch.float64)
    pull[-1] = 1e-6
    weights = fit_logistic(rows, wanted, pull)
    chance, is_right = torch.sigmoid(rows @ weights), wanted > 0
    ordered = chance[is_right].sort().values
    threshold = float(ordered[math.floor((1 - KEEP) * len(ordered))])
    # In the middle of what it parts: of few requests, the least sure right one is no bound.
    below = chance[chance < threshold]
    threshold = (threshold + float(below.max())) / 2 if len(below) else threshold
    threshold = min(HIGHEST, max(floor_of(held_out), threshold))
    outside = torch.tensor(outside_B)
    refused = float((chance[outside] < threshold).double().mean()) if outside.any() else 0.0
    return Confidence(
        tuple(mean.tolist()), tuple(scale.tolist()), tuple(weights.tolist()), threshold,
        float((chance[is_right] >= threshold).double().mean()), refused,
    )  # fmt: skip


def never_sure(count: int) -> Confidence:
    """Of a planner that had none of `count` plans right."""
    size = len(SIGNALS)
    weights = (*(0.0,) * size, -math.log(count + 1))
    return Confidence((0.0,) * size, (1.0,) * size, weights, HIGHEST, kept=0.0, refused=1.0)


def _standard(values_BS: Tensor, mean_S: Tensor, scale_S: Tensor) -> Tensor:
    """Standardized signals, bounded, and a column of ones."""
    rows = ((values_BS - mean_S.double()) / scale_S.double()).clamp(-_BOUND, _BOUND)
    return torch.cat([rows, torch.ones(len(rows), 1, dtype=torch.float64)], dim=1)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a search leaves that tells how sure its plans are."""

    scores_BK: Tensor
    """Log-probabilities of the beams, the best first."""
    similar_B: Tensor
    """To the nearest known request."""
    shared_BT: Tensor
    """How much text each request and tool share."""
    anywhere_BT: Tensor
    """Scores of each tool to stand in the plan."""
    speaks_BPT: Tensor
    real_BP: Tensor
    rarity_BP: Tensor
    """How rare each word is among the known requests."""
    known_BP: Tensor
    """Whether any known request or tool has the word."""
    unused_B: Tensor
    """How many dates, paths, numbers and the like of a request no argument has."""
    missing_B: Tensor
    """How many arguments are missing."""

    def signals(self, chosen_BN: Tensor) -> Tensor:
        """(B, S) for plans as places in the catalog, -1 after their last."""
        real_BN = chosen_BN >= 0
        places_BN = chosen_BN.clamp(min=0)
        count_B = real_BN.sum(1).float()
        steps_B = count_B + 1
        first_B = self.scores_BK[:, 0]
        second_B = self.scores_BK[:, 1] if self.scores_BK.shape[1] > 1 else first_B - 20.0
        in_plan_BT = torch.zeros_like(self.shared_BT, dtype=torch.bool)
        in_plan_BT.scatter_(1, places_BN, True)
        in_plan_BT &= real_BN.any(1, keepdim=True)
        words_BP = self.real_BP.float()
        rare_BP = self.rarity_BP * words_BP
        rare_B = rare_BP.sum(1).clamp(min=1e-6)
        # How much of what a word says is about the tools of the plan.
        share_BPT = self.speaks_BPT / self.speaks_BPT.sum(2, keepdim=True).clamp(min=1e-9)
        about_BP = (share_BPT * in_plan_BT[:, None]).sum(2)
        best_BN = _of(share_BPT.amax(1), places_BN)
        shared_BN = _of(self.shared_BT, places_BN)
        chance_BN = _of(torch.nn.functional.logsigmoid(self.anywhere_BT), places_BN)
        other_B = self.anywhere_BT.masked_fill(in_plan_BT, -30.0).amax(1)
        known_BP = self.known_BP.float()
        columns = (
            first_B / steps_B,
            (first_B - self.scores_BK.logsumexp(1)).exp(),
            ((first_B - second_B) / steps_B).clamp(max=20.0),
            self.similar_B,
            (rare_BP * known_BP).sum(1) / rare_B,
            (words_BP * known_BP).sum(1) / words_BP.sum(1).clamp(min=1),
            (rare_BP * about_BP).sum(1) / rare_B,
            _least(best_BN, real_BN),
            (shared_BN * real_BN).sum(1) / count_B.clamp(min=1),
            _least(shared_BN, real_BN),
            _least(chance_BN, real_BN),
            other_B,
            words_BP.sum(1).log1p(),
            count_B,
            self.unused_B,
            self.missing_B,
        )
        return torch.stack([column.float() for column in columns], dim=1)


def _of(values_BT: Tensor, places_BN: Tensor) -> Tensor:
    return values_BT.gather(1, places_BN)


def _least(values_BN: Tensor, real_BN: Tensor) -> Tensor:
    return values_BN.masked_fill(~real_BN, float("inf")).amin(1).clamp(max=1e3)


def word_rarity(
    items: Sequence[Features], idf: Tensor, active: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    """(B, P) how rare each word is, and whether it was ever seen."""
    rare, known = np.zeros((len(items), width), np.float32), np.zeros((len(items), width), bool)
    for row, item in enumerate(items):
        own = item.ids[item.words[:width]]
        rare[row, : len(own)] = idf.numpy()[own]
        known[row, : len(own)] = active.numpy()[own]
    return torch.from_numpy(rare), torch.from_numpy(known)
