"""Beam search: the most probable plans of a batch of instructions, and what goes in and comes out.

Every tool comes from the catalog and edges are only kept from earlier to later nodes, so what comes
out is a DAG of known tools whatever the network says. All beams of a batch take a step together.
`network.py` scores, `PlanIndex` adds what similar instructions were answered with, `model.py` turns
the numbers into plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tutelage.errors import check_number
from tutelage.orchestration.plan.dag import NoPlanError, Plan
from tutelage.orchestration.planner.network import Encoded, PlannerNetwork
from tutelage.orchestration.planner.text import Features, SparseRows

NEIGHBOURS = 16
"""Known requests whose plans are mixed in."""
FLOOR = 0.01
"""Added to a vote before its logarithm is taken."""
UNKNOWN = 0.1
"""Vote for a tool that no known plan can have, since training never saw it."""
_SHARPNESS = 12.0
_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How plans are searched for; validation chooses the weights."""

    beam: int = 4
    prior_weight: float = 0.0
    length_bonus: float = 0.0
    """Added to a plan's log-probability for each node."""
    edge_threshold: float = 0.5
    consensus: float = 0.0
    """Above 0: among the beams, the plan that agrees most with all of them, each weighed by its
    probability to this power; 0: the most probable one."""
    repeats: bool = False
    """Whether a tool may stand in a plan twice."""
    max_nodes: int = 64


class EncodedInstructions(NamedTuple):
    """Instructions with their features, which do not change from epoch to epoch."""

    instructions: Sequence[str]
    items: Sequence[Features]
    shared_BT: Tensor
    """How much text each instruction and tool share."""

    def rows(self, chosen: Sequence[int]) -> EncodedInstructions:
        """Return some of them."""
        texts, items = [self.instructions[i] for i in chosen], [self.items[i] for i in chosen]
        return EncodedInstructions(texts, items, self.shared_BT[chosen])


class BeamResult(NamedTuple):
    """The beams of a batch, best first, with what they were searched in."""

    given: EncodedInstructions
    text: Encoded
    tools_BKN: Tensor
    """Places in the catalog, -1 after the last."""
    scores_BK: Tensor
    """Log-probabilities with the prior and the length bonus."""

    def best(self, consensus: float) -> Tensor:
        """Return (B, N), the beam that is taken: the first, or above 0 the one whose tools agree
        most with all beams, each weighed by its probability to this power."""
        plans, scores_BK = self.tools_BKN, self.scores_BK
        if consensus <= 0 or scores_BK.shape[1] == 1:
            return plans[:, 0]
        weight_BK = (scores_BK * consensus).softmax(1)
        real = plans >= 0
        size_BK = real.sum(2).clamp(min=1).float()
        same = plans[:, :, None, :, None] == plans[:, None, :, None, :]
        same &= real[:, :, None, :, None]
        common_BKK = same.any(-1).sum(-1).float()
        agree_BKK = 2 * common_BKK / (size_BK[:, :, None] + size_BK[:, None, :])
        return plans[torch.arange(len(plans)), (agree_BKK * weight_BK[:, None]).sum(2).argmax(1)]


@dataclass(frozen=True, slots=True)
class PlanPrediction:
    """A plan with what the planner thought of it."""

    plan: Plan
    workers: tuple[str, ...] | None
    """The worker that phase 1 would choose for each node; None when it saw no workers."""
    raw_valid: bool
    """True if the scored graph was a DAG before decoding kept forward edges only."""
    confidence: float | None = None
    """How likely the plan has the right tools; None for a planner that cannot tell."""
    least: float = 0.0
    """Below this confidence no tool fits, by what the planner was fitted on."""

    def sure(self, min_confidence: float | None = None) -> Plan:
        """Return the plan. Raises `NoPlanError` below a confidence, by default `least`; 0 takes any
        guess."""
        if min_confidence is not None:
            check_number("min_confidence", min_confidence, 1)
        least = self.least if min_confidence is None else min_confidence
        if self.confidence is None or self.confidence >= least:
            return self.plan
        tools = ", ".join(dict.fromkeys(node.tool for node in self.plan.nodes))
        raise NoPlanError(
            f"no tool fits: the trained planner is {100 * self.confidence:.0f} % sure of its best "
            f"guess ({tools}), and {100 * least:.0f} % is the least (--min-confidence; in Python, "
            "min_confidence; 0 takes the guess)"
        )


Prior = Callable[[Tensor, int, int], Tensor]
"""(B, S, T+1): what to add to the scores of the tool at a step, given the tools before (B, S), the
number of the start, and the step.
"""


class PlanIndex(NamedTuple):
    """Instructions and their plans."""

    texts: SparseRows
    plans_MN: Tensor
    """Tools by number, the end after the last one, -1 beyond."""

    def prior(
        self,
        texts: Sequence[Features],
        idf: Tensor,
        numbers_V: Tensor,
        new_T: Tensor,
        weight: float,
    ) -> Prior:
        """The votes of the nearest memories, for tools in the numbers of the catalog.

        `numbers_V` gives the place in the catalog for each number of the memory's plans, -1 for a
        tool that the catalog lacks; its last entry is the end. `new_T` says which tools training
        never saw.
        """
        similar = self.texts.products(texts, idf)
        value, index = similar.topk(min(NEIGHBOURS, similar.shape[1]), dim=1)
        share_BK = (value * _SHARPNESS).softmax(1)
        raw = self.plans_MN[index]
        plans = torch.where(raw >= 0, numbers_V[raw.clamp(min=0)], -1)
        tools = int(numbers_V[-1])
        is_tool = (plans >= 0) & (plans < tools)
        anywhere = torch.zeros(len(plans), tools + 1)
        places = torch.where(is_tool, plans, tools).flatten(1)
        anywhere.scatter_add_(1, places, (share_BK[:, :, None] * is_tool).flatten(1))
        anywhere = anywhere[:, :tools].clamp(max=1.0)
        lengths_BK = ((raw >= 0).sum(2) - 1).clamp(min=0)

        def scores(before_BS: Tensor, start: int, step: int) -> Tensor:
            # The mean of "stands in the plan" (for the end: "is as long as this") and "follows the
            # tool before".
            follows = torch.zeros(*before_BS.shape, tools + 1)
            chains = torch.cat([torch.full((*plans.shape[:2], 1), start), plans], dim=2)
            for place in range(before_BS.shape[1]):
                match = (chains[:, :, :-1] == before_BS[:, place, None, None]) & (plans >= 0)
                votes = (match * share_BK[:, :, None]).flatten(1)
                follows[:, place].scatter_add_(1, plans.clamp(min=0).flatten(1), votes)
            as_long_B1 = ((lengths_BK == step) * share_BK).sum(1, keepdim=True)
            whole = torch.cat([anywhere, as_long_B1], dim=1)[:, None]
            votes = 0.5 * (follows + whole).clamp(max=2.0)
            votes[:, :, :-1] = torch.where(new_T, UNKNOWN, votes[:, :, :-1])
            return weight * torch.log(votes + FLOOR)

        return scores


def search(
    network: PlannerNetwork, text: Encoded, settings: SearchSettings, prior: Prior | None = None
) -> tuple[Tensor, Tensor]:
    """The best `beam` plans of each instruction, each with at least one node, and their scores: the
    last fields of `BeamResult`.
    """
    rows, width, end = len(text.hidden_BD), settings.beam, len(text.known_T)
    tensor = torch.full((rows, width, 0), -1)
    scores = torch.full((rows, width), _NEVER)
    scores[:, 0] = 0.0
    done = torch.zeros(rows, width, dtype=torch.bool)
    before = torch.full((rows, width), end + 1)
    total = text.hidden_BD.new_zeros(rows, width, text.hidden_BD.shape[1])
    covered = text.real_BP.new_zeros(rows, width, text.real_BP.shape[1]).float()
    used = torch.zeros(rows, width, end + 1, dtype=torch.bool)
    mentioned = text.mentions(before)
    for step in range(settings.max_nodes + 1):
        places = torch.full((width,), step)
        state, attend = network.states(text, before, total, mentioned, covered, places)
        logits = network.type_logits(text, state, attend)
        if prior is not None:
            logits = logits + prior(before, end + 1, step)
        if step == 0:
            logits[:, :, end] = _NEVER
        if step == settings.max_nodes:
            logits[:, :, :end] = _NEVER
        if not settings.repeats:
            logits = logits.masked_fill(used, _NEVER)
        chances = logits.log_softmax(-1)
        chances[:, :, :end] += settings.length_bonus
        # A plan that has ended goes on as it is, in one way only.
        chances = chances.masked_fill(done[:, :, None], _NEVER)
        chances[:, :, end] = torch.where(done, 0.0, chances[:, :, end])
        flat = (scores[:, :, None] + chances).flatten(1)
        scores, place = flat.topk(width, dim=1)
        beam, tool = place // (end + 1), place % (end + 1)
        done = done.gather(1, beam) | (tool == end)
        tensor = torch.cat([_kept(tensor, beam), torch.where(done, -1, tool)[:, :, None]], dim=2)
        if bool(done.all()):
            break
        before = torch.where(done, end, tool)
        total = _kept(total, beam) + text.so_far_TD[before] * ~done[:, :, None]
        mentioned = text.mentions(before)
        covered = _kept(covered, beam) + mentioned.words_BNP
        used = _kept(used, beam).scatter(2, before[:, :, None], True)
        used[:, :, end] = False
    return tensor[:, :, : max(1, tensor.shape[2] - 1)] if done.all() else tensor, scores


def _kept(given_BKX: Tensor, beam_BK: Tensor) -> Tensor:
    """What belongs to the beams that go on."""
    return given_BKX.gather(1, beam_BK[:, :, None].expand(-1, -1, given_BKX.shape[2]))
