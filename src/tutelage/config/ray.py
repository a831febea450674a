"""Keys of Ray, which places the workers that play rollouts (`agent.placement=ray`).

The names are verl's. What starts or finds Ray is `distributed/ray_cluster.py`.
"""

from __future__ import annotations

from typing import Annotated

from tutelage.config.fields import Count, Section
from tutelage.config.unused import off

_NO_RAY = off("agent.placement", "local")


class _RayInitConfig(Section):
    """How Ray is found or started."""

    address: Annotated[str | None, _NO_RAY] = None
    """Address of a Ray cluster, as HOST:PORT, or `auto` for the one that this machine is part of;
    null starts Ray on this machine, for this run."""
    num_cpus: Annotated[Count | None, _NO_RAY] = None
    """Rollout workers, each on one CPU; null is one per free CPU. There are never more than tasks
    in a training batch."""


class RayConfig(Section):
    """Where Ray is."""

    ray_init: _RayInitConfig = _RayInitConfig()
    """How Ray is found or started."""
