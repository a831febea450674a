"""`PlannerModel`: instructions in, plans out; the document's call and loss around the network.

A call encodes the instructions and gives the document's four fields, decoded greedily at the
first access. `compute_supervised_loss` scores expert plans from the same encoding with the
expert's earlier tools given (teacher forcing), so the document's training loop works as written.
`plan` and `plan_all` search with beams: every tool comes from the catalog and edges are only kept
from earlier to later nodes, so what comes out is a DAG of known tools whatever the network says.
`network.py` scores, `PlanIndex` adds what similar instructions were answered with, `fit.py` trains,
`saving.py` stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tutelage.errors import DataError, check_given, check_number
from tutelage.orchestration.data.synthetic import builtin_graph
from tutelage.orchestration.data.workflows import Workflow
from tutelage.orchestration.execution.worker_files import classic
from tutelage.orchestration.plan.catalog import Catalog
from tutelage.orchestration.plan.dag import Node, NoPlanError, Plan, is_valid_dag
from tutelage.orchestration.planner import targets as losses
from tutelage.orchestration.planner.confidence import Confidence, plan_signals
from tutelage.orchestration.planner.network import Encoded, Mentions, PlannerNetwork
from tutelage.orchestration.planner.targets import PlanTargets, Vocabulary
from tutelage.orchestration.planner.text import (
    BUCKETS,
    Features,
    SparseRows,
    TextBatch,
    features,
    inverse_frequency,
)

SET_WEIGHT = 0.5
"""Weight of "which tools, in any order" in the cross-entropy."""
_ABSENT = -30.0
_BATCH = 256
_LONG = 4096
"""Pairs of nodes that are scored at once per plan before a batch is made smaller."""
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


@dataclass
class _Outputs:
    """What a call gives: `subtask_embeddings` (B, N, D), `task_types` (B, N, T+1) and
    `model_selections` (B, N, W) scores, and `workflow_graph`, edge probabilities (B, N, N).

    They come from a greedy decoding that is done when one is first read, since a training step
    needs none of them.
    """

    decode: Callable[[Encoded], dict[str, Any]]
    """Makes the four fields."""
    text: Encoded

    @cached_property
    def _made(self) -> dict[str, Any]:
        return self.decode(self.text)

    def __getitem__(self, key: str) -> Any:
        return self._made[key]


class PlannerModel(nn.Module):
    """A trainable planner over the tools of a vocabulary."""

    def __init__(
        self,
        vocabulary: Vocabulary | None = None,
        idf: Tensor | None = None,
        active: Tensor | None = None,
        width: int = 128,
    ) -> None:
        """`idf` and `active` (BUCKETS,) weigh the buckets and say which have a vector; without
        them all do alike. Without a vocabulary it is that of the built-in tools and of the
        workers of the preset `classic`. Untrained."""
        super().__init__()
        names = tuple(worker.name for worker in classic())
        vocabulary = vocabulary or Vocabulary(builtin_graph().catalog, names)
        idf = torch.ones(BUCKETS) if idf is None else idf
        active = torch.ones(BUCKETS, dtype=torch.bool) if active is None else active
        self.vocabulary, self.width = vocabulary, width
        tools = len(vocabulary.catalog)
        self.network = PlannerNetwork(tools, len(vocabulary.workers), width, idf, active)
        self.register_buffer("idf", idf)
        # Which tools training has: the others are known by their texts alone.
        self.register_buffer("seen", torch.ones(tools, dtype=torch.bool))
        self.seen: Tensor
        self.idf: Tensor
        self.settings = SearchSettings()
        self.memory: PlanIndex | None = None
        self.confidence: Confidence | None = None
        self.use_catalog(vocabulary.catalog)

    @classmethod
    def of(cls, workflows: Sequence[Workflow], catalog: Catalog, width: int = 128) -> PlannerModel:
        """An untrained planner for a training set; IDF comes from its instructions and the tools'
        texts. Raises `DataError` when the set is empty.
        """
        if not workflows:
            raise DataError("there are no workflows to learn from; give at least one")
        vocabulary = Vocabulary.of(workflows, catalog)
        texts = [features(w.instruction) for w in workflows]
        active = torch.zeros(BUCKETS, dtype=torch.bool)
        for text in texts + described(catalog):
            active[torch.from_numpy(text.ids)] = True
        model = cls(vocabulary, inverse_frequency(texts), active, width)
        used = {tool for workflow in workflows for tool in workflow.tools}
        model.seen.copy_(torch.tensor([name in used for name in catalog.names]))
        model.use_catalog(catalog)
        return model

    def use_catalog(self, catalog: Catalog) -> None:
        """Plan with the tools of this catalog from now on; those never trained on are known by
        their texts alone."""
        texts, trained = described(catalog), self.vocabulary.catalog
        self.catalog = catalog
        self._texts = TextBatch.of(texts)
        self._words = SparseRows.of(texts, self.idf * inverse_frequency(texts))
        # A tool's learned number, -1 for one that training did not have.
        learned = {name: k for k, name in enumerate(trained.names) if bool(self.seen[k])}
        self._known = torch.tensor([learned.get(name, -1) for name in catalog.names])
        places = [catalog.index(name) if name in catalog else -1 for name in trained.names]
        self._numbers = torch.tensor([*places, len(catalog)])
        # 1 where a type that row gives is one that column takes, 0 where none is, 0.5 where nothing
        # is known of either.
        gives = [{kind.lower() for kind in tool.outputs} for tool in catalog.tools]
        takes = [{kind.lower() for kind in tool.inputs} for tool in catalog.tools]
        self._compatible = torch.tensor(
            [[float(not a.isdisjoint(b)) if a and b else 0.5 for b in takes] for a in gives]
        )

    # -------------------------------------------------------------- the document's calls

    def prepare(self, instructions: Sequence[str]) -> EncodedInstructions:
        """What `forward` and `plan_all` read of instructions, while the catalog stays the same.

        Raises `DataError` for an empty batch.
        """
        # Of one text each letter would be planned.
        listed = "a list of texts, ['Say it']"
        check_given("instructions", instructions, (list, tuple), listed, DataError)
        for index, text in enumerate(cast("Sequence[object]", instructions)):
            if not isinstance(text, str) or not text.strip():
                raise DataError(f"instruction {index} is {text!r:.80}; say what is to be done")
        if not instructions:
            raise DataError("there are no instructions; give at least one")
        items = [features(text) for text in instructions]
        return EncodedInstructions(instructions, items, self._words.products(items, self.idf))

    def forward(self, instructions: Sequence[str] | EncodedInstructions) -> _Outputs:
        """Encode instructions; see `_Outputs`. Raises `DataError` for an empty batch."""
        if not isinstance(instructions, EncodedInstructions):
            instructions = self.prepare(instructions)
        return _Outputs(self.greedy, self._read(instructions))

    def compute_supervised_loss(
        self,
        outputs: _Outputs,
        targets: PlanTargets | Mapping[str, Any],
        lambda_dag: float = 0.3,
        dag_loss: losses.DagLoss = "poly",
    ) -> dict[str, Tensor]:
        """`ce_loss`, `dag_loss` and `total_loss` = ce + lambda_dag x dag, with the parts of the
        cross-entropy: `type_loss`, `worker_loss`, `edge_loss`, `set_loss`.

        `targets` as `PlanTargets.read` takes them.
        """
        end = len(self.catalog)
        check_number("lambda_dag", lambda_dag)
        check_given("outputs", outputs, _Outputs, "what planner(instructions) returned")
        plan_targets = PlanTargets.read(targets, self.vocabulary, len(outputs.text.hidden_BD))
        types = plan_targets.types_BN
        count = types.shape[1]
        text = outputs.text
        placed = torch.where((types >= 0) & (types < end), types, end)
        state, attend, mentioned = self._states(text, placed)
        logits = self.network.type_logits(text, state, attend)
        # Taken here: gradients are summed in the order in which their parts were made.
        chosen = text.out_TD[placed]
        # A tool that no plan has is no wrong answer: it may be the right one later.
        absent = (self._known < 0) & ~torch.isin(torch.arange(end), types)
        logits = logits.masked_fill(F.pad(absent, (0, 1)), _ABSENT)
        anywhere = self.network.set_logits(text).masked_fill(absent, _ABSENT)
        parts = {
            "type_loss": losses.type_loss(logits, types),
            "set_loss": losses.set_loss(anywhere, types),
        }
        nodes = max(1, count - 1)
        mentioned = Mentions(*(part[:, :nodes] for part in mentioned))
        edges = self._edges(
            text, state[:, :nodes], placed[:, :nodes], mentioned, plan_targets.lengths_B
        )
        adjacency = plan_targets.adjacency_BNN[:, :nodes, :nodes]
        parts["edge_loss"] = losses.edge_loss(edges, adjacency, plan_targets.lengths_B)
        parts["worker_loss"] = logits.new_zeros(())
        if bool((plan_targets.workers_BN >= 0).any()):
            scores = self.network.worker_logits(state, chosen)
            parts["worker_loss"] = losses.type_loss(scores, plan_targets.workers_BN)
        dag = losses.dag_loss(torch.sigmoid(edges), plan_targets.lengths_B, dag_loss)
        ce = parts["type_loss"] + parts["edge_loss"] + parts["worker_loss"]
        ce = ce + SET_WEIGHT * parts["set_loss"]
        return {"total_loss": ce + lambda_dag * dag, "ce_loss": ce, "dag_loss": dag, **parts}

    # -------------------------------------------------------------- planning

    def remember(self, workflows: Sequence[Workflow]) -> None:
        """Keep these plans as the memory of the retrieval prior."""
        plans = PlanTargets.of(workflows, self.vocabulary).types_BN
        texts = [features(w.instruction) for w in workflows]
        self.memory = PlanIndex(SparseRows.of(texts, self.idf), torch.where(plans >= 0, plans, -1))

    def plan(self, instruction: str, min_confidence: float | None = None) -> Plan:
        """Return the plan of an instruction. Raises what `PlanPrediction.sure` raises."""
        return self.plan_all([instruction])[0].sure(min_confidence)

    @torch.no_grad()
    def plan_all(
        self,
        instructions: Sequence[str] | EncodedInstructions,
        settings: SearchSettings | None = None,
    ) -> list[PlanPrediction]:
        """Return a plan for each instruction. Raises `DataError` for an empty one."""
        chosen = settings or self.settings
        beams = self.searched(instructions, chosen)
        return [plan for found in beams for plan in self.decided(found, chosen)]

    @torch.no_grad()
    def searched(
        self, instructions: Sequence[str] | EncodedInstructions, settings: SearchSettings
    ) -> Iterator[BeamResult]:
        """Yield the beams of the instructions, batch by batch; `decided` chooses among them. Raises
        `DataError` for an empty instruction."""
        if not isinstance(instructions, EncodedInstructions):
            instructions = self.prepare(instructions)
        training = self.training
        self.eval()
        try:
            size, count = _LONG * 64 // max(64, settings.max_nodes**2), len(instructions.items)
            size = max(1, min(_BATCH, size))
            for begin in range(0, count, size):
                batch = instructions.rows(range(begin, min(begin + size, count)))
                text, prior = self._read(batch), None
                if settings.prior_weight > 0 and self.memory is not None:
                    new_T = self._known < 0
                    prior = self.memory.prior(
                        batch.items, self.idf, self._numbers, new_T, settings.prior_weight
                    )
                yield BeamResult(batch, text, *search(self.network, text, settings, prior))
        finally:
            self.train(training)

    @torch.no_grad()
    def decided(self, found: BeamResult, settings: SearchSettings) -> list[PlanPrediction]:
        """Return a plan for each instruction that was searched for."""
        text, chosen = found.text, found.best(settings.consensus)
        lengths = (chosen >= 0).sum(1)
        chosen = chosen[:, : int(lengths.max())]
        placed = torch.where(chosen >= 0, chosen, len(self.catalog))
        state, _, mentioned = self._states(text, placed)
        edges = torch.sigmoid(self._edges(text, state, placed, mentioned, lengths))
        names, workers = self.vocabulary.workers, None
        if names:
            workers = self.network.worker_logits(state, text.out_TD[placed]).argmax(-1)
        planned: list[PlanPrediction] = []
        for row, size in enumerate(lengths.tolist()):
            there = edges[row, :size, :size] >= settings.edge_threshold
            tools = [self.catalog.tools[place] for place in chosen[row, :size].tolist()]
            after = [column.nonzero().flatten() for column in torch.triu(there, diagonal=1).T]
            nodes = tuple(
                Node(tool.name, after=tuple(parents.tolist()), description=tool.description)
                for tool, parents in zip(tools, after, strict=True)
            )
            planned.append(
                PlanPrediction(
                    Plan(found.given.instructions[row], nodes),
                    None if workers is None else tuple(names[w] for w in workers[row, :size]),
                    is_valid_dag(there.int().tolist()),
                )
            )
        if self.confidence is None:
            return planned
        sure = self.confidence.of(plan_signals(self, found, chosen)).tolist()
        both, least = zip(planned, sure, strict=True), self.confidence.threshold
        return [replace(each, confidence=own, least=least) for each, own in both]

    def greedy(self, text: Encoded) -> dict[str, Any]:
        """Return the fields of `_Outputs`, with gradients, along the greedy plan."""
        settings = replace(self.settings, beam=1, prior_weight=0.0, consensus=0.0)
        with torch.no_grad():
            chosen = search(self.network, text, settings)[0][:, 0]
        lengths = (chosen >= 0).sum(1)
        placed = torch.where(chosen >= 0, chosen, len(self.catalog))
        state, attend, mentioned = self._states(text, placed)
        edges = self._edges(text, state, placed, mentioned, lengths)
        return {
            "subtask_embeddings": state,
            "task_types": self.network.type_logits(text, state, attend),
            "model_selections": self.network.worker_logits(state, text.out_TD[placed]),
            "workflow_graph": torch.sigmoid(edges),
        }

    # -------------------------------------------------------------- parts

    def _read(self, given: EncodedInstructions) -> Encoded:
        return self.network.read(
            TextBatch.of(given.items), self._texts, self._known, given.shared_BT
        )

    def _states(self, text: Encoded, placed: Tensor) -> tuple[Tensor, Tensor, Mentions]:
        """States and attention along plans (the end where there is no tool), and where the tools
        of the plans are spoken of."""
        before = F.pad(placed, (1, 0), value=len(self.catalog) + 1)[:, :-1]
        mentioned = text.mentions(placed)
        earlier = Mentions(  # those of the tools before, the start before the first
            F.pad(mentioned.words_BNP, (0, 0, 1, 0))[:, :-1],
            F.pad(mentioned.centre_BN, (1, 0), value=-1.0)[:, :-1],
        )
        covered = earlier.words_BNP.cumsum(1)
        so_far = text.so_far_TD[before].cumsum(1)
        places = torch.arange(before.shape[1])
        values = self.network.states(text, before, so_far, earlier, covered, places)
        return (*values, mentioned)

    def _edges(
        self, text: Encoded, state: Tensor, placed: Tensor, mentioned: Mentions, lengths: Tensor
    ) -> Tensor:
        compatible = F.pad(self._compatible, (0, 1, 0, 1))[placed[:, :, None], placed[:, None, :]]
        return self.network.edge_logits(text, state, placed, mentioned, compatible, lengths)


def described(catalog: Catalog) -> list[Features]:
    """Return the features of each tool: its name, what it does, what it takes and gives."""
    return [
        features(" ".join([tool.name, tool.description, *tool.inputs, *tool.outputs]))
        for tool in catalog.tools
    ]
