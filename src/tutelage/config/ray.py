"""Keys of Ray, which places rollout workers (`agent.placement=ray`) or training ranks
(`trainer.nnodes`).

The names are verl's. `distributed/ray_cluster.py` starts or finds Ray.
"""

from __future__ import annotations

from typing import Annotated

from tutelage.config.fields import ClusterAddress, Count, Section
from tutelage.config.unused import NO_RANKS_ON_CPU, NO_RAY, OTHERS_CPUS


class _RayInitConfig(Section):
    """Settings to connect to Ray or to start it."""

    address: Annotated[ClusterAddress | None, NO_RAY, NO_RANKS_ON_CPU] = None
    """Address of a Ray cluster's head node, as HOST:PORT, or `auto` for the one that this machine
    is part of (elsewhere use `ray job submit`); null starts Ray on this machine, for this run."""
    num_cpus: Annotated[Count | None, NO_RAY, NO_RANKS_ON_CPU, OTHERS_CPUS] = None
    """Rollout workers, each on one CPU; null is one per free CPU. There are never more than tasks
    in a training batch. With `trainer.nnodes`: CPUs of the Ray that is started here."""

    @property
    def is_configured(self) -> bool:
        """True if an address or a number of CPUs is set, so that Ray starts the ranks."""
        return self.address is not None or self.num_cpus is not None


class RayConfig(Section):
    """Settings of Ray."""

    ray_init: _RayInitConfig = _RayInitConfig()
    """Settings to connect to Ray or to start it."""
