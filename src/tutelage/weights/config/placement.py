"""What a configuration may not ask of the workers that play rollouts; `checks.py` has the rest."""

from __future__ import annotations

from collections.abc import Iterator

from tutelage.config.facts import Machine
from tutelage.config.schema import RunConfig


def placement_findings(config: RunConfig, machine: Machine) -> Iterator[tuple[str, str, str]]:
    """Key, reason and way out of what Ray's workers cannot do: they sample on a CPU with the
    native engine."""
    if config.agent.placement == "local":
        return
    if machine.device_of(config) == "cuda":
        yield (
            "agent.placement",
            "its workers sample on CPUs, and this run is on a GPU",
            "Use agent.placement=local, or trainer.device=cpu.",
        )
    if config.rollout.name != "native":
        yield (
            "agent.placement",
            f"its workers sample with the native engine, and rollout.name={config.rollout.name!r}",
            "Use agent.placement=local, or rollout.name=native.",
        )
    address = config.ray_kwargs.ray_init.address
    host, _, port = (address or "").rpartition(":")
    if address not in (None, "auto") and ("/" in host or not host or not port.isdecimal()):
        yield (
            "ray_kwargs.ray_init.address",
            "it is not HOST:PORT of a Ray head node",
            "Use auto on a machine of the cluster, or an address such as 10.0.0.5:6379. What runs "
            "elsewhere is submitted with `ray job submit`.",
        )
