"""Reward of an executed workflow: one formula with two presets.

`seed` is the specified formula: 10 for success, minus 0.1 per dollar and 0.01 per millisecond, plus
0.1 for each output. One second then costs as much as a success earns, so the default of training is
`normalized`, which divides cost and latency by those of the most expensive and the slowest legal
single-worker plan. `reward_terms` computes the formula, for numbers and for arrays of workflows;
latency is measured along the critical path (`plan/dag.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

import numpy as np
from pydantic import ConfigDict, StrictBool, TypeAdapter

from tutelage.config.fields import NonNegative, Share
from tutelage.errors import ConfigError, RewardError
from tutelage.orchestration.data.rows import read_as

Preset = Literal["seed", "normalized"]

DEADLINE = "deadline"
"""Reason of a failed execution: its deadline passed."""


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """Result of one execution. Cost in USD, latency along the critical path in milliseconds."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    success: StrictBool
    outputs: Mapping[str, object] = field(default_factory=dict[str, object])
    """Output of each node; an empty output does not count."""
    total_cost: NonNegative = 0.0
    total_latency_ms: NonNegative = 0.0
    verified_fraction: Share = 0.0
    """Share of nodes with an answer that passed its verifier, 0 to 1."""

    @property
    def cost(self) -> float:
        """Alias of `total_cost`, used in execution logs."""
        return self.total_cost

    @property
    def latency_ms(self) -> float:
        """Alias of `total_latency_ms`, used in execution logs."""
        return self.total_latency_ms

    @staticmethod
    def validate(result: ExecutionResult | Mapping[str, Any]) -> ExecutionResult:
        """Validate a result (an object, a dict of its fields, or a row of an execution log) and
        return it. Raises `RewardError` for an invalid value."""
        row: Any = result
        if isinstance(result, ExecutionResult):
            row = {name: getattr(result, name) for name in RESULT_FIELDS}
        elif isinstance(cast("object", result), Mapping):
            row = result.get("execution_result", result)
        where = "an execution's result"
        checked = read_as(_RESULT, row, where, error=RewardError)
        return result if isinstance(result, ExecutionResult) else checked


RESULT_FIELDS = ("success", "outputs", "total_cost", "total_latency_ms", "verified_fraction")
_RESULT = TypeAdapter(ExecutionResult)


@dataclass(frozen=True, slots=True)
class RewardWeights:
    """Weights of the reward terms: success, cost, latency and the shaped term."""

    alpha: float = 10.0
    beta: float = 0.1
    gamma_latency: float = 0.01
    shaped_reward: float = 0.1


@dataclass(frozen=True, slots=True)
class References:
    """Maximum cost in USD and maximum latency in seconds of the legal single-worker plans."""

    cost: float
    latency: float


def reward_terms(
    preset: Preset,
    weights: RewardWeights,
    *,
    success: Any,
    cost: Any,
    seconds: Any,
    outputs: Any,
    verified: Any,
    references: tuple[Any, Any],
) -> dict[str, Any]:
    """Return the terms of the reward by name, as numbers or as arrays like the arguments.

    `outputs` is the number of non-empty outputs, `verified` the share of verified nodes, and
    `references` a pair of USD and seconds, used only by `normalized`.
    """
    if preset == "seed":
        latency, shaped = seconds * 1000.0, outputs * 1.0
    else:
        cost = np.minimum(1.0, cost / references[0])
        latency, shaped = np.minimum(1.0, seconds / references[1]), verified
    return {
        "success": weights.alpha * success,
        "cost": -weights.beta * cost,
        "latency": -weights.gamma_latency * latency,
        "shaped": weights.shaped_reward * shaped,
    }


def reward_parts(
    result: ExecutionResult | Mapping[str, Any],
    *,
    preset: Preset = "seed",
    weights: RewardWeights | None = None,
    references: References | None = None,
) -> dict[str, float]:
    """Return the reward terms of a result: `success`, `cost`, `latency` and `shaped`.

    The reward is the sum of the terms.

    `normalized` needs `references`, by default the references of the result if it comes from an
    execution (1 USD and 1 s if its workers are free and have no known latency). Ratios of cost and
    latency are clipped to 1. Raises `ConfigError` for an unknown preset or missing references, and
    `RewardError` as `ExecutionResult.validate` does.
    """
    if preset not in get_args(Preset):
        raise ConfigError(f"unknown reward preset {preset!r}; choose from {get_args(Preset)}")
    result = ExecutionResult.validate(result)
    if preset == "normalized" and references is None and not hasattr(result, "references"):
        raise ConfigError(
            "preset 'normalized' needs reference cost and latency, which this result does not "
            "have; pass references=References(cost, latency), a result of execute(), or "
            "preset='seed'"
        )
    against: References = references or getattr(result, "references", None) or References(1.0, 1.0)
    terms = reward_terms(
        preset,
        RewardWeights() if weights is None else weights,
        success=float(result.success),
        cost=result.total_cost,
        seconds=result.total_latency_ms / 1000.0,
        outputs=sum(1 for output in result.outputs.values() if output),
        verified=result.verified_fraction,
        references=(against.cost, against.latency),
    )
    return {name: float(term) for name, term in terms.items()}


def compute_reward(
    result: ExecutionResult | Mapping[str, Any],
    preset: Preset = "seed",
    *,
    weights: RewardWeights | None = None,
    references: References | None = None,
) -> float:
    """Compute the reward of a result as the sum of its `reward_parts`. See `reward_parts` for the
    arguments and errors. The default preset is the formula of the specification."""
    parts = reward_parts(result, preset=preset, weights=weights, references=references)
    return math.fsum(parts.values())
