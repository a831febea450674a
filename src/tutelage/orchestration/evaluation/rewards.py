"""The reward of an executed workflow: one formula, under two presets.

`seed` is the document's: 10 for success, less 0.1 a dollar and 0.01 a millisecond, and 0.1 for each
output. A second costs as much as a success there, so training's default is `normalized`, which
measures cost and latency against the most expensive and the slowest legal single-worker plan.
`reward_terms` is the formula, for numbers and for arrays of many workflows at once; `plan/dag.py`
gives the critical path that latency is measured along.
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
"""Why an execution failed: its deadline passed."""
UNSERVED = "unserved"
"""Why an execution was lost: no worker's server answered at some subtask."""
WRONG_PLAN = "wrong_plan"
"""Why an execution failed although all its nodes succeeded: the plan is not the right one."""


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """The result of one execution. Cost in USD; latency, along the critical path, in ms."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    success: StrictBool
    outputs: Mapping[str, object] = field(default_factory=dict[str, object])
    """Output by node; an empty one counts as no output."""
    total_cost: NonNegative = 0.0
    total_latency_ms: NonNegative = 0.0
    verified_fraction: Share = 0.0
    """Share of nodes whose verifier passed, 0 to 1."""

    @property
    def cost(self) -> float:
        """`total_cost`, as a row of an execution log calls it."""
        return self.total_cost

    @property
    def latency_ms(self) -> float:
        """`total_latency_ms`, as a row of an execution log calls it."""
        return self.total_latency_ms

    @staticmethod
    def read(result: ExecutionResult | Mapping[str, Any]) -> ExecutionResult:
        """Return a result, also from its fields or from a row of an execution log. Raises
        `RewardError` for a value that does not fit."""
        row: Any = result
        if isinstance(result, ExecutionResult):
            row = {name: getattr(result, name) for name in _FIELDS}
        elif isinstance(cast("object", result), Mapping):
            row = result.get("execution_result", result)
        where = "an execution's result"
        checked = read_as(_RESULT, row, where, error=RewardError)
        return result if isinstance(result, ExecutionResult) else checked


_FIELDS = ("success", "outputs", "total_cost", "total_latency_ms", "verified_fraction")
_RESULT = TypeAdapter(ExecutionResult)


@dataclass(frozen=True, slots=True)
class RewardWeights:
    """The document's weights: success, cost, latency, and the shaped term."""

    alpha: float = 10.0
    beta: float = 0.1
    gamma_latency: float = 0.01
    shaped_reward: float = 0.1


@dataclass(frozen=True, slots=True)
class References:
    """Cost (USD) of the most expensive and seconds of the slowest legal single-worker plan."""

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
    """Return the terms of the reward by name; numbers give numbers, arrays arrays.

    `outputs` counts the outputs that are not empty, `verified` is the share of verified nodes, and
    `references` are USD and seconds, which only `normalized` reads.
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
    """Return the terms `success`, `cost`, `latency`, `shaped` of a result; the reward is their sum.

    `normalized` needs `references`, which an executed result has itself (one whose workers cost
    nothing and take no known time is measured against 1 USD and 1 s); its cost and latency ratios
    are clipped to 1. Raises `ConfigError` for an unknown preset or missing references, and
    `RewardError` as `ExecutionResult.read` does.
    """
    if preset not in get_args(Preset):
        raise ConfigError(f"unknown reward preset {preset!r}; choose from {get_args(Preset)}")
    result = ExecutionResult.read(result)
    if preset == "normalized" and references is None and not hasattr(result, "references"):
        raise ConfigError(
            "preset 'normalized' measures cost and latency against references, and this result has "
            "none: give references=References(cost, latency), a result of execute(), or "
            "preset='seed', the document's formula"
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
    """Return the sum of `reward_parts`, which documents arguments and errors: without a preset the
    document's formula."""
    parts = reward_parts(result, preset=preset, weights=weights, references=references)
    return math.fsum(parts.values())
