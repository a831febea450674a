"""What goes into a planner and what comes out: instructions read once, beams, outputs, plans.

These are values; `model.py` makes them. The fields of a call are decoded only when one is looked
at, since a training step needs none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tutelage.orchestration.plan.dag import Plan
from tutelage.orchestration.planner.decode import Beams
from tutelage.orchestration.planner.network import Encoded, Tools
from tutelage.orchestration.planner.text import Features


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with what the planner thought of it."""

    plan: Plan
    workers: tuple[str, ...] | None
    """The worker that phase 1 would choose for each node; None when it saw no workers."""
    score: float
    """Log-probability with prior and length bonus."""
    raw_valid: bool
    """Whether the scored graph was a DAG before decoding kept forward edges only."""
    edge_chances: tuple[tuple[float, ...], ...] = ()
    """(N, N): the chance of each ordered pair."""


class Prepared(NamedTuple):
    """Instructions that were read once, for those who ask about them again and again."""

    instructions: Sequence[str]
    items: Sequence[Features]
    shared_BT: Tensor
    """How much text each instruction and tool share."""

    def rows(self, chosen: Sequence[int]) -> Prepared:
        """Some of them."""
        return Prepared(
            [self.instructions[i] for i in chosen],
            [self.items[i] for i in chosen],
            self.shared_BT[chosen],
        )


class Searched(NamedTuple):
    """The beams of a batch, with what they were searched in."""

    instructions: Sequence[str]
    text: Encoded
    tools: Tools
    beams: Beams


class PlannerOutputs(Mapping[str, Any]):
    """What a call gives: `subtask_embeddings` (B, N, D), `task_types` (B, N, T+1) and
    `model_selections` (B, N, W) scores, and `workflow_graph`, edge probabilities (B, N, N).

    They come from a greedy decoding that is done when one is first read. By item or by attribute.
    """

    KEYS = ("subtask_embeddings", "task_types", "model_selections", "workflow_graph")

    def __init__(
        self, decode: Callable[[PlannerOutputs], dict[str, Any]], text: Encoded, tools: Tools
    ) -> None:
        """`decode` makes the four fields."""
        self._decode, self.text, self.tools = decode, text, tools
        self._made: dict[str, Any] | None = None

    def __getitem__(self, key: str) -> Any:
        if key not in self.KEYS:
            raise KeyError(key)
        if self._made is None:
            self._made = self._decode(self)
        return self._made[key]

    def __getattr__(self, key: str) -> Any:
        if key in PlannerOutputs.KEYS:
            return self[key]
        raise AttributeError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.KEYS)

    def __len__(self) -> int:
        return len(self.KEYS)


def is_acyclic(there: Tensor) -> bool:
    """Whether a square matrix of edges, self-loops among them, has no cycle."""
    matrix = there.float()
    reach = torch.eye(len(matrix)) + matrix
    power = matrix
    for _ in range(max(1, len(matrix)).bit_length()):
        power = ((power @ reach) > 0).float()
        reach = ((reach @ reach) > 0).float()
    return not bool(power.diagonal().any())
