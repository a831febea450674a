"""How a batch is cut: into optimizer batches of rollouts, and those into micro-batches of rows.

An optimizer batch changes what is learned, a micro-batch never does: it is only as much as is
computed at once. Rows of one rollout stay in one optimizer batch, and in one micro-batch where a
loss looks at the whole rollout. `update.py` cuts the policy's batch, `critic.py` the critic's.
"""

from __future__ import annotations

from collections.abc import Sequence

from tutelage.config.rl import ActorConfig
from tutelage.policy.row import Row
from tutelage.seeds import SeedTree


def mini_batches(rollouts_B: Sequence[int], size: int | None, seeds: SeedTree) -> list[list[int]]:
    """Row numbers of each optimizer batch of `size` rollouts; shuffled when there are several."""
    rollouts = sorted(set(rollouts_B))
    size = size or len(rollouts)
    if size < len(rollouts):
        seeds.python().shuffle(rollouts)
    parts = [set(rollouts[i : i + size]) for i in range(0, len(rollouts), size)]
    return [[b for b, r in enumerate(rollouts_B) if r in part] for part in parts]


def token_budget(
    rows: Sequence[Row], live: Sequence[int], count: int | None, actor: ActorConfig
) -> int:
    """Tokens of a micro-batch: as configured, or those of `count` rows of the longest."""
    if count is None or not live:
        return actor.max_tokens_per_micro_batch
    return count * max(len(rows[b].ids) for b in live)
