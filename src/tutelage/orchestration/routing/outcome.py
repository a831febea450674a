"""What workflows came to, and the rewards of that: `evaluation/rewards.py` for thousands at once.

`environment.py` plays the workflows. Legend: B workflows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tutelage.orchestration.data.outcomes import Floats
from tutelage.orchestration.evaluation.rewards import ExecutionResult
from tutelage.orchestration.routing.situation import Terms
from tutelage.orchestration.routing.workflows import Bools, Ints


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a batch of workflows came to."""

    success_B: Bools
    """Every kept answer is right."""
    cost_B: Floats
    latency_B: Floats
    """Seconds."""
    verified_B: Floats
    """Share of nodes that a verifier passed."""
    outputs_B: Ints
    steps_B: Ints
    """Decisions."""
    reward_B: Floats
    stopped_B: Bools
    late_B: Bools

    def result(self, b: int) -> ExecutionResult:
        """One of them, as rewards read it."""
        return ExecutionResult(
            bool(self.success_B[b]),
            {str(k): "kept" for k in range(int(self.outputs_B[b]))},
            float(self.cost_B[b]),
            1000.0 * float(self.latency_B[b]),
            float(self.verified_B[b]),
        )


def batch_rewards(
    terms: Terms,
    success_B: Bools,
    outputs_B: Ints,
    cost_B: Floats,
    latency_B: Floats,
    verified_B: Floats,
    cost_ref_B: Floats,
    latency_ref_B: Floats,
) -> Floats:
    """`rewards.compute_reward` of many results at once; seconds and USD."""
    weights = terms.weights
    if terms.preset in ("seed", "seed_seconds"):
        cost, shaped = cost_B, outputs_B.astype(np.float64)
        latency = latency_B * (1000.0 if terms.preset == "seed" else 1.0)
    else:
        counted = success_B if terms.preset == "gated" else np.ones_like(success_B)
        cost = counted * np.minimum(1.0, cost_B / cost_ref_B)
        latency = counted * np.minimum(1.0, latency_B / latency_ref_B)
        shaped = verified_B
    return (
        weights.alpha * success_B
        - weights.beta * cost
        - weights.gamma_latency * latency
        + weights.shaped_reward * shaped
    )
