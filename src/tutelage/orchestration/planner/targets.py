"""Workflows as the tensors a planner learns from.

`WorkflowDataset` is the document's: five parallel lists in, one row of padded tensors an item out,
so that any `DataLoader` batches it. Types may be names or numbers, which a `Vocabulary` tells
apart. `PlanTargets.of` makes the same tensors for the training loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import index
from types import NoneType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from tutelage.errors import DataError, check_given, counted
from tutelage.orchestration.data.formats import workflow_of
from tutelage.orchestration.data.synthetic import builtin_graph
from tutelage.orchestration.data.workflows import Workflow, catalog_of
from tutelage.orchestration.execution.worker_files import classic
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool
from tutelage.orchestration.planner.loss import IGNORED

_MADE = "PlannerModel.of(dataset.workflows, dataset.vocabulary.catalog)"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a planner's numbers mean: the tools of a catalog and the names of workers, by place.

    It travels in the checkpoint as plain lists, so that this is read with `weights_only=True`.
    """

    catalog: Catalog
    workers: tuple[str, ...] = ()

    @classmethod
    def of(cls, workflows: Sequence[Workflow], catalog: Catalog | None = None) -> Vocabulary:
        """Of a training set; its own tools without a catalog. Raises `DataError` when workers are
        named in one place and numbered in another.
        """
        for each in workflows:
            check_given("a workflow", each, Workflow, "dataset.workflows", DataError)
        return cls(catalog or catalog_of(workflows), _worker_names(workflows))

    def state(self) -> dict[str, Any]:
        """As plain data; `from_state` gives it back."""
        return {
            "task_types": [
                asdict(tool) | {"inputs": list(tool.inputs), "outputs": list(tool.outputs)}
                for tool in self.catalog.tools
            ],
            "workers": list(self.workers),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Vocabulary:
        """What `state` gave."""
        tools = tuple(
            CatalogTool(**dict[str, Any](t, inputs=tuple(t["inputs"]), outputs=tuple(t["outputs"])))
            for t in state["task_types"]
        )
        return cls(Catalog(tools), tuple(state["workers"]))


def builtin_vocabulary() -> Vocabulary:
    """The built-in tools, and the workers of the preset `classic` in their order."""
    return Vocabulary(builtin_graph().catalog, tuple(worker.name for worker in classic()))


def _worker_names(workflows: Iterable[Workflow]) -> tuple[str, ...]:
    """The workers that a set names, by number first: number k is called `worker k`.

    Raises `DataError` when names and numbers are mixed.
    """
    seen = {worker for w in workflows for worker in (w.workers or ())}
    names = sorted(worker for worker in seen if isinstance(worker, str))
    numbers = [worker for worker in seen if isinstance(worker, int)]
    if names and numbers:
        raise DataError(
            f"'model_selections' holds both names ({names[0]!r}) and numbers ({numbers[0]!r}); "
            f"write all of them in one way"
        )
    return tuple(f"worker {k}" for k in range(max(numbers) + 1)) if numbers else tuple(names)


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
        return cls(types, workers, adjacency, lengths)

    @classmethod
    def given(
        cls, targets: PlanTargets | Mapping[str, Any], vocabulary: Vocabulary, plans: int
    ) -> PlanTargets:
        """Targets as `compute_supervised_loss` is given them for a number of `plans`: a
        `PlanTargets`, a batch of a `WorkflowDataset`, or ragged lists, of names or numbers, or
        arrays padded with negative numbers, under `task_types`, `model_selections`, `dependencies`.

        Without dependencies or adjacency the edges are not known: they are scored as a graph (the
        DAG loss), and not against any. Raises `DataError` for what is not of this vocabulary.
        """
        if isinstance(targets, PlanTargets):
            return targets
        remedy = "an object with task_types, model_selections, dependencies"
        check_given("the targets", targets, Mapping, remedy, DataError)
        if targets.get("task_types") is None:
            raise DataError("the targets have no 'task_types': the tool of each subtask")
        end, names = len(vocabulary.catalog), vocabulary.workers
        types = _padded("task_types", targets["task_types"], vocabulary.catalog.names, end)
        if len(types) != plans:
            told = f"{counted(len(types), 'plan')} for {counted(plans, 'instruction')}"
            raise DataError(f"the targets are of {told}")
        lengths = ((types >= 0) & (types < end)).sum(1)
        if (given := targets.get("length")) is not None:
            try:
                sizes = torch.as_tensor(given).reshape(-1)
            except (RuntimeError, TypeError, ValueError) as error:
                raise DataError(
                    f"'length' is {given!r:.80}; give the number of subtasks of each plan, such as "
                    "[2]"
                ) from error
            _check_sizes("length", sizes, lengths)
        workers = torch.full_like(types, IGNORED)
        if targets.get("model_selections") is not None:
            tensor = _padded("model_selections", targets["model_selections"], names)
            _check_sizes("model_selections", (tensor >= 0).sum(1), lengths)
            workers[:, : tensor.shape[1]] = tensor
        return cls(types, workers, _adjacency(targets, lengths, types.shape[1]), lengths)

    def rows(self, chosen: Sequence[int]) -> PlanTargets:
        """Some of the plans, without the padding that only longer ones need."""
        lengths = self.lengths_B[chosen]
        n = int(lengths.max()) + 1
        return PlanTargets(
            self.types_BN[chosen, :n],
            self.workers_BN[chosen, :n],
            self.adjacency_BNN[chosen][:, :n, :n],
            lengths,
        )


def _worker(worker: int | str, names: Sequence[str]) -> int:
    name = f"worker {worker}" if isinstance(worker, int) else worker
    if name in names:
        return names.index(name)
    if isinstance(worker, int) and 0 <= worker < len(names):
        return worker
    raise DataError(f"the worker {worker!r} is not among those trained with: {list(names)}")


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
        workflows: list[Workflow] = []
        names = ("subtasks", "task_types", "dependencies", "model_selections")
        for k, (instruction, *lists) in enumerate(zip(*columns, strict=True)):
            for name, given in zip(names, lists, strict=True):
                check_given(f"workflow {k}: {name}", given, (list, tuple), "a list", DataError)
            targets = dict(zip(names, map(list[Any], lists), strict=True))
            try:
                row = {"instruction": instruction, "targets": targets}
                workflows.append(workflow_of(row, catalog))
            except DataError as error:
                raise DataError(f"workflow {k}: {error}") from error
        self.workflows = workflows
        self.vocabulary = Vocabulary.of(workflows, catalog)
        self._targets = PlanTargets.of(workflows, self.vocabulary)

    def __len__(self) -> int:
        return len(self.workflows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        names = ("task_types", "model_selections", "adjacency", "length")
        tensors = zip(names, (part[index] for part in self._targets), strict=True)
        return {"instruction": self.workflows[index].instruction, **dict(tensors)}


def _check_sizes(key: str, sizes_B: Tensor, lengths_B: Tensor) -> None:
    """Raise `DataError` unless each plan has one a subtask, or none: a batch of a dataset with
    other tools has another number for the end, which would be taken for a tool."""
    if len(sizes_B) != len(lengths_B):
        raise DataError(f"{key!r} is of {counted(len(sizes_B), 'plan')}, not {len(lengths_B)}")
    for row, (size, length) in enumerate(zip(sizes_B.tolist(), lengths_B.tolist(), strict=True)):
        if size not in (0, length):
            other = (
                "; where the batch is of a WorkflowDataset, its tools are not the planner's, so "
                f"make it of the dataset: planner = {_MADE}"
            )
            raise DataError(
                f"plan {row} has {counted(length, 'subtask')} in 'task_types' and {size} by "
                f"{key!r}; give one each{other if size == length - 1 else ''}"
            )


def _adjacency(targets: Mapping[str, Any], lengths_B: Tensor, count: int) -> Tensor:
    """The edges of targets that are given, (plans, count, count). Raises `DataError` for those of
    subtasks that are not there."""
    plans = len(lengths_B)
    adjacency = torch.zeros(plans, count, count)
    if targets.get("adjacency") is not None:
        try:
            whole = torch.as_tensor(targets["adjacency"]).float()
            matrix = whole[:, :count, :count]  # without the padding that only longer plans need
            if int((matrix > 0).sum()) < int((whole > 0).sum()):
                raise IndexError("it has an edge of a subtask that no plan has")
            if not bool(((matrix == 0) | (matrix == 1) | (matrix < 0)).all()):  # those are padding
                raise ValueError("an entry is neither 0 nor 1")
            adjacency[:, : matrix.shape[1], : matrix.shape[1]] = matrix
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            raise DataError(f"'adjacency' is no square of numbers a plan: {error}") from error
    elif targets.get("dependencies") is not None:
        try:
            for row, parent, child in _edges(targets["dependencies"], lengths_B.tolist()):
                adjacency[row, parent, child] = 1.0
        except (IndexError, TypeError) as error:
            given = targets["dependencies"]
            raise DataError(
                f"'dependencies' is {given!r:.80}: {error}; give the parents of each subtask by "
                "number, [[[], [0]]] for one plan of two"
            ) from error
    else:
        adjacency = torch.full_like(adjacency, IGNORED)
    return adjacency


def _edges(dependencies: Any, lengths: Sequence[int]) -> Iterable[tuple[int, int, int]]:
    """Plan, parent and child of each dependency that is given. Raises `IndexError` for subtasks
    that are not there, `TypeError` for what is no number of one."""
    if len(dependencies) != len(lengths):
        raise IndexError(f"there are {counted(len(lengths), 'plan')}")
    for row, parents in enumerate(dependencies):
        for child, before in enumerate(parents):
            for parent in before:
                if isinstance(parent, bool) or not hasattr(parent, "__index__"):
                    raise TypeError(f"{parent!r} is no number of a subtask")
                for number in (index(parent), child):
                    if not 0 <= number < lengths[row]:
                        raise IndexError(f"plan {row} has no subtask {number}")
                yield row, index(parent), child


def _padded(key: str, rows: Any, names: Sequence[str], end: int | None = None) -> Tensor:
    """Ragged lists of names or numbers, or padded arrays, as one tensor; `end` is put after each
    list, where one is given. Raises `DataError` for what is not among the names."""
    try:
        lists = [[_place(key, v, names) for v in _listed(row, end)] for row in rows]
    except TypeError as error:
        raise DataError(f"{key!r} needs a list a plan, not {rows!r:.80}") from error
    lists = [row + ([] if end is None else [end]) for row in lists]
    width = max((len(row) for row in lists), default=0)
    padded = [row + [IGNORED] * (width - len(row)) for row in lists]
    return torch.tensor(padded, dtype=torch.long).reshape(len(lists), width)


def _listed(row: Any, end: int | None) -> Iterable[Any]:
    """The row of a tensor or an array as a list, without its padding and its end."""
    if not hasattr(row, "tolist"):
        return row
    values = list(row.tolist())
    while values and (values[-1] == end or (not isinstance(values[-1], str) and values[-1] < 0)):
        values.pop()
    return values


def _place(key: str, value: Any, names: Sequence[str]) -> int:
    """A number as it is, a name as its place."""
    value = value.item() if hasattr(value, "item") else value
    value = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(value, str):
        if value not in names:
            raise DataError(f"{key!r} has {value!r}, which the planner was not made with")
        return names.index(value)
    if not isinstance(value, int):
        raise TypeError(value)
    if value < 0:
        raise DataError(f"{key!r} has {value}; numbers are at least 0")
    if value >= len(names):
        raise DataError(
            f"{key!r} has {value}, and the planner was made with {len(names)}, numbered from 0; "
            f"make it of the data: {_MADE}"
        )
    return value
