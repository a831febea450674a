"""What a planner's numbers mean: tools by index, workers by index, and the text of each tool.

The vocabulary is made when training begins and travels in the checkpoint as plain lists, so that a
checkpoint is read with `weights_only=True` and needs no other file. `model.py` uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from tutelage.errors import DataError
from tutelage.orchestration.data.workflows import Workflow
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The catalog of task types and the names of the workers."""

    catalog: Catalog
    workers: tuple[str, ...] = ()

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


def worker_names(workflows: Iterable[Workflow]) -> tuple[str, ...]:
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


def text_of(tool: CatalogTool) -> str:
    """What a tool is called, what it does, and what it takes and gives."""
    return " ".join([tool.name, tool.description, *tool.inputs, *tool.outputs])


def compatibility(catalog: Catalog) -> Tensor:
    """(T, T): 1 where a type that row gives is one that column takes, 0 where none is, 0.5 where
    nothing is known of either.
    """
    table = torch.full((len(catalog), len(catalog)), 0.5)
    given = [{kind.lower() for kind in tool.outputs} for tool in catalog.tools]
    taken = [{kind.lower() for kind in tool.inputs} for tool in catalog.tools]
    for i, gives in enumerate(given):
        for j, takes in enumerate(taken):
            if gives and takes:
                table[i, j] = float(bool(gives & takes))
    return table
