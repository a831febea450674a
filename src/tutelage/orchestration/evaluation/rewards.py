"""The reward of an executed workflow: one formula, under four presets.

`seed` is the document's: 10 for success, less 0.1 a dollar and 0.01 a millisecond, and 0.1 for each
output. `seed_seconds` is the same in seconds. A second costs as much as a success under `seed`, so
training's default is `normalized`, which measures cost and latency against the most expensive and
the slowest legal single-worker plan; `gated` counts those two terms only on success. `reward_terms`
is the formula, for numbers and for arrays of many workflows at once; `plan/dag.py` gives the
critical path that latency is measured along.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, cast, get_args

import numpy as np

from tutelage.errors import ConfigError, RewardError, check_given, check_number

Preset = Literal["seed", "seed_seconds", "normalized", "gated"]


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """The result of one execution. Cost in USD; latency, along the critical path, in ms."""

    success: bool
    outputs: Mapping[str, object] = field(default_factory=dict[str, object])
    """Output by node; an empty one counts as no output."""
    total_cost: float = 0.0
    total_latency_ms: float = 0.0
    verified_fraction: float = 0.0
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
        """A result, or the fields of one by name, or a row of an execution log. Raises
        `RewardError` for anything else."""
        if isinstance(result, ExecutionResult):
            return result
        if not isinstance(cast("object", result), Mapping) or "success" not in result:
            raise RewardError(
                f"an execution's result is {result!r:.80}; give what execute() returned, or its "
                "fields: success, outputs, total_cost, total_latency_ms"
            )
        try:
            row: Mapping[str, Any] = result.get("execution_result") or {}
            check_given("execution_result", row, Mapping, "its fields", RewardError)
            named = {_OF_ROWS.get(name, name): value for name, value in result.items()}
            named = {**row, **named, **{k: v for k, v in result.items() if k in _OF_ROWS.values()}}
            known = {f.name for f in fields(ExecutionResult)}
            given = {name: _numeric(name, named[name]) for name in known & named.keys()}
        except (TypeError, ValueError) as error:
            raise RewardError(f"an execution's result: {error}") from error
        return ExecutionResult(**given)


_OF_ROWS = {"cost": "total_cost", "latency_ms": "total_latency_ms"}
"""What the rows of an execution log call the fields of a result."""


@dataclass(frozen=True, slots=True)
class RewardWeights:
    """The document's weights: success, cost, latency, and the shaped term."""

    alpha: float = 10.0
    beta: float = 0.1
    gamma_latency: float = 0.01
    shaped_reward: float = 0.1

    def __post_init__(self) -> None:
        for each in fields(self):
            check_number(each.name, getattr(self, each.name))


@dataclass(frozen=True, slots=True)
class References:
    """Cost (USD) of the most expensive and seconds of the slowest legal single-worker plan."""

    cost: float
    latency: float

    def __post_init__(self) -> None:
        for name, value in (("cost", self.cost), ("latency", self.latency)):
            check_number(f"reference {name}", value)
            if value <= 0:
                raise ConfigError(f"reference {name} is {value!r}; give a finite number above 0")


def _numeric(name: str, value: Any) -> Any:
    if name == "success":
        if isinstance(value, str) or value not in (0, 1):
            raise ValueError(f"success is {value!r}; give true or false")
        return bool(value)
    if name == "outputs":
        if not isinstance(value, (list, tuple, Mapping)):
            raise ValueError(f"outputs is {value!r:.80}; give an output by node")
        listed = not isinstance(value, Mapping)
        return {str(i): v for i, v in enumerate(value)} if listed else dict(value)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {value!r:.80}; give a number") from None


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
    `references` are USD and seconds, which only `normalized` and `gated` read.
    """
    if preset in ("seed", "seed_seconds"):
        latency, shaped = seconds * (1000.0 if preset == "seed" else 1.0), outputs * 1.0
    else:
        counted = success if preset == "gated" else 1.0
        cost = counted * np.minimum(1.0, cost / references[0])
        latency = counted * np.minimum(1.0, seconds / references[1])
        shaped = verified
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

    `normalized` and `gated` need `references`, which an executed result has itself (one whose
    workers cost nothing and take no known time is measured against 1 USD and 1 s); their cost and
    latency ratios are clipped to 1. Raises `ConfigError` for an unknown preset or missing
    references, `RewardError` for a result with a negative or non-finite number.
    """
    if preset not in get_args(Preset):
        raise ConfigError(f"unknown reward preset {preset!r}; choose from {get_args(Preset)}")
    result = ExecutionResult.read(result)
    check_result(result)
    weights = RewardWeights() if weights is None else weights
    check_given("weights", weights, RewardWeights, "RewardWeights(alpha, beta, ...)")
    if references is not None:
        check_given("references", references, References, "References(cost, latency)")
    elif hasattr(result, "references"):
        references = getattr(result, "references", None) or References(1.0, 1.0)
    elif preset in ("normalized", "gated"):
        raise ConfigError(
            f"preset {preset!r} measures cost and latency against references, and this result "
            "has none: give references=References(cost, latency), a result of execute(), or "
            "preset='seed', the document's formula"
        )
    against = references or References(1.0, 1.0)
    terms = reward_terms(
        preset,
        weights,
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


def check_result(result: ExecutionResult) -> None:
    """Raises `RewardError` for a result with a negative or non-finite number."""
    check_given("success", result.success, bool, "true or false", RewardError)
    check_given("outputs", result.outputs, Mapping, "an output by node", RewardError)
    for name in ("total_cost", "total_latency_ms"):
        check_number(name, getattr(result, name), error=RewardError)
    check_number("verified_fraction", result.verified_fraction, 1, RewardError)
