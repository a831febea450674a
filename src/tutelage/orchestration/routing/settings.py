"""Settings of phase 2, under `training.phase2_rl` of a configuration, and their defaults.

Names and defaults follow the specification where it has them. By default, the reward is
`normalized` with the weights `NORMALIZED`. If a file sets one of the weights, the reward is `seed`,
with costs in USD and latency in milliseconds as specified, unless the file sets `normalize: true`.
If no PPO key is set, the router is the one-step lookahead, which needs no training except of its
predictor and is as good as PPO on held-out queries (docs/design). `planner/settings.py` reads the
keys from a file, `phase2.py` uses them.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, Literal, cast

from pydantic import model_validator

from tutelage.config.fields import Count, NonNegative, Positive, Section, Share
from tutelage.orchestration.evaluation.rewards import (
    ExecutionResult,
    Preset,
    RewardWeights,
    compute_reward,
)

NORMALIZED = RewardWeights(alpha=10.0, beta=5.0, gamma_latency=3.0, shaped_reward=1.0)
"""Weights for cost and latency relative to the most expensive and slowest single-worker plan.

With the published 0.1 and 0.01, cost and latency together change the reward by about 1 % of
success, so a router would always choose the best worker. Here they reduce the 10 for success by up
to 8: a success with the most expensive and slowest plan still has a positive reward, and a cheap
and fast success is worth several times as much."""


class PPOSettings(Section):
    """Settings of PPO. If any of these keys is set, the algorithm is PPO."""

    num_episodes: Count = 1000
    """Number of episodes of `workflows_per_episode` parallel workflows each."""
    learning_rate: Positive = 3e-5
    """Initial learning rate of Adam, with linear decay to zero."""
    gamma: Share = 0.99
    lambda_gae: Share = 0.95
    epsilon: Share = 0.2
    value_coef: NonNegative = 0.5
    entropy_coef: NonNegative = 0.01
    epochs: Count = 4
    minibatch_size: Count = 256
    max_grad_norm: Positive = 0.5
    target_kl: Positive = 0.03
    """KL divergence in nats after which an update stops early."""
    workflows_per_episode: Count = 64
    episodes_per_update: Count = 16
    validate_every: Count = 4
    """Number of updates between validations; each validation writes a checkpoint."""


class Phase2Settings(PPOSettings):
    """Settings of the router and its training in phase 2."""

    algorithm: Literal["lookahead", "PPO"] = "lookahead"
    """lookahead: maximize the expected one-step utility under the predictor. PPO: train a policy
    that starts from the lookahead; setting any PPO key selects PPO."""
    max_steps_per_episode: Count = 50
    """Maximum number of decisions in one workflow, after which it fails."""
    normalize: bool | None = None
    """true: cost and latency relative to the most expensive and slowest single-worker plan; false:
    USD and milliseconds. Default: false if a weight is set, else true."""
    alpha: NonNegative | None = None
    beta: NonNegative | None = None
    gamma_latency: NonNegative | None = None
    shaped_reward: NonNegative | None = None
    val_workflows: Count = 3000
    test_workflows: Count = 4000

    @model_validator(mode="before")
    @classmethod
    def _choose_algorithm(cls, values: Any) -> Any:
        """Set the algorithm to PPO if a PPO key is set."""
        if not isinstance(values, dict):
            return values
        keys = cast("dict[str, Any]", values)
        trained = sorted(keys.keys() & PPOSettings.model_fields)
        if trained and keys.get("algorithm") == "lookahead":
            raise ValueError(
                f"{trained[0]} is a PPO key and cannot be used with algorithm lookahead, which is "
                "not trained; remove one of them"
            )
        return {"algorithm": "PPO", **keys} if trained else keys

    @property
    def reward(self) -> Preset:
        """Reward preset: `seed` or `normalized`."""
        weighed = any(getattr(self, each.name) is not None for each in fields(RewardWeights))
        return (
            "seed" if (weighed if self.normalize is None else not self.normalize) else "normalized"
        )

    @property
    def weights(self) -> RewardWeights:
        """Weights of the reward, with defaults for unset weights."""
        base = NORMALIZED if self.reward == "normalized" else RewardWeights()
        own = {each.name: getattr(self, each.name) for each in fields(RewardWeights)}
        return RewardWeights(**{k: getattr(base, k) if v is None else v for k, v in own.items()})

    @property
    def warning(self) -> str:
        """Warning text if the published example of a success has a negative reward; else empty."""
        example = ExecutionResult(True, dict.fromkeys("abc", "done"), 0.045, 1200.0)
        earned = compute_reward(example, weights=self.weights)
        if self.reward != "seed" or earned >= 0:
            return ""
        return (
            f"with these weights a success at 0.045 USD and 1.2 s earns {earned:.2f}, no more than "
            "doing nothing (0); set normalize: true, which measures cost and latency as shares, or "
            "change the weights"
        )

    @property
    def updates(self) -> int:
        """Number of policy updates (the last may have fewer episodes); 0 for the lookahead."""
        if self.algorithm == "lookahead":
            return 0
        return math.ceil(self.num_episodes / self.episodes_per_update)

    def num_workflows(self, update: int) -> int:
        """Return the number of workflows in the batch of an update."""
        left = self.num_episodes - update * self.episodes_per_update
        return self.workflows_per_episode * min(self.episodes_per_update, left)
