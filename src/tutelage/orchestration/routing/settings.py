"""The keys of phase 2, under `training.phase2_rl` of a configuration, and their defaults.

Names and numbers are the published ones where there is one. YAML 1.1 reads `3e-5` as text, so text
that is a number is taken as one; an unknown key is refused with the nearest known one. The four
weights of the reward may be left out: `normalized` and `gated` then get `NORMALIZED`, the other
presets the published weights. `phase2.py` uses these.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from tutelage.errors import ConfigError
from tutelage.orchestration.evaluation.rewards import Preset, RewardWeights

Prior = Literal["lookahead", "utility"]

NORMALIZED = RewardWeights(alpha=10.0, beta=5.0, gamma_latency=3.0, shaped_reward=1.0)
"""Weights where cost and latency are shares of the dearest and slowest single-worker plan.

At the published 0.1 and 0.01 both shares together move the reward by 1 % of success, so every
router would buy the best worker every time. Here they can take up to 8 of the 10 that success is
worth: a success always pays, also by the dearest and slowest plan, and a cheap and quick one is
worth several times as much."""


@dataclass(frozen=True, slots=True)
class Phase2Settings:
    """How the model selector is trained. Raises `ConfigError` for a value that cannot be."""

    algorithm: str = "PPO"
    num_episodes: int = 1000
    """An episode is `workflows_per_episode` workflows, run side by side."""
    max_steps_per_episode: int = 50
    """Decisions in one workflow, at most; then it is given up."""
    learning_rate: float = 3e-5
    """Of Adam, at the start; it falls to zero in a straight line."""
    gamma: float = 0.99
    lambda_gae: float = 0.95
    epsilon: float = 0.2
    value_coef: float = 0.5
    entropy_coef: float = 0.01
    epochs: int = 4
    minibatch_size: int = 256
    max_grad_norm: float = 0.5
    target_kl: float = 0.03
    """An update ends early when the policy has moved so far, in nats."""
    reward: Preset = "normalized"
    alpha: float | None = None
    beta: float | None = None
    gamma_latency: float | None = None
    shaped_reward: float | None = None
    prior: Prior = "lookahead"
    """What the policy starts from: the utility one step ahead with the workflow in view, or the
    plain `utility` of the node alone, which is what greedy routers take."""
    workflows_per_episode: int = 64
    episodes_per_update: int = 16
    validate_every: int = 4
    """Updates between two validations, each of which writes a checkpoint."""
    val_workflows: int = 3000
    test_workflows: int = 4000

    def __post_init__(self) -> None:
        if self.algorithm != "PPO":
            raise ConfigError(f"algorithm={self.algorithm!r}: phase 2 has 'PPO' and no other")
        if self.reward not in get_args(Preset):
            raise ConfigError(f"reward={self.reward!r}; choose from {get_args(Preset)}")
        if self.prior not in get_args(Prior):
            raise ConfigError(f"prior={self.prior!r}; choose from {get_args(Prior)}")
        for name in _WHOLE:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)!r} must be at least 1")
        for name in ("gamma", "lambda_gae", "epsilon"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}={getattr(self, name)!r} must be between 0 and 1")
        for name in ("learning_rate", "max_grad_norm", "target_kl"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)!r} must be above 0")

    @property
    def weights(self) -> RewardWeights:
        """The reward's weights, defaults filled in."""
        base = NORMALIZED if self.reward in ("normalized", "gated") else RewardWeights()
        given = {f.name: getattr(self, f.name) for f in fields(RewardWeights)}
        return RewardWeights(**{k: getattr(base, k) if v is None else v for k, v in given.items()})

    @property
    def updates(self) -> int:
        """How many policy updates the episodes make; the last may be of fewer episodes."""
        return math.ceil(self.num_episodes / self.episodes_per_update)

    def workflows_of(self, update: int) -> int:
        """How many workflows the update learns from."""
        left = self.num_episodes - update * self.episodes_per_update
        return self.workflows_per_episode * min(self.episodes_per_update, left)


_WHOLE = (
    "num_episodes", "max_steps_per_episode", "epochs", "minibatch_size", "workflows_per_episode",
    "episodes_per_update", "validate_every", "val_workflows", "test_workflows",
)  # fmt: skip


def read_settings(given: Mapping[str, Any]) -> Phase2Settings:
    """Settings from the keys under `training.phase2_rl`. Raises `ConfigError` with the key."""
    known = [field.name for field in fields(Phase2Settings)]
    values: dict[str, Any] = {}
    for key, value in given.items():
        where = f"training.phase2_rl.{key}"
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {known!r}"
            raise ConfigError(f"{where} does not exist; {hint}")
        if key in ("algorithm", "reward", "prior"):
            values[key] = str(value)
        else:
            number = _number(where, value)
            if key in _WHOLE and number != int(number):
                raise ConfigError(f"{where} is {value!r}; give a whole number")
            values[key] = int(number) if key in _WHOLE else number
    return Phase2Settings(**values)


def _number(where: str, value: object) -> float:
    try:
        number = float(value) if isinstance(value, (int, float, str)) else math.nan
    except ValueError:
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise ConfigError(f"{where} is {value!r}; give a number, such as 3e-5")
    return number
