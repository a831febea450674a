"""Run a training on the ranks other than rank 0, without run folder, store and console.

Only rank 0 plays rollouts, makes decisions by time, writes files and shows progress. The other
ranks get its rollouts and decisions (`ProcessGroup.broadcast`) and compute the same steps. They
write to a temporary folder. `jobs.py` starts a run on several ranks here; `process_group.py` has
the protocol.
"""

from __future__ import annotations

import importlib
import os
import platform
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tutelage.config import Resolved
from tutelage.config.keys import flatten
from tutelage.errors import ConfigError, RunError, TutelageError
from tutelage.policy.machine import detect_machine
from tutelage.runs.folder import RunFolder
from tutelage.runs.lifecycle import Run
from tutelage.runs.progress import Progress
from tutelage.runs.signals import StopSignal
from tutelage.runs.stored import make_run_row
from tutelage.store import StoreWriter, open_store
from tutelage.types import JSON
from tutelage.weights.process_group import ProcessGroup, get_group, run_on_all
from tutelage.weights.run import TrainingRun

if TYPE_CHECKING:
    from tutelage.weights.kinds import WeightTraining

MARK = ".ranks"
"""A file in the run folder by which the other ranks check that they see the folder."""
NOT_BY_RAY = (
    "custom agents cannot be trained by ranks placed by Ray: remove trainer.nnodes, and start with "
    "torchrun --nproc-per-node=2 SCRIPT.py (or -m tutelage train AGENT.py)"
)
"""What is said where Ray would place the ranks that train one."""


@contextmanager
def launch_ranks(job: WeightTraining, folder: RunFolder) -> Generator[ProcessGroup]:
    """Yield the process group of a run: launched ranks, ranks placed by Ray, or this process."""
    group, placed = get_group(), detect_machine().count_ray_ranks(job.resolved.config) > 1
    if group.size > 1 or "RANK" in os.environ or not placed:
        yield group
        return
    if job.given is not None:
        raise ConfigError(NOT_BY_RAY)
    ray_ranks = importlib.import_module("tutelage.distributed.ray_ranks")
    with ray_ranks.start_ranks(job.resolved, folder.path) as group:
        yield group


def run_rank(
    job: WeightTraining, folder: RunFolder, group: ProcessGroup, run_main: Callable[[], JSON]
) -> JSON:
    """Run one of several ranks: rank 0 calls `run_main`, and every rank returns its result."""
    own = {} if job.given is None else job.given.sources
    check_ranks(group, _describe_rank(job.resolved) | own, folder)
    if group.rank:
        _run_follower(job, folder.name, group)
    return group.broadcast(run_main)


# ---------------------------------------------------------------- what has to be the same


def _describe_rank(resolved: Resolved) -> dict[str, str]:
    """Return the versions and configuration values that must be equal on all ranks."""
    import torch

    keys = flatten(resolved.config.model_dump(mode="json"))
    return {
        **importlib.import_module("tutelage.distributed.shipment").versions(),
        "torch": torch.__version__,
        **{key: repr(value) for key, value in keys if key != "output"},
    }


def check_ranks(group: ProcessGroup, values: Mapping[str, str], folder: RunFolder) -> None:
    """Raise `RunError` on rank 0 if a rank has other `values` or cannot see the run folder.

    Other ranks exit silently.
    """
    path = folder.path.absolute()
    mark = path / MARK
    group.broadcast(mark.touch)
    first = group.broadcast(lambda: dict(values))
    wrong = [key for key in {**first, **values} if first.get(key) != values.get(key)]

    def check() -> None:
        if wrong:
            differences = ", ".join(f"{k} ({values.get(k)}, not {first.get(k)})" for k in wrong[:3])
            raise RunError(
                f"settings differ from rank 0: {differences}; all ranks must run the same command "
                "with the same code"
            )
        if not mark.is_file():
            raise RunError(
                f"{platform.node()} cannot see the run folder {str(path)!r}; choose an --output on "
                "a disk shared by all nodes"
            )

    try:
        run_on_all(group, check)
    finally:
        if group.rank == 0:
            mark.unlink(missing_ok=True)


# ---------------------------------------------------------------- a rank that follows


class _NoWriter(StoreWriter):
    """A store writer that discards all records, for ranks other than rank 0."""

    def _submit(self, items: Sequence[object]) -> None:
        """Discard the records."""


def _run_follower(job: WeightTraining, run_name: str, group: ProcessGroup) -> None:
    """Run the phases of a training on a rank other than 0.

    Rank 0 reports errors that all ranks have, and stops.
    """
    job.ctx = TrainingRun(job.resolved, run_on_all(group, job.make_inputs), job.event_loop)
    with tempfile.TemporaryDirectory(prefix="tutelage-rank-") as place:
        folder = RunFolder(Path(place) / run_name)
        folder.path.mkdir()
        with open_store(folder.store) as store, _NoWriter(store) as writer:
            store.put_run(run_name, **make_run_row(job.head, folder, {}))
            try:
                run = Run(folder, run_name, store, writer, Progress(), StopSignal(lambda: None))
                job.open(run)
                for phase_name, phase in job.phases():
                    if phase_name not in job.done:
                        job.enter(phase_name)
                        phase(run)
                        job.leave(phase_name)
            except KeyboardInterrupt as stopped:
                raise SystemExit(0) from stopped
            except TutelageError as error:
                if group.is_main_alive():
                    raise RunError(f"rank {group.rank} of {group.size}: {error}") from error
                raise SystemExit(0) from error
            finally:
                job.close()
