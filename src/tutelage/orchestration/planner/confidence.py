"""Confidence of a planner in a plan: a logistic model of signals from its search.

A plan is correct if it has the expected tools. The model is fitted on plans for held-out workflows,
made with the whole catalog and with reduced catalogs that lack tools of the plan, and on everyday
requests that no tool of the catalog can serve (`data/other_requests.json`). The threshold keeps
most of the correct plans. Below it, the planner reports that no tool fits.

Shapes: `B` requests, `P` words, `N` nodes, `T` tools, `S` signals.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tutelage.orchestration.data.workflows import Workflow
from tutelage.orchestration.plan.catalog import Catalog
from tutelage.orchestration.plan.dag import Plan
from tutelage.orchestration.planner.text import split_words
from tutelage.seeds import SeedTree

if TYPE_CHECKING:
    from tutelage.orchestration.planner.model import BeamResult, PlannerModel

KEEP = 0.93
"""Share of the correct plans above the threshold, on the requests used to choose it."""
LOWEST, HIGHEST = 0.02, 0.95
"""Bounds of the threshold."""
DOUBT = 0.05
"""Probability that a kind of mistake is missing from the held-out plans."""
PARTS = 4
"""Number of parts of the catalog; each is left out in turn."""
OTHERS = 200
"""Maximum number of requests about other topics."""
MOST = 400
"""Maximum number of held-out workflows."""
_PENALTY = 5.0
"""Strength of the regularization. It is large because small sets have few correct plans."""
_BOUND = 4.0
"""Bound of a standardized signal, in standard deviations."""


@dataclass(frozen=True, slots=True)
class Confidence:
    """Logistic model of the correctness of a plan, with the threshold for accepting plans."""

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    """One weight per signal, followed by the bias."""
    threshold: float

    def predict(self, signals_BS: Tensor) -> Tensor:
        """Predict the probability that each plan is correct, (B,)."""
        rows = _standardize(signals_BS.double(), torch.tensor(self.mean), torch.tensor(self.scale))
        return torch.sigmoid(rows @ torch.tensor(self.weights, dtype=torch.float64))


@torch.no_grad()
def plan_signals(model: PlannerModel, beams: BeamResult, chosen_BN: Tensor) -> Tensor:
    """Compute the signals of the plans that were selected from these beams, (B, S). `chosen_BN` has
    indices into the catalog, -1 after the last tool."""
    text, items = beams.text, beams.given.items
    shared_BT, speaks_BPT, real_BP = beams.given.shared_BT, text.speaks_BPT, text.real_BP
    similar_B = torch.zeros(len(items))
    if model.memory is not None:
        similar_B = model.memory.texts.products(items, model.idf).amax(1)
    # Rarity of each word, and True for words that occur in a known request or tool.
    active = (model.network.row_of < len(model.network.table) - 1).numpy()
    rarity = np.zeros(real_BP.shape, np.float32)
    seen = np.zeros(real_BP.shape, bool)
    for row, item in enumerate(items):
        own = item.ids[item.words[: real_BP.shape[1]]]
        rarity[row, : len(own)] = model.idf.numpy()[own]
        seen[row, : len(own)] = active[own]

    real_BN = chosen_BN >= 0
    places_BN = chosen_BN.clamp(min=0)
    count_B = real_BN.sum(1).float()
    steps_B = count_B + 1
    scores_BK = beams.scores_BK
    first_B = scores_BK[:, 0]
    second_B = scores_BK[:, 1] if scores_BK.shape[1] > 1 else first_B - 20.0
    in_plan_BT = torch.zeros_like(shared_BT, dtype=torch.bool)
    in_plan_BT.scatter_(1, places_BN, True)
    in_plan_BT &= real_BN.any(1, keepdim=True)
    words_BP = real_BP.float()
    rare_BP = torch.from_numpy(rarity) * words_BP
    rare_B = rare_BP.sum(1).clamp(min=1e-6)
    known_BP = torch.from_numpy(seen).float()
    # Share of each word's match scores that belongs to the tools of the plan.
    share_BPT = speaks_BPT / speaks_BPT.sum(2, keepdim=True).clamp(min=1e-9)
    about_BP = (share_BPT * in_plan_BT[:, None]).sum(2)
    anywhere_BT = model.network.set_logits(text)
    shared_BN = shared_BT.gather(1, places_BN)

    def min_over_tools(values_BT: Tensor) -> Tensor:
        """Return the minimum over the tools of each plan."""
        values_BN = values_BT.gather(1, places_BN)
        return values_BN.masked_fill(~real_BN, float("inf")).amin(1).clamp(max=1e3)

    columns = (
        first_B / steps_B,  # log-probability per decision
        (first_B - scores_BK.logsumexp(1)).exp(),  # probability of the best beam among all beams
        ((first_B - second_B) / steps_B).clamp(max=20.0),  # margin over the second beam
        similar_B,  # similarity to the nearest known request
        (rare_BP * known_BP).sum(1) / rare_B,  # known words, weighted by rarity
        (words_BP * known_BP).sum(1) / words_BP.sum(1).clamp(min=1),  # known words
        (rare_BP * about_BP).sum(1) / rare_B,  # words about the plan's tools, weighted by rarity
        min_over_tools(share_BPT.amax(1)),  # best word of the least mentioned tool
        (shared_BN * real_BN).sum(1) / count_B.clamp(min=1),  # text shared with its tools, mean
        min_over_tools(shared_BT),  # text shared with its tools, minimum
        min_over_tools(F.logsigmoid(anywhere_BT)),  # log-probability of the least likely tool
        anywhere_BT.masked_fill(in_plan_BT, -30.0).amax(1),  # best tool outside the plan
        words_BP.sum(1).log1p(),
        count_B,
    )
    return torch.stack([column.float() for column in columns], dim=1)


# ------------------------------------------------------------------ fitting


def calibrate(
    model: PlannerModel, held_out: Sequence[Workflow], seeds: SeedTree
) -> Confidence | None:
    """Fit the confidence model on workflows that were not used for training. Return None if there
    are not enough workflows. Sets `model.confidence` to None."""
    whole, kept = model.catalog, list(held_out[:MOST])
    model.confidence = None
    rows: list[Tensor] = []
    right: list[bool] = []

    def add_signals(texts: Sequence[str], plans: Sequence[Plan] | None) -> None:
        for found in model.search_beams(texts, model.settings) if texts else ():
            rows.append(plan_signals(model, found, found.select_best(model.settings.consensus)))
            for made in model.decode(found, model.settings):
                gold = None if plans is None else plans[len(right)]
                right.append(gold is not None and same_tools(made.plan, gold))

    add_signals([w.instruction for w in kept], [w.plan for w in kept])
    add_signals(other_requests(whole, min(OTHERS, max(20, len(kept))), seeds.child("others")), None)
    for rest in reduce_catalog(whole, seeds.child("left out")):
        lost = {*whole.names} - {*rest.names}
        open_ = [w for w in kept if lost.issuperset(w.tools) or len(lost & {*w.tools}) > 1]
        if open_:
            model.use_catalog(rest)
            add_signals([w.instruction for w in open_], None)
    model.use_catalog(whole)
    return fit_confidence(torch.cat(rows), right, len(kept))


def reduce_catalog(catalog: Catalog, seeds: SeedTree) -> list[Catalog]:
    """Return up to `PARTS` catalogs, each without a random subset of the tools. The list is empty
    if the catalog has only one tool."""
    names = list(catalog.names)
    seeds.python().shuffle(names)
    parts = [names[part::PARTS] for part in range(min(PARTS, len(names)) if len(names) > 1 else 0)]
    return [Catalog(tuple(t for t in catalog.tools if t.name not in part)) for part in parts]


def same_tools(plan: Plan, gold: Plan) -> bool:
    """Return True if both plans have the same multiset of tools. Edges are ignored."""
    return Counter(n.tool for n in plan.nodes) == Counter(n.tool for n in gold.nodes)


def other_requests(catalog: Catalog, count: int, seeds: SeedTree) -> list[str]:
    """Sample up to `count` distinct everyday requests about topics that no name or description of
    a tool mentions."""
    known: set[str] = set()
    for tool in catalog.tools:
        known.update(split_words(f"{tool.name} {tool.description}"))
    place = files("tutelage.orchestration.data") / "other_requests.json"
    data: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    open_ = [row for row in data["topics"] if not known.intersection(row["words"])]
    templates = [text for row in open_ for text in row["requests"]]
    draw, found = seeds.python(), dict[str, None]()
    draw.shuffle(templates)
    for text in [*templates, *templates][: count if templates else 0]:
        filled = re.sub(r"\{(\w+)\}", lambda m: draw.choice(data["slots"][m[1]]), text)
        ending = draw.choice(("", "", ".", "!", "?"))
        found[filled[:1].upper() + filled[1:] + ending] = None
    return list(found)


def min_threshold(count: int) -> float:
    """Return the lower bound of the threshold for a number of held-out plans.

    A kind of mistake that is a share s of all plans occurs in none of n held-out plans with
    probability (1 - s)^n. Mistakes with a share of up to 1 - DOUBT^(1 / n) may therefore be unknown
    to the model, and lower confidences mean nothing: 0.45 for 5 plans, 0.14 for 20, 0.01 for 400.
    The result is at most 0.5, because a plan that is more likely correct than wrong is allowed.
    """
    return min(0.5, max(LOWEST, 1 - DOUBT ** (1 / count)))


def fit_confidence(signals_BS: Tensor, right_B: Sequence[bool], held_out: int) -> Confidence | None:
    """Fit the confidence model. Return None if all plans are correct or all plans are wrong.

    `held_out` is the number of workflows behind the plans. It sets a lower bound of the threshold.
    """
    wanted = torch.tensor(right_B, dtype=torch.float64)
    if not 0 < float(wanted.sum()) < len(wanted):
        return None
    values = signals_BS.double()
    mean, scale = values.mean(0), values.std(0, correction=0).clamp(min=1e-6)
    rows = _standardize(values, mean, scale)
    penalty = torch.full((rows.shape[1],), _PENALTY, dtype=torch.float64)
    penalty[-1] = 1e-6
    weights = fit_logistic(rows, wanted, penalty, torch.zeros_like(penalty))
    chance, is_right = torch.sigmoid(rows @ weights), wanted > 0
    ordered = chance[is_right].sort().values
    threshold = float(ordered[math.floor((1 - KEEP) * len(ordered))])
    # Use the middle between the two neighbouring confidences: with few requests, the lowest correct
    # one alone is a poor bound.
    below = chance[chance < threshold]
    threshold = (threshold + float(below.max())) / 2 if len(below) else threshold
    threshold = min(HIGHEST, max(min_threshold(held_out), threshold))
    mean_S, scale_S, weights_S = (tuple(each.tolist()) for each in (mean, scale, weights))
    return Confidence(mean_S, scale_S, weights_S, threshold)


def _standardize(values_BS: Tensor, mean_S: Tensor, scale_S: Tensor) -> Tensor:
    """Return the standardized and clipped signals with a column of ones appended."""
    rows = ((values_BS - mean_S.double()) / scale_S.double()).clamp(-_BOUND, _BOUND)
    return torch.cat([rows, torch.ones(len(rows), 1, dtype=torch.float64)], dim=1)


def fit_logistic(rows_BS: Tensor, labels_B: Tensor, penalty_S: Tensor, prior_S: Tensor) -> Tensor:
    """Fit a logistic regression to `labels_B` (0 or 1) by Newton's method; return the weights (S,).

    The L2 penalty is `penalty_S` / 2 times the squared distance from `prior_S`.

    A full step overshoots if the weights are confidently wrong, and the iteration may then
    oscillate forever. A step that does not lower the loss is therefore halved until it does.
    """

    def loss(weights: Tensor) -> float:
        scores = rows_BS @ weights
        missed = F.softplus(scores).sum() - labels_B @ scores
        return float(missed + (penalty_S * (weights - prior_S) ** 2).sum() / 2)

    weights, now = prior_S.clone(), loss(prior_S)
    for _ in range(100):
        chance = torch.sigmoid(rows_BS @ weights)
        slope = rows_BS.T @ (chance - labels_B) + penalty_S * (weights - prior_S)
        curve = (rows_BS * (chance * (1 - chance))[:, None]).T @ rows_BS + penalty_S.diag()
        step = torch.linalg.solve(curve, slope)
        for _ in range(50):
            if loss(weights - step) <= now + 1e-12 * abs(now):  # tolerance for rounding
                break
            step = step / 2
        weights = weights - step
        now = loss(weights)
        if float(step.abs().max()) < 1e-9:
            break
    return weights
