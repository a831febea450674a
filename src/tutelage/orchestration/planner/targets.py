"""Workflows as the tensors a planner learns from.

`WorkflowDataset` is the document's: five parallel lists in, one row of padded tensors an item out,
so that any `DataLoader` batches it. Types may be names or numbers. `targets_of` makes the same
tensors for the training loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from tutelage.errors import DataError
from tutelage.orchestration.data.formats import workflow_of
from tutelage.orchestration.data.workflows import Workflow, catalog_of
from tutelage.orchestration.plan.catalog import Catalog
from tutelage.orchestration.planner.loss import IGNORED
from tutelage.orchestration.planner.vocabulary import Vocabulary, worker_names


class Targets(NamedTuple):
    """What a batch of plans should be. `B` plans, `N` one more than the longest has nodes."""

    types_BN: Tensor
    """Tools by number, T after the last one, IGNORED beyond."""
    workers_BN: Tensor
    """Workers by number, IGNORED where none is known."""
    adjacency_BNN: Tensor
    lengths_B: Tensor


def targets_of(workflows: Sequence[Workflow], vocabulary: Vocabulary) -> Targets:
    """The tensors of some workflows. Raises `DataError` for an unknown tool or worker."""
    count = 1 + max(len(w.tools) for w in workflows)
    end = len(vocabulary.catalog)
    types = torch.full((len(workflows), count), IGNORED)
    workers = torch.full((len(workflows), count), IGNORED)
    adjacency = torch.zeros(len(workflows), count, count)
    for row, workflow in enumerate(workflows):
        size = len(workflow.tools)
        numbers = [vocabulary.catalog.index(tool) for tool in workflow.tools]
        types[row, : size + 1] = torch.tensor([*numbers, end])
        if workflow.workers is not None:
            chosen = [_worker(worker, vocabulary.workers) for worker in workflow.workers]
            workers[row, :size] = torch.tensor(chosen)
        for before, after in workflow.plan.edges:
            adjacency[row, before, after] = 1.0
    lengths = torch.tensor([len(w.tools) for w in workflows])
    return Targets(types, workers, adjacency, lengths)


def _worker(worker: int | str, names: Sequence[str]) -> int:
    name = f"worker {worker}" if isinstance(worker, int) else worker
    if name in names:
        return names.index(name)
    if isinstance(worker, int) and worker < len(names):
        return worker
    raise DataError(f"the worker {worker!r} is not among those trained with: {list(names)}")


class WorkflowDataset(Dataset[dict[str, Any]]):
    """Instructions with expert workflows: the document's constructor.

    `subtask_sequences` describe the subtasks in words (empty lists where nobody did); `task_types`
    and `model_selections` are names or numbers; `dependencies[k][i]` lists the parents of subtask i
    of workflow k. An item is `instruction` and the padded tensors of `Targets`, of which
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
        if len({len(column) for column in columns}) != 1 or not instructions:
            sizes = [len(column) for column in columns]
            raise DataError(f"the five lists have lengths {sizes}; give each workflow one of each")
        found: list[Workflow] = []
        names = ("subtasks", "task_types", "dependencies", "model_selections")
        for k, (instruction, *lists) in enumerate(zip(*columns, strict=True)):
            targets = dict(zip(names, map(list[Any], lists), strict=True))
            try:
                row = {"instruction": instruction, "targets": targets}
                found.append(workflow_of(row, catalog))
            except DataError as error:
                raise DataError(f"workflow {k}: {error}") from error
        self._adopt(found, catalog)

    @classmethod
    def of(cls, workflows: Sequence[Workflow], catalog: Catalog | None = None) -> WorkflowDataset:
        """The dataset of workflows that were read from a file or generated."""
        made = cls.__new__(cls)
        made._adopt(list(workflows), catalog)
        return made

    def _adopt(self, workflows: list[Workflow], catalog: Catalog | None) -> None:
        self.workflows = workflows
        self.vocabulary = Vocabulary(catalog or catalog_of(workflows), worker_names(workflows))
        self._targets = targets_of(workflows, self.vocabulary)

    def __len__(self) -> int:
        return len(self.workflows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        types, workers, adjacency, lengths = (part[index] for part in self._targets)
        return {
            "instruction": self.workflows[index].instruction,
            "task_types": types,
            "model_selections": workers,
            "adjacency": adjacency,
            "length": lengths,
        }


def given_targets(targets: Targets | Mapping[str, Any], end: int) -> Targets:
    """Targets as `compute_supervised_loss` is given them: a `Targets`, a batch of a
    `WorkflowDataset`, or ragged lists under `task_types`, `model_selections`, `dependencies`.

    Without dependencies or adjacency the edges are not scored: lengths are 0 there.
    """
    if isinstance(targets, Targets):
        return targets
    types = _padded(targets["task_types"], end)
    lengths = ((types >= 0) & (types < end)).sum(1)
    workers = torch.full_like(types, IGNORED)
    if targets.get("model_selections") is not None:
        given = _padded(targets["model_selections"], None)
        workers[:, : given.shape[1]] = given[:, : workers.shape[1]]
    count = types.shape[1]
    adjacency = torch.zeros(len(types), count, count)
    if targets.get("adjacency") is not None:
        matrix = torch.as_tensor(targets["adjacency"]).float()
        adjacency[:, : matrix.shape[1], : matrix.shape[1]] = matrix
    elif targets.get("dependencies") is not None:
        for row, parents in enumerate(targets["dependencies"]):
            for child, before in enumerate(parents):
                for parent in before:
                    adjacency[row, parent, child] = 1.0
    else:
        lengths = torch.zeros_like(lengths)
    return Targets(types, workers, adjacency, lengths)


def _padded(rows: Any, end: int | None) -> Tensor:
    """Ragged lists as one tensor; `end` is put after each list, where one is given."""
    if isinstance(rows, Tensor):
        return rows.long()
    lists = [[int(v) for v in row] + ([] if end is None else [end]) for row in rows]
    width = max((len(row) for row in lists), default=0)
    return torch.tensor([row + [IGNORED] * (width - len(row)) for row in lists])
