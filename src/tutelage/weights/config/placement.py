"""What a configuration may not ask of Ray, which places workers that play rollouts, or ranks that
train; `checks.py` has the rest."""

from __future__ import annotations

from collections.abc import Iterator

from tutelage.config.facts import Machine
from tutelage.config.schema import RunConfig
from tutelage.errors import counted


def placement_findings(config: RunConfig, machine: Machine) -> Iterator[tuple[str, str, str]]:
    """Key, reason and way out of what Ray's workers cannot do: they sample on a CPU, without vLLM
    (`vllm.py`); and of an address that is not valid."""
    ranks, workers = machine.placed_ranks(config) > 1, config.agent.placement == "ray"
    if ranks and workers:
        yield (
            "agent.placement",
            "Ray workers are not supported yet together with ranks placed by Ray (trainer.nnodes)",
            "Use agent.placement=local, or trainer.nnodes=1, or start the ranks with torchrun.",
        )
    if workers and machine.device_of(config) == "cuda":
        yield (
            "agent.placement",
            "Ray workers sample on CPUs, but this run uses a GPU",
            "Use agent.placement=local, or trainer.device=cpu.",
        )
    address = config.ray_kwargs.ray_init.address
    host, _, port = (address or "").rpartition(":")
    valid = address in (None, "auto") or ("/" not in host and host and port.isdecimal())
    if (ranks or workers) and not valid:
        yield (
            "ray_kwargs.ray_init.address",
            "not HOST:PORT of a Ray head node",
            "Use auto on a machine of the cluster, or an address such as 10.0.0.5:6379. To run it "
            "elsewhere, use `ray job submit`.",
        )


def thread_warnings(config: RunConfig, machine: Machine) -> Iterator[str]:
    """That more threads are asked for than a CPU has cores: results are right, and come late."""
    threads, cores = config.trainer.threads, machine.cores
    if threads is not None and threads > cores and machine.device_of(config) == "cpu":
        yield (
            f"trainer.threads={threads} is more than the {counted(cores, 'core')} here, so threads "
            f"wait for one another and the run is slower; use trainer.threads={cores} or less"
        )
