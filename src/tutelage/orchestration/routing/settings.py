"""The keys of phase 2, under `training.phase2_rl` of a configuration, and their defaults.

Names and numbers are the document's where there is one. Without weights the reward is `normalized`,
under `NORMALIZED`. A file that sets one of the document's weights gets them as the document means
them, for USD and milliseconds (`seed`), unless it says `normalize: true`. Without a key of PPO the
router is the one-step lookahead, which needs no training beyond its predictor and ties with PPO on
queries that neither saw (docs/design). `planner/settings.py` reads the keys from a file,
`phase2.py` uses them.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, Literal, cast

from pydantic import model_validator

from tutelage.config.fields import Count, NonNegative, Positive, Section, Share
from tutelage.orchestration.evaluation.rewards import Preset, RewardWeights

Prior = Literal["lookahead", "utility"]

NORMALIZED = RewardWeights(alpha=10.0, beta=5.0, gamma_latency=3.0, shaped_reward=1.0)
"""Weights where cost and latency are shares of the most expensive and slowest single-worker plan.

At the published 0.1 and 0.01 both shares together move the reward by 1 % of success, so every
router would buy the best worker every time. Here they can take up to 8 of the 10 that success is
worth: a success always pays, also by the most expensive and slowest plan, and a cheap and quick one
is worth several times as much."""


class PPOSettings(Section):
    """The keys that only PPO reads: setting one asks for it."""

    num_episodes: Count = 1000
    """An episode is `workflows_per_episode` workflows, run side by side."""
    learning_rate: Positive = 3e-5
    """Of Adam, at the start; it falls to zero in a straight line."""
    gamma: Share = 0.99
    lambda_gae: Share = 0.95
    epsilon: Share = 0.2
    value_coef: NonNegative = 0.5
    entropy_coef: NonNegative = 0.01
    epochs: Count = 4
    minibatch_size: Count = 256
    max_grad_norm: Positive = 0.5
    target_kl: Positive = 0.03
    """An update ends early when the policy has moved so far, in nats."""
    prior: Prior = "lookahead"
    """What the policy starts from: the utility one step ahead with the workflow in view, or the
    plain `utility` of the node alone, which is what greedy routers take."""
    workflows_per_episode: Count = 64
    episodes_per_update: Count = 16
    validate_every: Count = 4
    """Updates between two validations, each of which writes a checkpoint."""


class Phase2Settings(PPOSettings):
    """How workers are chosen, and how the model selector is trained."""

    algorithm: Literal["lookahead", "PPO"] = "lookahead"
    """lookahead: the expected utility one step ahead, by what the predictor learned; PPO: a policy
    that starts there and is trained, which any key of PPO asks for too."""
    max_steps_per_episode: Count = 50
    """Maximum number of decisions in one workflow; then it is given up."""
    normalize: bool | None = None
    """true: measure cost and latency as shares of the dearest and slowest plan by one worker;
    false: in USD and milliseconds. Without it false where a weight is set, else true."""
    alpha: NonNegative | None = None
    beta: NonNegative | None = None
    gamma_latency: NonNegative | None = None
    shaped_reward: NonNegative | None = None
    val_workflows: Count = 3000
    test_workflows: Count = 4000

    @model_validator(mode="before")
    @classmethod
    def _choose_algorithm(cls, given: Any) -> Any:
        """Return the keys, with PPO where one of its keys is set."""
        if not isinstance(given, dict):
            return given
        keys = cast("dict[str, Any]", given)
        trained = sorted(keys.keys() & PPOSettings.model_fields)
        if trained and keys.get("algorithm") == "lookahead":
            raise ValueError(
                f"{trained[0]} is a key of PPO, and algorithm is lookahead, which is not trained; "
                "leave one of them out"
            )
        return {"algorithm": "PPO", **keys} if trained else keys

    @property
    def reward(self) -> Preset:
        """The reward's formula."""
        weighed = any(getattr(self, each.name) is not None for each in fields(RewardWeights))
        return (
            "seed" if (weighed if self.normalize is None else not self.normalize) else "normalized"
        )

    @property
    def weights(self) -> RewardWeights:
        """The reward's weights, defaults filled in."""
        base = NORMALIZED if self.reward == "normalized" else RewardWeights()
        own = {each.name: getattr(self, each.name) for each in fields(RewardWeights)}
        return RewardWeights(**{k: getattr(base, k) if v is None else v for k, v in own.items()})

    @property
    def updates(self) -> int:
        """How many policy updates the episodes make; the last may be of fewer episodes. The
        lookahead makes none."""
        if self.algorithm == "lookahead":
            return 0
        return math.ceil(self.num_episodes / self.episodes_per_update)

    def workflows_of(self, update: int) -> int:
        """Return how many workflows the update learns from."""
        left = self.num_episodes - update * self.episodes_per_update
        return self.workflows_per_episode * min(self.episodes_per_update, left)
