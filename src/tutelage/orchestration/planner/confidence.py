"""How sure a planner is of a plan: signals of its search, and a logistic model of them.

A plan is right when it has the tools that were wanted. The model is fitted on held-out workflows,
planned with the whole catalog and again with a part of it that lacks tools of the plan, and on
everyday requests that no tool of the catalog serves (`data/other_requests.json`). The threshold
keeps most of the right plans; below it no tool fits.

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
from tutelage.seeds import SeedTree

if TYPE_CHECKING:
    from tutelage.orchestration.planner.model import BeamResult, PlannerModel

KEEP = 0.93
"""Share of the right plans above the threshold, on the requests that it is chosen on."""
LOWEST, HIGHEST = 0.02, 0.95
"""Bounds of the threshold."""
DOUBT = 0.05
"""Chance at which a kind of mistake may have escaped the held-out plans."""
PARTS = 4
"""Parts of the catalog that are left out in turn."""
OTHERS = 200
"""Maximum number of requests of other topics."""
MOST = 400
"""Maximum number of held-out workflows."""
_PENALTY = 5.0
"""Small sets have few right plans; more of them outweigh it."""
_BOUND = 4.0
"""Maximum standard deviations of a signal."""
_WORD = re.compile(r"[^\W\d_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Confidence:
    """A fitted logistic model over the signals, and the threshold below which no tool fits."""

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    """One for each signal, and last the bias."""
    threshold: float

    def of(self, signals_BS: Tensor) -> Tensor:
        """Return (B,), the probability that each plan is right."""
        rows = _standardized(signals_BS.double(), torch.tensor(self.mean), torch.tensor(self.scale))
        return torch.sigmoid(rows @ torch.tensor(self.weights, dtype=torch.float64))


@torch.no_grad()
def plan_signals(model: PlannerModel, found: BeamResult, chosen_BN: Tensor) -> Tensor:
    """Return (B, S), the signals of plans that were chosen from these beams: places in the catalog,
    -1 after the last."""
    text, items = found.text, found.given.items
    shared_BT, speaks_BPT, real_BP = found.given.shared_BT, text.speaks_BPT, text.real_BP
    similar_B = torch.zeros(len(items))
    if model.memory is not None:
        similar_B = model.memory.texts.products(items, model.idf).amax(1)
    # How rare each word is, and whether any known request or tool has it.
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
    scores_BK = found.scores_BK
    first_B = scores_BK[:, 0]
    second_B = scores_BK[:, 1] if scores_BK.shape[1] > 1 else first_B - 20.0
    in_plan_BT = torch.zeros_like(shared_BT, dtype=torch.bool)
    in_plan_BT.scatter_(1, places_BN, True)
    in_plan_BT &= real_BN.any(1, keepdim=True)
    words_BP = real_BP.float()
    rare_BP = torch.from_numpy(rarity) * words_BP
    rare_B = rare_BP.sum(1).clamp(min=1e-6)
    known_BP = torch.from_numpy(seen).float()
    # How much of what a word says is about the tools of the plan.
    share_BPT = speaks_BPT / speaks_BPT.sum(2, keepdim=True).clamp(min=1e-9)
    about_BP = (share_BPT * in_plan_BT[:, None]).sum(2)
    anywhere_BT = model.network.set_logits(text)
    shared_BN = shared_BT.gather(1, places_BN)

    def least(values_BT: Tensor) -> Tensor:
        """Return the smallest value of the plan's tools."""
        values_BN = values_BT.gather(1, places_BN)
        return values_BN.masked_fill(~real_BN, float("inf")).amin(1).clamp(max=1e3)

    columns = (
        first_B / steps_B,  # log-probability, for each decision
        (first_B - scores_BK.logsumexp(1)).exp(),  # share of the best beam
        ((first_B - second_B) / steps_B).clamp(max=20.0),  # margin to the second beam
        similar_B,  # to the nearest known request
        (rare_BP * known_BP).sum(1) / rare_B,  # known words, by rarity
        (words_BP * known_BP).sum(1) / words_BP.sum(1).clamp(min=1),  # known words
        (rare_BP * about_BP).sum(1) / rare_B,  # words that speak of the plan's tools, by rarity
        least(share_BPT.amax(1)),  # best word of the least spoken tool
        (shared_BN * real_BN).sum(1) / count_B.clamp(min=1),  # text shared with its tools
        least(shared_BT),  # text shared with the least of them
        least(F.logsigmoid(anywhere_BT)),  # chance of the least likely tool to be in the plan
        anywhere_BT.masked_fill(in_plan_BT, -30.0).amax(1),  # best tool that is not in the plan
        words_BP.sum(1).log1p(),
        count_B,
    )
    return torch.stack([column.float() for column in columns], dim=1)


# ------------------------------------------------------------------ fitting


def calibrate(
    model: PlannerModel, held_out: Sequence[Workflow], seeds: SeedTree
) -> Confidence | None:
    """Return how sure the planner may be, from workflows that it was not trained on; None where
    they do not tell. The model plans without a confidence meanwhile and keeps none."""
    whole, kept = model.catalog, list(held_out[:MOST])
    model.confidence = None
    rows: list[Tensor] = []
    right: list[bool] = []

    def plan(texts: Sequence[str], wanted: Sequence[Plan] | None) -> None:
        for found in model.searched(texts, model.settings) if texts else ():
            rows.append(plan_signals(model, found, found.best(model.settings.consensus)))
            for made in model.decided(found, model.settings):
                gold = None if wanted is None else wanted[len(right)]
                right.append(gold is not None and same_tools(made.plan, gold))

    plan([w.instruction for w in kept], [w.plan for w in kept])
    plan(other_requests(whole, min(OTHERS, max(20, len(kept))), seeds.child("others")), None)
    for rest in reduced(whole, seeds.child("left out")):
        lost = {*whole.names} - {*rest.names}
        open_ = [w for w in kept if lost.issuperset(w.tools) or len(lost & {*w.tools}) > 1]
        if open_:
            model.use_catalog(rest)
            plan([w.instruction for w in open_], None)
    model.use_catalog(whole)
    return fit_confidence(torch.cat(rows), right, len(kept))


def reduced(catalog: Catalog, seeds: SeedTree) -> list[Catalog]:
    """Return a catalog without each of `PARTS` random parts of its tools; none of one tool."""
    names = list(catalog.names)
    seeds.python().shuffle(names)
    parts = [names[part::PARTS] for part in range(min(PARTS, len(names)) if len(names) > 1 else 0)]
    return [Catalog(tuple(t for t in catalog.tools if t.name not in part)) for part in parts]


def same_tools(made: Plan, wanted: Plan) -> bool:
    """True if both plans have the same tools as often, whatever their edges."""
    return Counter(n.tool for n in made.nodes) == Counter(n.tool for n in wanted.nodes)


def other_requests(catalog: Catalog, count: int, seeds: SeedTree) -> list[str]:
    """Return at most `count` different everyday requests of topics that no text of the catalog's
    tools speaks of."""
    known: set[str] = set()
    for tool in catalog.tools:
        spaced = _CAMEL.sub(" ", f"{tool.name} {tool.description}").replace("_", " ")
        known |= {word.lower() for word in _WORD.findall(spaced)}
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


def floor_of(held_out: int) -> float:
    """Return the least threshold that a number of held-out plans allows.

    A kind of mistake that is a share s of all plans is in none of n held-out ones with the chance
    (1 - s)^n. Those with a share of up to 1 - DOUBT^(1 / n) may have escaped the model, so what it
    is less sure of than that, it knows nothing of: 0.45 for 5 plans, 0.14 for 20, 0.01 for 400. It
    is 0.5 at most, since a plan that is more likely right than wrong may be made.
    """
    return min(0.5, max(LOWEST, 1 - DOUBT ** (1 / held_out)))


def fit_confidence(signals_BS: Tensor, right_B: Sequence[bool], held_out: int) -> Confidence | None:
    """Return the model and its threshold; None where all plans are right, or none is.

    `held_out` is the number of workflows that the rest is made of, which bounds the threshold from
    below.
    """
    wanted = torch.tensor(right_B, dtype=torch.float64)
    if not 0 < float(wanted.sum()) < len(wanted):
        return None
    values = signals_BS.double()
    mean, scale = values.mean(0), values.std(0, correction=0).clamp(min=1e-6)
    rows = _standardized(values, mean, scale)
    penalty = torch.full((rows.shape[1],), _PENALTY, dtype=torch.float64)
    penalty[-1] = 1e-6
    weights = fit_logistic(rows, wanted, penalty, torch.zeros_like(penalty))
    chance, is_right = torch.sigmoid(rows @ weights), wanted > 0
    ordered = chance[is_right].sort().values
    threshold = float(ordered[math.floor((1 - KEEP) * len(ordered))])
    # In the middle of what it parts: of few requests, the least sure right one is no bound.
    below = chance[chance < threshold]
    threshold = (threshold + float(below.max())) / 2 if len(below) else threshold
    threshold = min(HIGHEST, max(floor_of(held_out), threshold))
    mean_S, scale_S, weights_S = (tuple(each.tolist()) for each in (mean, scale, weights))
    return Confidence(mean_S, scale_S, weights_S, threshold)


def _standardized(values_BS: Tensor, mean_S: Tensor, scale_S: Tensor) -> Tensor:
    """Return standardized and bounded signals, and a column of ones."""
    rows = ((values_BS - mean_S.double()) / scale_S.double()).clamp(-_BOUND, _BOUND)
    return torch.cat([rows, torch.ones(len(rows), 1, dtype=torch.float64)], dim=1)


def fit_logistic(rows_BS: Tensor, wanted_B: Tensor, penalty_S: Tensor, first_S: Tensor) -> Tensor:
    """Return (S,) weights that make `wanted_B` (0 or 1) most probable, less `penalty_S` / 2 times
    their squared distance from `first_S`, by Newton's method in double precision.

    A whole step overshoots where weights are sure and wrong, and may then swing between two places
    for ever; a step that does not lower the loss is halved until it does.
    """

    def loss(weights: Tensor) -> float:
        scores = rows_BS @ weights
        missed = F.softplus(scores).sum() - wanted_B @ scores
        return float(missed + (penalty_S * (weights - first_S) ** 2).sum() / 2)

    weights, now = first_S.clone(), loss(first_S)
    for _ in range(100):
        chance = torch.sigmoid(rows_BS @ weights)
        slope = rows_BS.T @ (chance - wanted_B) + penalty_S * (weights - first_S)
        curve = (rows_BS * (chance * (1 - chance))[:, None]).T @ rows_BS + penalty_S.diag()
        step = torch.linalg.solve(curve, slope)
        for _ in range(50):
            if loss(weights - step) <= now + 1e-12 * abs(now):  # what rounding may add
                break
            step = step / 2
        weights = weights - step
        now = loss(weights)
        if float(step.abs().max()) < 1e-9:
            break
    return weights
