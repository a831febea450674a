"""`PlannerModel`: maps instructions to plans.

A call encodes the instructions and returns the four output fields, which are decoded greedily on
first access. `compute_supervised_loss` scores expert plans from the same encoding with teacher
forcing. `plan` and `plan_all` use beam search. Tools come from the catalog and edges only go from
earlier to later nodes, so every result is a DAG of known tools. `network.py` computes the scores,
`PlanIndex` adds votes from the plans of similar instructions, `fit.py` trains, `saving.py` stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tutelage.errors import DataError
from tutelage.orchestration.arguments import check_number, check_type
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
"""Weight of the set loss (tools in any order) in the cross-entropy."""
_ABSENT = -30.0
_BATCH = 256
_LONG = 4096
"""Maximum number of node pairs per plan scored at once. Above it, the batch size is reduced."""
NEIGHBOURS = 16
"""Number of known requests whose plans contribute to the prior."""
FLOOR = 0.01
"""Constant added to a vote before its logarithm is taken."""
UNKNOWN = 0.1
"""Vote for a tool that no known plan can contain because it was not in the training set."""
_SHARPNESS = 12.0
_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Settings of the beam search. The weights are tuned on the validation set."""

    beam: int = 4
    prior_weight: float = 0.0
    length_bonus: float = 0.0
    """Bonus per node, added to the log-probability of a plan."""
    edge_threshold: float = 0.5
    consensus: float = 0.0
    """If above 0, choose the plan that agrees most with all beams, each weighted by its probability
    to this power. If 0, choose the most probable plan."""
    repeats: bool = False
    """True if a plan may contain the same tool twice."""
    max_nodes: int = 64


class EncodedInstructions(NamedTuple):
    """Instructions with their precomputed features."""

    instructions: Sequence[str]
    items: Sequence[Features]
    shared_BT: Tensor
    """Amount of text that each instruction shares with each tool."""

    def rows(self, indices: Sequence[int]) -> EncodedInstructions:
        """Return the rows with the given indices."""
        texts, items = [self.instructions[i] for i in indices], [self.items[i] for i in indices]
        return EncodedInstructions(texts, items, self.shared_BT[indices])


class BeamResult(NamedTuple):
    """Beams of a batch, best first, with the encoded input."""

    given: EncodedInstructions
    text: Encoded
    tools_BKN: Tensor
    """Indices into the catalog, -1 after the last tool."""
    scores_BK: Tensor
    """Log-probabilities, including the prior and the length bonus."""

    def select_best(self, consensus: float) -> Tensor:
        """Select one plan per instruction, (B, N): the first beam if `consensus` is 0, otherwise
        the beam that agrees most with all beams, weighted by probability ** `consensus`."""
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
    """Predicted plan with the estimates of the planner."""

    plan: Plan
    workers: tuple[str, ...] | None
    """Predicted worker of each node; None if the training set had no workers."""
    raw_valid: bool
    """True if the scored graph was a DAG before backward edges were removed."""
    confidence: float | None = None
    """Probability that the plan has the correct tools; None without a confidence model."""
    least: float = 0.0
    """Minimum confidence fitted for the planner. Below it, no tool fits."""

    def accept(self, min_confidence: float | None = None) -> Plan:
        """Return the plan. Raises `NoPlanError` if its confidence is below `min_confidence`
        (default: `least`). A value of 0 accepts every plan."""
        least = self.least if min_confidence is None else min_confidence
        if self.confidence is None or self.confidence >= least:
            return self.plan
        tools = ", ".join(dict.fromkeys(node.tool for node in self.plan.nodes))
        raise NoPlanError(
            f"confidence too low: the confidence of the best plan ({tools}) is "
            f"{100 * self.confidence:.0f} %, below the threshold of {100 * least:.0f} %; set "
            "--min-confidence (min_confidence in Python) to 0 to accept it"
        )


Prior = Callable[[Tensor, int, int], Tensor]
"""Function that returns (B, S, T+1), the addition to the tool scores of a step, from the previous
tools (B, S), the start index and the step."""


class PlanIndex(NamedTuple):
    """Index of the training instructions and their plans."""

    texts: SparseRows
    plans_MN: Tensor
    """Tool indices, the end index after the last tool, then -1."""

    def prior(
        self,
        texts: Sequence[Features],
        idf: Tensor,
        numbers_V: Tensor,
        new_T: Tensor,
        weight: float,
    ) -> Prior:
        """Return a prior over the tools of the catalog, from the plans of the nearest instructions.

        `numbers_V` maps each index in the stored plans to an index in the catalog, -1 for tools
        that the catalog lacks. Its last entry is the end. `new_T` is True for tools that were not
        in training.
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
            # Mean of two votes: "is in the plan" (end: "has this length"), "follows the previous
            # tool".
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
    """Run the beam search. Return the best plans of each instruction (with at least one node) and
    their scores, like the last two fields of `BeamResult`."""
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
        state, attend = network.hidden_states(text, before, total, mentioned, covered, places)
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
        # A finished plan has exactly one continuation, with probability 1.
        chances = chances.masked_fill(done[:, :, None], _NEVER)
        chances[:, :, end] = torch.where(done, 0.0, chances[:, :, end])
        flat = (scores[:, :, None] + chances).flatten(1)
        scores, place = flat.topk(width, dim=1)
        beam, tool = place // (end + 1), place % (end + 1)
        done = done.gather(1, beam) | (tool == end)
        tensor = torch.cat([_select(tensor, beam), torch.where(done, -1, tool)[:, :, None]], dim=2)
        if bool(done.all()):
            break
        before = torch.where(done, end, tool)
        total = _select(total, beam) + text.so_far_TD[before] * ~done[:, :, None]
        mentioned = text.mentions(before)
        covered = _select(covered, beam) + mentioned[0]
        used = _select(used, beam).scatter(2, before[:, :, None], True)
        used[:, :, end] = False
    return tensor[:, :, : max(1, tensor.shape[2] - 1)] if done.all() else tensor, scores


def _select(values_BKX: Tensor, beam_BK: Tensor) -> Tensor:
    """Select the rows of the surviving beams."""
    return values_BKX.gather(1, beam_BK[:, :, None].expand(-1, -1, values_BKX.shape[2]))


@dataclass
class _Outputs(Mapping[str, Any]):
    """Outputs of the planner: the scores `subtask_embeddings` (B, N, D), `task_types` (B, N, T+1)
    and `model_selections` (B, N, W), and the edge probabilities `workflow_graph` (B, N, N).

    They are decoded greedily on first access, because a training step does not need them.
    """

    decode: Callable[[Encoded], dict[str, Any]]
    """Function that computes the four fields."""
    text: Encoded

    @cached_property
    def _values(self) -> dict[str, Any]:
        return self.decode(self.text)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class PlannerModel(nn.Module):
    """Trainable planner that predicts plans over the tools of a catalog."""

    def __init__(
        self,
        vocabulary: Vocabulary | None = None,
        idf: Tensor | None = None,
        active: Tensor | None = None,
        width: int = 128,
    ) -> None:
        """Create an untrained planner. `idf` (BUCKETS,) are initial feature weights (default: 1),
        `active` (BUCKETS,) marks the buckets that have a vector (default: all). The default
        vocabulary has the built-in tools and the workers of the preset `classic`."""
        super().__init__()
        names = tuple(worker.name for worker in classic())
        vocabulary = vocabulary or Vocabulary(builtin_graph().catalog, names)
        idf = torch.ones(BUCKETS) if idf is None else idf
        active = torch.ones(BUCKETS, dtype=torch.bool) if active is None else active
        self.vocabulary, self.width = vocabulary, width
        tools = len(vocabulary.catalog)
        self.network = PlannerNetwork(tools, len(vocabulary.workers), width, idf, active)
        self.register_buffer("idf", idf)
        # Tools in the training set. Other tools are represented by their texts only.
        self.register_buffer("seen", torch.ones(tools, dtype=torch.bool))
        self.seen: Tensor
        self.idf: Tensor
        self.settings = SearchSettings()
        self.memory: PlanIndex | None = None
        self.confidence: Confidence | None = None
        self.use_catalog(vocabulary.catalog)

    @classmethod
    def of(cls, workflows: Sequence[Workflow], catalog: Catalog, width: int = 128) -> PlannerModel:
        """Create an untrained planner for a training set. Its IDF weights are computed from the
        instructions. Raises `DataError` if the set is empty."""
        if not workflows:
            raise DataError("no workflows to train on; pass at least one")
        vocabulary = Vocabulary.build(workflows, catalog)
        texts = [features(w.instruction) for w in workflows]
        active = torch.zeros(BUCKETS, dtype=torch.bool)
        for text in texts + tool_features(catalog):
            active[torch.from_numpy(text.ids)] = True
        model = cls(vocabulary, inverse_frequency(texts), active, width)
        used = {tool for workflow in workflows for tool in workflow.tools}
        model.seen.copy_(torch.tensor([name in used for name in catalog.names]))
        model.use_catalog(catalog)
        return model

    def use_catalog(self, catalog: Catalog) -> None:
        """Set the catalog of tools. Tools that were not in the training set are represented by
        their texts only."""
        texts, trained = tool_features(catalog), self.vocabulary.catalog
        self.catalog = catalog
        self._texts = TextBatch.make(texts)
        self._words = SparseRows.make(texts, self.idf * inverse_frequency(texts))
        # Learned index of each tool, -1 if it was not in the training set.
        learned = {name: k for k, name in enumerate(trained.names) if bool(self.seen[k])}
        self._known = torch.tensor([learned.get(name, -1) for name in catalog.names])
        places = [catalog.index(name) if name in catalog else -1 for name in trained.names]
        self._numbers = torch.tensor([*places, len(catalog)])
        # 1 if an output type of the row's tool is an input type of the column's tool, 0 if none is,
        # 0.5 if the types of one of the tools are unknown.
        gives = [{kind.lower() for kind in tool.outputs} for tool in catalog.tools]
        takes = [{kind.lower() for kind in tool.inputs} for tool in catalog.tools]
        self._compatible = torch.tensor(
            [[float(not a.isdisjoint(b)) if a and b else 0.5 for b in takes] for a in gives]
        )

    # -------------------------------------------------------------- encoding and loss

    def prepare(self, instructions: Sequence[str]) -> EncodedInstructions:
        """Encode instructions for `forward` and `plan_all`. The result is valid until the catalog
        changes.

        Raises `DataError` if the batch or an instruction is empty.
        """
        # A single string would be read as one instruction per character.
        listed = "a list of strings, such as ['Say it']"
        check_type("instructions", instructions, (list, tuple), listed, DataError)
        for index, text in enumerate(cast("Sequence[object]", instructions)):
            if not isinstance(text, str) or not text.strip():
                raise DataError(f"instruction {index} must be a non-empty string, got {text!r:.80}")
        if not instructions:
            raise DataError("no instructions; pass at least one")
        items = [features(text) for text in instructions]
        return EncodedInstructions(instructions, items, self._words.products(items, self.idf))

    def forward(self, instructions: Sequence[str] | EncodedInstructions) -> _Outputs:
        """Return the planner outputs for a batch. Raises `DataError` if the batch is empty."""
        if not isinstance(instructions, EncodedInstructions):
            instructions = self.prepare(instructions)
        return _Outputs(self.decode_greedy, self._encode(instructions))

    def compute_supervised_loss(
        self,
        outputs: _Outputs,
        targets: PlanTargets | Mapping[str, Any],
        lambda_dag: float = 0.3,
    ) -> dict[str, Tensor]:
        """Return `ce_loss`, `dag_loss` and `total_loss` = ce + lambda_dag x dag, and the parts of
        the cross-entropy: `type_loss`, `worker_loss`, `edge_loss`, `set_loss`.

        `targets` has a form that `PlanTargets.read` accepts.
        """
        end = len(self.catalog)
        check_number("lambda_dag", lambda_dag)
        check_type("outputs", outputs, _Outputs, "the output of planner(instructions)")
        plan_targets = PlanTargets.read(targets, self.vocabulary, len(outputs.text.hidden_BD))
        types = plan_targets.types_BN
        count = types.shape[1]
        text = outputs.text
        placed = torch.where((types >= 0) & (types < end), types, end)
        state, attend, mentioned = self._states(text, placed)
        logits = self.network.type_logits(text, state, attend)
        # Computed here to keep the order in which gradients are summed.
        chosen = text.out_TD[placed]
        # Tools that occur in no plan are not trained as wrong answers: they may be correct later.
        absent = (self._known < 0) & ~torch.isin(torch.arange(end), types)
        logits = logits.masked_fill(F.pad(absent, (0, 1)), _ABSENT)
        anywhere = self.network.set_logits(text).masked_fill(absent, _ABSENT)
        parts = {
            "type_loss": losses.type_loss(logits, types),
            "set_loss": losses.set_loss(anywhere, types),
        }
        nodes = max(1, count - 1)
        words_BNP, centre_BN = mentioned
        mentioned = (words_BNP[:, :nodes], centre_BN[:, :nodes])
        edges = self._edges(
            text, state[:, :nodes], placed[:, :nodes], mentioned, plan_targets.lengths_B
        )
        adjacency = plan_targets.adjacency_BNN[:, :nodes, :nodes]
        parts["edge_loss"] = losses.edge_loss(edges, adjacency, plan_targets.lengths_B)
        parts["worker_loss"] = logits.new_zeros(())
        if bool((plan_targets.workers_BN >= 0).any()):
            scores = self.network.worker_logits(state, chosen)
            parts["worker_loss"] = losses.type_loss(scores, plan_targets.workers_BN)
        dag = losses.dag_loss(torch.sigmoid(edges), plan_targets.lengths_B)
        ce = parts["type_loss"] + parts["edge_loss"] + parts["worker_loss"]
        ce = ce + SET_WEIGHT * parts["set_loss"]
        return {"total_loss": ce + lambda_dag * dag, "ce_loss": ce, "dag_loss": dag, **parts}

    # -------------------------------------------------------------- planning

    def set_memory(self, workflows: Sequence[Workflow]) -> None:
        """Set the workflows that the retrieval prior searches."""
        plans = PlanTargets.build(workflows, self.vocabulary).types_BN
        texts = [features(w.instruction) for w in workflows]
        self.memory = PlanIndex(SparseRows.make(texts, self.idf), plans.clamp(min=-1))

    def plan(self, instruction: str, min_confidence: float | None = None) -> Plan:
        """Generate a plan. Raises `NoPlanError` if its confidence is too low."""
        return self.plan_all([instruction])[0].accept(min_confidence)

    @torch.no_grad()
    def plan_all(
        self,
        instructions: Sequence[str] | EncodedInstructions,
        settings: SearchSettings | None = None,
    ) -> list[PlanPrediction]:
        """Generate a plan per instruction. Raises `DataError` if an instruction is empty."""
        chosen = settings or self.settings
        beams = self.search_beams(instructions, chosen)
        return [plan for found in beams for plan in self.decode(found, chosen)]

    @torch.no_grad()
    def search_beams(
        self, instructions: Sequence[str] | EncodedInstructions, settings: SearchSettings
    ) -> Iterator[BeamResult]:
        """Run the beam search and yield its results by batch. Raises `DataError` if an instruction
        is empty."""
        if not isinstance(instructions, EncodedInstructions):
            instructions = self.prepare(instructions)
        training = self.training
        self.eval()
        try:
            size, count = _LONG * 64 // max(64, settings.max_nodes**2), len(instructions.items)
            size = max(1, min(_BATCH, size))
            for begin in range(0, count, size):
                batch = instructions.rows(range(begin, min(begin + size, count)))
                text, prior = self._encode(batch), None
                if settings.prior_weight > 0 and self.memory is not None:
                    new_T = self._known < 0
                    prior = self.memory.prior(
                        batch.items, self.idf, self._numbers, new_T, settings.prior_weight
                    )
                yield BeamResult(batch, text, *search(self.network, text, settings, prior))
        finally:
            self.train(training)

    @torch.no_grad()
    def decode(self, beams: BeamResult, settings: SearchSettings) -> list[PlanPrediction]:
        """Convert the result of a beam search to one plan per instruction."""
        text, chosen = beams.text, beams.select_best(settings.consensus)
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
                    Plan(beams.given.instructions[row], nodes),
                    None if workers is None else tuple(names[w] for w in workers[row, :size]),
                    is_valid_dag(there.int().tolist()),
                )
            )
        if self.confidence is None:
            return planned
        sure = self.confidence.predict(plan_signals(self, beams, chosen)).tolist()
        both, least = zip(planned, sure, strict=True), self.confidence.threshold
        return [replace(each, confidence=own, least=least) for each, own in both]

    def decode_greedy(self, text: Encoded) -> dict[str, Any]:
        """Decode greedily and return the planner outputs as a dict, with gradients."""
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

    def _encode(self, batch: EncodedInstructions) -> Encoded:
        return self.network.encode(
            TextBatch.make(batch.items), self._texts, self._known, batch.shared_BT
        )

    def _states(self, text: Encoded, tools: Tensor) -> tuple[Tensor, Tensor, Mentions]:
        """Return the decoder states and the attention for plans (padded with the end index), and
        the mentions of their tools in the text."""
        before = F.pad(tools, (1, 0), value=len(self.catalog) + 1)[:, :-1]
        mentioned = text.mentions(tools)
        words_BNP, centre_BN = mentioned
        earlier = (  # mentions of the previous tool, the start value for the first
            F.pad(words_BNP, (0, 0, 1, 0))[:, :-1],
            F.pad(centre_BN, (1, 0), value=-1.0)[:, :-1],
        )
        covered = earlier[0].cumsum(1)
        so_far = text.so_far_TD[before].cumsum(1)
        places = torch.arange(before.shape[1])
        values = self.network.hidden_states(text, before, so_far, earlier, covered, places)
        return (*values, mentioned)

    def _edges(
        self, text: Encoded, state: Tensor, tools: Tensor, mentions: Mentions, lengths: Tensor
    ) -> Tensor:
        compatible = F.pad(self._compatible, (0, 1, 0, 1))[tools[:, :, None], tools[:, None, :]]
        return self.network.edge_logits(text, state, tools, mentions, compatible, lengths)


def tool_features(catalog: Catalog) -> list[Features]:
    """Return the text features of each tool: name, description, input and output types."""
    return [
        features(" ".join([tool.name, tool.description, *tool.inputs, *tool.outputs]))
        for tool in catalog.tools
    ]
