"""Which processes train together: this one alone, or the ranks of torch.distributed.

Every rank runs the same step on the same rows: the first one plays the rollouts and hands them to
the others (`agree`), each works on its share of a plan of micro-batches (`map`, `accumulate`), and
all get the same reports, gradients and metrics. `tutelage.distributed.process_group` has several
ranks; it is loaded by name when a launcher has started this process.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor

from tutelage.errors import RunError
from tutelage.weights.gradients import accumulate

if TYPE_CHECKING:
    from tutelage.policy.model import Policy

Item = TypeVar("Item")
Out = TypeVar("Out")


class ProcessGroup:
    """The processes of one training: this one alone, which a laptop runs.

    `TorchProcessGroup` overrides what several ranks do. All of them call the same methods in the
    same order.
    """

    rank = 0
    """Of this process, from 0. Rank 0 leads: it alone plays, writes and shows."""
    size = 1
    """Number of processes."""

    def agree(self, make: Callable[[], Out]) -> Out:
        """Call `make` on rank 0 alone and return its value on every rank."""
        return make()

    def map(self, items: Sequence[Item], work: Callable[[Item], Out]) -> list[Out]:
        """Return what `work` gives for every item, in order; each rank works on its share."""
        return [work(item) for item in items]

    def accumulate(
        self,
        parameters: Sequence[Tensor],
        items: Sequence[Item],
        loss: Callable[[Item], tuple[Tensor, Out]],
        *,
        threads: int = 1,
    ) -> list[Out]:
        """`gradients.accumulate` over all items, of which each rank works on its share; every rank
        gets what `loss` reports of all of them, in order."""
        return accumulate(parameters, items, loss, threads=threads)

    def clip(self, parameters: Sequence[Tensor], limit: float) -> float:
        """Scale the gradients down to a norm of `limit`; return the norm that they had."""
        return float(torch.nn.utils.clip_grad_norm_(parameters, limit))

    def shard(
        self, policy: Policy, dtype: torch.dtype, *, offload: bool = False, head: bool = True
    ) -> Policy:
        """Return what is trained of a policy: itself, or a copy of which each rank has a part.
        `offload` keeps what is not computed with in main memory; without `head` the copy gives
        hidden states alone."""
        return policy

    def publish(self, trained: Policy, whole: Policy) -> None:
        """After an update, copy the weights of the sharded `trained` to the policy that rank 0
        samples from and saves."""

    def share_out(self, optimizer: torch.optim.Optimizer) -> None:
        """Of a state that was loaded whole, keep what belongs to this rank's parameters."""

    @torch.no_grad()
    def load(self, named: Iterable[tuple[str, Tensor]], whole: Mapping[str, Tensor]) -> None:
        """Set tensors, or this rank's parts of them, from whole ones, bit for bit."""
        for name, tensor in named:
            tensor.copy_(whole[name])

    def in_parts(self, values: object) -> bool:
        """Return True if tensors of a state are sharded."""
        return False

    def write_parts(self, place: Path | None, values: dict[str, Any]) -> None:
        """Write such a state into the folder that rank 0 names, each rank its part."""


ONE_PROCESS = ProcessGroup()
"""What trains unless a launcher has started several ranks."""


@functools.cache
def launched() -> ProcessGroup:
    """The ranks that a launcher has started with this process, this one alone without a launcher.
    Raises `ConfigError` where a launcher's variables are not all there."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return ONE_PROCESS
    made: ProcessGroup = importlib.import_module("tutelage.distributed.process_group").joined()
    return made


def in_step(group: ProcessGroup, make: Callable[[], Out]) -> Out:
    """What `make` gives on each rank, once it has given it on all. What it raises on any is raised
    on rank 0; the others end without a word."""
    made: Out | None = None
    error: Exception | None = None
    try:
        made = make()
    except Exception as raised:
        error = raised
    told = None if error is None else str(error) or type(error).__name__
    group.agree(lambda: None)  # what rank 0 has failed at meanwhile ends the others here
    wrong = [(rank, text) for rank, text in enumerate(group.map(range(group.size), lambda _: told))]
    wrong = [(rank, text) for rank, text in wrong if text is not None]
    if wrong and group.rank:
        raise SystemExit(0)
    if error is not None:
        raise error
    if wrong:
        rank, text = wrong[0]
        raise RunError(f"rank {rank} of {group.size}: {text}")
    return cast("Out", made)
