"""Workflows as the tensors a planner learns from, and the loss of a plan.

`WorkflowDataset` is the document's: five parallel lists in, one row of padded tensors an item out,
so that any `DataLoader` batches it. Types may be names or numbers, which a `Vocabulary` tells
apart. `PlanTargets.of` makes the same tensors for the training loop.

The loss is the cross-entropy of a plan, and how far its soft graph is from a DAG. The DAG terms
look at edge probabilities P before any threshold, over all ordered pairs with the diagonal, so that
they carry a gradient. With Q = P∘P and d nodes:

    seed     mean of the diagonal and of the edges that point backwards
    poly     tr((I + Q / d)^d) - d               (Yu et al. 2019)

Both are 0 on strictly upper triangular P. `poly` is 0 for every acyclic P; `seed` also asks for the
decoder's order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from tutelage.errors import DataError, check_given, counted
from tutelage.orchestration.data.workflows import Workflow, catalog_of, workflow_of
from tutelage.orchestration.plan.catalog import Catalog
from tutelage.orchestration.plan.dag import dependencies_of

DagLoss = Literal["seed", "poly"]
IGNORED = -100
"""Target of a position that has none."""
_SMALL = 16
"""Graphs of at most this number of nodes are scored together."""
_MADE = "planner = PlannerModel.of(dataset.workflows, dataset.vocabulary.catalog)"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a planner's numbers mean: the tools of a catalog and the names of workers, by place."""

    catalog: Catalog
    workers: tuple[str, ...] = ()

    @classmethod
    def of(cls, workflows: Sequence[Workflow], catalog: Catalog | None = None) -> Vocabulary:
        """Return that of a training set; with its own tools without a catalog. A worker that is
        given by number k is called `worker k`. Raises `DataError` when workers are named in one
        place and numbered in another."""
        for each in workflows:
            check_given("a workflow", each, Workflow, "dataset.workflows", DataError)
        seen = {worker for w in workflows for worker in (w.workers or ())}
        names = sorted(worker for worker in seen if isinstance(worker, str))
        numbers = [worker for worker in seen if isinstance(worker, int)]
        if names and numbers:
            raise DataError(
                f"'model_selections' holds both names ({names[0]!r}) and numbers ({numbers[0]!r}); "
                f"write all of them in one way"
            )
        numbered = [f"worker {k}" for k in range(1 + max(numbers, default=-1))]
        return cls(catalog or catalog_of(workflows), tuple(names or numbered))


class PlanTargets(NamedTuple):
    """What a batch of plans should be. `B` plans, `N` one more than the longest has nodes."""

    types_BN: Tensor
    """Tools by number, T after the last one, IGNORED beyond."""
    workers_BN: Tensor
    """Workers by number, IGNORED where none is known."""
    adjacency_BNN: Tensor
    """1 for an edge, 0 for none, IGNORED where that is not known."""
    lengths_B: Tensor

    @classmethod
    def of(cls, workflows: Sequence[Workflow], vocabulary: Vocabulary) -> PlanTargets:
        """Return the tensors of some workflows. Raises `DataError` for an unknown tool or
        worker."""
        tools = [[vocabulary.catalog.index(tool) for tool in w.tools] for w in workflows]
        names = vocabulary.workers
        workers = [_places("model_selections", w.workers or (), names) for w in workflows]
        targets = cls._without_edges(tools, workers, len(vocabulary.catalog))
        for row, workflow in enumerate(workflows):
            for before, after in workflow.plan.edges:
                targets.adjacency_BNN[row, before, after] = 1.0
        return targets

    @classmethod
    def _without_edges(
        cls, tools: Sequence[Sequence[int]], workers: Sequence[Sequence[int]], end: int
    ) -> PlanTargets:
        lengths = torch.tensor([len(row) for row in tools])
        count = 1 + max(len(row) for row in tools)
        types = torch.full((len(tools), count), IGNORED)
        chosen = torch.full((len(tools), count), IGNORED)
        for row, (numbers, picked) in enumerate(zip(tools, workers, strict=True)):
            types[row, : len(numbers) + 1] = torch.tensor([*numbers, end])
            chosen[row, : len(picked)] = torch.tensor(picked, dtype=torch.long)
        return cls(types, chosen, torch.zeros(len(tools), count, count), lengths)

    @classmethod
    def read(
        cls, targets: PlanTargets | Mapping[str, Any], vocabulary: Vocabulary, plans: int
    ) -> PlanTargets:
        """Return targets as `compute_supervised_loss` takes them for a number of `plans`: a
        `PlanTargets`, a batch of a `WorkflowDataset`, or ragged lists, of names or numbers, or
        arrays padded with negative numbers, under `task_types`, `model_selections`, `adjacency`.

        Without adjacency the edges are not known: they are scored as a graph (the
        DAG loss), and not against any. Raises `DataError` for what is not of this vocabulary.
        """
        if isinstance(targets, PlanTargets):
            return targets
        remedy = "an object with task_types, model_selections, adjacency"
        check_given("the targets", targets, Mapping, remedy, DataError)
        if targets.get("task_types") is None:
            raise DataError("the targets have no 'task_types': the tool of each subtask")
        names, end = vocabulary.catalog.names, len(vocabulary.catalog)
        tools = [_places("task_types", row, names, end) for row in targets["task_types"]]
        if len(tools) != plans:
            given = f"{counted(len(tools), 'plan')} for {counted(plans, 'instruction')}"
            raise DataError(f"the targets are of {given}")
        workers: list[list[int]] = [[]] * plans
        if (chosen := targets.get("model_selections")) is not None:
            workers = [_places("model_selections", row, vocabulary.workers) for row in chosen]
        lengths = [len(row) for row in tools]
        found = [len(row) or length for row, length in zip(workers, lengths, strict=False)]
        # A batch of a dataset with other tools has another number for the end, taken for a tool.
        if found != lengths:
            raise DataError(
                f"the plans have {lengths} subtasks in 'task_types' and {found} in "
                "'model_selections'; give one each; where the batch is of a WorkflowDataset with "
                f"other tools, make the planner of it: {_MADE}"
            )
        made = cls._without_edges(tools, workers, end)
        if targets.get("adjacency") is None:
            return made._replace(adjacency_BNN=torch.full_like(made.adjacency_BNN, IGNORED))
        given: Any = targets["adjacency"]
        given = given.tolist() if hasattr(given, "tolist") else given
        check_given("'adjacency'", given, (list, tuple), "a square a plan", DataError)
        for row, (length, matrix) in enumerate(zip(lengths, given, strict=False)):
            inside = [line[:length] for line in matrix[:length]]
            for child, parents in enumerate(dependencies_of(inside)):
                made.adjacency_BNN[row, list(parents), child] = 1.0
        return made

    def rows(self, chosen: Sequence[int]) -> PlanTargets:
        """Return some of the plans, without the padding that only longer ones need."""
        lengths = self.lengths_B[chosen]
        n = int(lengths.max()) + 1
        return PlanTargets(
            self.types_BN[chosen, :n],
            self.workers_BN[chosen, :n],
            self.adjacency_BNN[chosen][:, :n, :n],
            lengths,
        )


def _places(key: str, row: Any, names: Sequence[str], end: int | None = None) -> list[int]:
    """Return a list of names or numbers, or a padded array, as numbers without padding and end.
    Raises `DataError` for what is not among the names."""
    values: list[Any] = row.tolist() if hasattr(row, "tolist") else row
    check_given(repr(key), values, (list, tuple), "a list a plan", DataError)
    values = [value.item() if hasattr(value, "item") else value for value in values]
    if hasattr(row, "tolist"):
        while values and (values[-1] == end or (isinstance(values[-1], int) and values[-1] < 0)):
            values.pop()
    places: list[int] = []
    for value in values:
        if isinstance(value, str) and value in names:
            places.append(names.index(value))
        elif isinstance(value, int | float) and value in range(len(names)):
            places.append(int(value))
        else:
            raise DataError(
                f"{key!r} has {value!r}, and the planner was made with {len(names)}, by name or "
                f"numbered from 0; make it of the data: {_MADE}"
            )
    return places


class WorkflowDataset(Dataset[dict[str, Any]]):
    """Instructions with expert workflows: the document's constructor.

    `subtask_sequences` describe the subtasks in words (empty lists where nobody did); `task_types`
    and `model_selections` are names or numbers; `dependencies[k][i]` lists the parents of subtask i
    of workflow k. An item is `instruction` and the padded tensors of `PlanTargets`, of which
    `task_types` (N,), `model_selections` (N,), `adjacency` (N, N) and `length` make a batch that
    `PlannerModel.compute_supervised_loss` takes. Raises `DataError` naming the row.
    """

    def __init__(
        self,
        instructions: Sequence[str],
        subtask_sequences: Sequence[Sequence[str]],
        task_types: Sequence[Sequence[int | str]],
        dependencies: Sequence[Sequence[Sequence[int]]],
        model_selections: Sequence[Sequence[int | str]],
        *,
        catalog: Catalog | None = None,
    ) -> None:
        columns = (instructions, subtask_sequences, task_types, dependencies, model_selections)
        known = (Catalog, NoneType)
        check_given("catalog", catalog, known, "a Catalog(tools); see read_catalog(FILE)")
        for column in columns:
            check_given("a column", column, (list, tuple), "a list, one each workflow", DataError)
        if len({len(column) for column in columns}) != 1 or not instructions:
            sizes = [len(column) for column in columns]
            raise DataError(f"the five lists have lengths {sizes}; give each workflow one of each")
        self.workflows: list[Workflow] = []
        names = ("subtasks", "task_types", "dependencies", "model_selections")
        for k, (instruction, *lists) in enumerate(zip(*columns, strict=True)):
            row = {"instruction": instruction, "targets": dict(zip(names, lists, strict=True))}
            try:
                self.workflows.append(workflow_of(row, catalog))
            except DataError as error:
                raise DataError(f"workflow {k}: {error}") from error
        self.vocabulary = Vocabulary.of(self.workflows, catalog)
        self._targets = PlanTargets.of(self.workflows, self.vocabulary)

    def __len__(self) -> int:
        return len(self.workflows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        names = ("task_types", "model_selections", "adjacency", "length")
        tensors = zip(names, (part[index] for part in self._targets), strict=True)
        return {"instruction": self.workflows[index].instruction, **dict(tensors)}


# ------------------------------------------------------------------ the loss


def dag_loss(edges_BNN: Tensor, lengths_B: Tensor, kind: DagLoss = "poly") -> Tensor:
    """Return the mean over the graphs: `edges_BNN` are probabilities, and graph b has
    `lengths_B[b]` nodes, whatever the padding."""
    # Small graphs are scored together, large ones by size: empty rows and columns add nothing, but
    # powers for a large graph would overflow in a small one.
    groups = [((lengths_B > 0) & (lengths_B <= _SMALL)).nonzero()[:, 0]]
    groups += [
        (lengths_B == size).nonzero()[:, 0]
        for size in lengths_B[lengths_B > _SMALL].unique().tolist()
    ]
    total = edges_BNN.new_zeros(())
    for rows_R in groups:
        if not len(rows_R):
            continue
        sizes_R = lengths_B[rows_R]
        count = int(sizes_R.max())
        real_RN = torch.arange(count) < sizes_R[:, None]
        inside = real_RN[:, :, None] & real_RN[:, None, :]
        p_RNN = edges_BNN[rows_R, :count, :count] * inside
        if kind == "seed":
            d = sizes_R.to(p_RNN.dtype)
            terms_R = p_RNN.tril().sum((-2, -1)) / (d * (d + 1) / 2)
        else:
            # (I + Q / d)^d by repeated squaring, each graph with its own d.
            eye = torch.eye(count)
            base = eye + p_RNN * p_RNN / sizes_R[:, None, None]
            power = eye.expand_as(base)
            for bit in range(count.bit_length()):
                if bit:
                    base = base @ base
                odd = ((sizes_R >> bit) & 1).bool()
                power = torch.where(odd[:, None, None], power @ base, power)
            terms_R = power.diagonal(dim1=-2, dim2=-1).sum(-1) - count
        total = total + terms_R.sum()
    return total / max(1, len(lengths_B))


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
