"""Training targets of a planner, and its loss functions.

`WorkflowDataset` takes five parallel lists. An item is one row of padded tensors, so any
`DataLoader` can batch it. Types and workers are names or numbers; a `Vocabulary` maps them to
indices. `PlanTargets.build` creates the same tensors for the training loop.

The loss is the cross-entropy of a plan plus the distance of its soft graph from a DAG. The DAG
term uses the edge probabilities P of all ordered pairs, including the diagonal, without a
threshold, so that they have a gradient. With Q = P∘P and d nodes:

    tr((I + Q / d)^d) - d               (Yu et al. 2019)

It is 0 for every acyclic P.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from tutelage.errors import DataError, pluralize
from tutelage.orchestration.arguments import check_type
from tutelage.orchestration.data.workflows import Workflow, build_catalog, parse_workflow
from tutelage.orchestration.plan.catalog import Catalog
from tutelage.orchestration.plan.dag import parent_lists

IGNORED = -100
"""Target of positions to ignore."""
_SMALL = 16
"""Maximum number of nodes of the graphs that are scored in one batch."""
_MADE = "planner = PlannerModel.of(dataset.workflows, dataset.vocabulary.catalog)"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Vocabulary of a planner: tools of a catalog and names of workers, by index."""

    catalog: Catalog
    workers: tuple[str, ...] = ()

    @classmethod
    def build(cls, workflows: Sequence[Workflow], catalog: Catalog | None = None) -> Vocabulary:
        """Create the vocabulary of a training set. The default catalog has the tools of the
        workflows. Worker number k is named `worker k`. Raises `DataError` if worker names and
        worker numbers are mixed."""
        for each in workflows:
            check_type("each workflow", each, Workflow, "a Workflow", DataError)
        seen = {worker for w in workflows for worker in (w.workers or ())}
        names = sorted(worker for worker in seen if isinstance(worker, str))
        numbers = [worker for worker in seen if isinstance(worker, int)]
        if names and numbers:
            raise DataError(
                f"'model_selections' mixes names ({names[0]!r}) and numbers ({numbers[0]!r}); use "
                "only one of them"
            )
        numbered = [f"worker {k}" for k in range(1 + max(numbers, default=-1))]
        return cls(catalog or build_catalog(workflows), tuple(names or numbered))


class PlanTargets(NamedTuple):
    """Targets of a batch of `B` plans. `N` is the maximum number of nodes plus one."""

    types_BN: Tensor
    """Tool indices, T after the last tool, then IGNORED."""
    workers_BN: Tensor
    """Worker indices, IGNORED if unknown."""
    adjacency_BNN: Tensor
    """1 for an edge, 0 for no edge, IGNORED if unknown."""
    lengths_B: Tensor

    @classmethod
    def build(cls, workflows: Sequence[Workflow], vocabulary: Vocabulary) -> PlanTargets:
        """Create the targets of workflows. Raises `DataError` if a tool or worker is unknown."""
        tools = [[vocabulary.catalog.index(tool) for tool in w.tools] for w in workflows]
        names = vocabulary.workers
        workers = [_to_indices("model_selections", w.workers or (), names) for w in workflows]
        targets = cls._pad(tools, workers, len(vocabulary.catalog))
        for row, workflow in enumerate(workflows):
            for before, after in workflow.plan.edges:
                targets.adjacency_BNN[row, before, after] = 1.0
        return targets

    @classmethod
    def _pad(
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
        cls, targets: PlanTargets | Mapping[str, Any], vocabulary: Vocabulary, count: int
    ) -> PlanTargets:
        """Create the targets of `count` plans from a batch of a `WorkflowDataset` or a mapping
        with `task_types`, `model_selections` and `adjacency`. The values are ragged lists of names
        or numbers, or arrays padded with negative numbers.

        Without adjacency the edges are unknown: only the DAG loss applies to them, not the edge
        loss. Raises `DataError` if the targets do not match the vocabulary.
        """
        if isinstance(targets, PlanTargets):
            return targets
        remedy = "an object with task_types, model_selections, adjacency"
        check_type("the targets", targets, Mapping, remedy, DataError)
        if targets.get("task_types") is None:
            raise DataError("the targets have no 'task_types'; add the tools of the subtasks")
        names, end = vocabulary.catalog.names, len(vocabulary.catalog)
        tools = [_to_indices("task_types", row, names, end) for row in targets["task_types"]]
        if len(tools) != count:
            given = f"{pluralize(len(tools), 'plan')} for {pluralize(count, 'instruction')}"
            raise DataError(f"wrong number of targets: got {given}")
        workers: list[list[int]] = [[]] * count
        if (chosen := targets.get("model_selections")) is not None:
            workers = [_to_indices("model_selections", row, vocabulary.workers) for row in chosen]
        lengths = [len(row) for row in tools]
        found = [len(row) or length for row, length in zip(workers, lengths, strict=False)]
        if found != lengths:  # the end index of a dataset with other tools is read as a tool
            raise DataError(
                f"different subtasks in 'task_types' ({lengths}) and 'model_selections' ({found}); "
                f"create the planner from the data: {_MADE}"
            )
        made = cls._pad(tools, workers, end)
        if targets.get("adjacency") is None:
            return made._replace(adjacency_BNN=torch.full_like(made.adjacency_BNN, IGNORED))
        given: Any = targets["adjacency"]
        given = given.tolist() if hasattr(given, "tolist") else given
        check_type("'adjacency'", given, (list, tuple), "square matrices", DataError)
        for row, (length, matrix) in enumerate(zip(lengths, given, strict=False)):
            inside = [line[:length] for line in matrix[:length]]
            for child, parents in enumerate(parent_lists(inside)):
                made.adjacency_BNN[row, list(parents), child] = 1.0
        return made

    def rows(self, indices: Sequence[int]) -> PlanTargets:
        """Return the targets of the plans with these indices, without unnecessary padding."""
        lengths = self.lengths_B[indices]
        n = int(lengths.max()) + 1
        return PlanTargets(
            self.types_BN[indices, :n],
            self.workers_BN[indices, :n],
            self.adjacency_BNN[indices][:, :n, :n],
            lengths,
        )


def _to_indices(key: str, row: Any, names: Sequence[str], end: int | None = None) -> list[int]:
    """Convert a list of names or numbers, or a padded array, to indices without padding and end.
    Raises `DataError` if a value is unknown."""
    values: list[Any] = row.tolist() if hasattr(row, "tolist") else row
    check_type(repr(key), values, (list, tuple), "a list per plan", DataError)
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
                f"{key!r} has {value!r}, which is not one of the planner's {len(names)} names or "
                f"their indices; create the planner from the data: {_MADE}"
            )
    return places


class WorkflowDataset(Dataset[dict[str, Any]]):
    """Dataset of instructions with expert workflows.

    `subtask_sequences` are descriptions of the subtasks (empty lists if there are none).
    `task_types` and `model_selections` are names or numbers. `dependencies[k][i]` lists the parents
    of subtask i of workflow k. An item has `instruction` and the padded tensors of `PlanTargets`:
    `task_types` (N,), `model_selections` (N,), `adjacency` (N, N) and `length`. A batch of them is
    valid input of `PlannerModel.compute_supervised_loss`. Raises `DataError` with the row number.
    """

    def __init__(
        self,
        instructions: Sequence[str],
        subtask_sequences: Sequence[Sequence[str]],
        task_types: Sequence[Sequence[int | str]],
        dependencies: Sequence[Sequence[Sequence[int]]],
        model_selections: Sequence[Sequence[int | str]],
    ) -> None:
        columns = (instructions, subtask_sequences, task_types, dependencies, model_selections)
        for column in columns:
            check_type("a column", column, (list, tuple), "a list, one per workflow", DataError)
        if len({len(column) for column in columns}) != 1 or not instructions:
            sizes = [len(column) for column in columns]
            raise DataError(f"the five lists must have equal, nonzero lengths, got {sizes}")
        self.workflows: list[Workflow] = []
        names = ("subtasks", "task_types", "dependencies", "model_selections")
        for k, (instruction, *lists) in enumerate(zip(*columns, strict=True)):
            row = {"instruction": instruction, "targets": dict(zip(names, lists, strict=True))}
            try:
                self.workflows.append(parse_workflow(row))
            except DataError as error:
                raise DataError(f"workflow {k}: {error}") from error
        self.vocabulary = Vocabulary.build(self.workflows)
        self._targets = PlanTargets.build(self.workflows, self.vocabulary)

    def __len__(self) -> int:
        return len(self.workflows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        names = ("task_types", "model_selections", "adjacency", "length")
        tensors = zip(names, (part[index] for part in self._targets), strict=True)
        return {"instruction": self.workflows[index].instruction, **dict(tensors)}


# ------------------------------------------------------------------ the loss


def dag_loss(edges_BNN: Tensor, lengths_B: Tensor) -> Tensor:
    """Return the mean DAG loss of the graphs. `edges_BNN` are edge probabilities; graph b has
    `lengths_B[b]` nodes, and padding is ignored."""
    # Small graphs are scored together, large graphs by size. Empty rows and columns add nothing,
    # but the powers for a large graph would overflow in a small one.
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
        # (I + Q / d)^d by repeated squaring, with the d of each graph.
        eye = torch.eye(count)
        base = eye + p_RNN * p_RNN / sizes_R[:, None, None]
        power = eye.expand_as(base)
        for bit in range(count.bit_length()):
            if bit:
                base = base @ base
            odd = ((sizes_R >> bit) & 1).bool()
            power = torch.where(odd[:, None, None], power @ base, power)
        total = total + (power.diagonal(dim1=-2, dim2=-1).sum(-1) - count).sum()
    return total / max(1, len(lengths_B))


def type_loss(logits_BNT: Tensor, targets_BN: Tensor) -> Tensor:
    """Return the mean cross-entropy over the positions with a target, including the end."""
    return F.cross_entropy(logits_BNT.flatten(0, 1), targets_BN.flatten(), ignore_index=IGNORED)


def set_loss(logits_BT: Tensor, targets_BN: Tensor) -> Tensor:
    """Return the binary cross-entropy of the tool sets: sum over tools, mean over plans."""
    tools = logits_BT.shape[1]
    wanted = torch.zeros(len(logits_BT), tools + 1)
    places = torch.where((targets_BN >= 0) & (targets_BN < tools), targets_BN, tools)
    wanted.scatter_(1, places, 1.0)
    loss = F.binary_cross_entropy_with_logits(logits_BT, wanted[:, :tools], reduction="sum")
    return loss / len(logits_BT)


def edge_loss(logits_BNN: Tensor, adjacency_BNN: Tensor, lengths_B: Tensor) -> Tensor:
    """Return the mean binary cross-entropy over the pairs of nodes i < j with a known target, or 0
    if there are no such pairs."""
    count = logits_BNN.shape[1]
    steps = torch.arange(count)
    forward = steps[:, None] < steps[None, :]
    there = forward[None] & (steps[None, None, :] < lengths_B[:, None, None])
    there = there & (adjacency_BNN != IGNORED)
    if not bool(there.any()):
        return logits_BNN.sum() * 0.0
    return F.binary_cross_entropy_with_logits(logits_BNN[there], adjacency_BNN[there].float())
