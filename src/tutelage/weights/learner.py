"""The learner: everything that one step of reinforcement learning trains or asks, in one object.

The policy's optimizer, the critic where the estimator has one, the reference where a KL is on. One
call turns a step's rollouts into a batch, has the models say what the estimator and the KL need,
updates critic and policy, and returns the metrics. What it holds beyond the policy's weights is its
`state_dict`, so a checkpoint taken between two steps has all of it. `rl.py` drives it; the parts
are `batch.py`, `critic.py`, `reference.py` and `update.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from tutelage.config import RunConfig
from tutelage.errors import ConfigError, RunError
from tutelage.policy.model import Policy, load
from tutelage.policy.numerics import Numerics
from tutelage.policy.value import ValueModel
from tutelage.resources import POLICY
from tutelage.seeds import SeedTree
from tutelage.types import Rollout
from tutelage.weights.batch import Gathered, advise, counted, gather
from tutelage.weights.built import has_critic
from tutelage.weights.critic import Critic
from tutelage.weights.optim import Optimizer, adamw_of, learning_rate_share
from tutelage.weights.recording import Keep, TokenRecord
from tutelage.weights.reference import Distance, Reference, check_vocabulary, frozen
from tutelage.weights.update import group_metrics, tells_itself, trainer_logp, update_policy


class Learner:
    """What reinforcement learning trains and asks."""

    def __init__(
        self,
        policy: Policy,
        config: RunConfig,
        numerics: Numerics,
        *,
        critic: Critic | None = None,
        reference: Reference | None = None,
        name: str = POLICY,
    ) -> None:
        """`name` says whose calls it learns from (`Call.policy`)."""
        self._name = name
        self._policy, self._config, self._numerics = policy, config, numerics
        self.optimizer: Optimizer = adamw_of(policy.named(), config.actor.optim)
        self.critic, self.reference = critic, reference

    def step(
        self,
        rollouts: Sequence[Rollout],
        *,
        seeds: SeedTree,
        step: int,
        limit: int | None,
        baselines: Mapping[str, float] | None = None,
        keep: Keep | None = None,
    ) -> dict[str, float]:
        """Learn from the rollouts of one step, counted from 0, of `limit` steps.

        The first `trainer.critic_warmup` steps train the critic alone. `keep` is told what the step
        made of its rows.
        """
        config, policy, numerics = self._config, self._policy, self._numerics
        found = gather(rollouts, config, self._name)
        logp_BT = self._logp_before(found)
        distance = self._distance(found, logp_BT)
        critic, values_BT = self.critic, None
        if critic is not None:
            values_BT = critic.values(found.token_rows(), numerics)
        batch = advise(
            found,
            config,
            values_BT=values_BT,
            baselines=baselines,
            kl_BT=None if distance is None else distance.penalty_BT,
            beta=0.0 if self.reference is None else self.reference.beta,
            ref_logp_BT=None if distance is None else distance.ref_logp_BT,
        )
        values: dict[str, float] = {}
        if self.critic is not None:
            rate = learning_rate_share(step, limit, config.critic.optim)
            values |= self.critic.update(batch, numerics, seeds=seeds.child("critic"), rate=rate)
            values["value/lr"] = config.critic.optim.lr * rate
        rate = learning_rate_share(step, limit, config.actor.optim)
        tokens = TokenRecord()
        if self.critic is not None and logp_BT is not None and step < config.trainer.critic_warmup:
            values |= {**group_metrics(batch), "max_dlogp": _gap(found, logp_BT), "lr": 0.0}
        else:
            values |= update_policy(
                policy,
                self.optimizer,
                batch,
                config,
                numerics,
                seeds=seeds,
                rate=rate,
                trainer_logp_BT=logp_BT,
                reference=None if self.reference is None else self.reference.whole,
                tokens=None if keep is None else tokens,
            )
            values["lr"] = config.actor.optim.lr * rate
        if keep is not None:
            keep(self._name, counted(rollouts), batch, tokens.tensors(batch, config))
        if self.reference is not None and distance is not None:
            values |= self.reference.steer(distance, found)
        return values

    def _logp_before(self, found: Gathered) -> Tensor | None:
        """The trainer's log-probabilities before the update; None where nothing needs them before
        its own forward pass says them."""
        alone = self.critic is None and self.reference is None
        if alone and tells_itself(self._config, self._numerics):
            return None
        return trainer_logp(self._policy, found, self._config, self._numerics)

    def _distance(self, found: Gathered, logp_BT: Tensor | None) -> Distance | None:
        """How far the policy is from the reference, where there is one."""
        if self.reference is None or logp_BT is None:
            return None
        return self.reference.measure(self._policy, found, logp_BT, self._numerics)

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on beside the policy's weights."""
        parts = {"policy": self.optimizer, "critic": self.critic, "reference": self.reference}
        return {name: part.state_dict() for name, part in parts.items() if part is not None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a `state_dict`, bit for bit. Raises `RunError` when a part is missing."""
        parts = {"policy": self.optimizer, "critic": self.critic, "reference": self.reference}
        for name, part in parts.items():
            if part is None:
                continue
            if name not in state:
                raise RunError(
                    f"the checkpoint has no {name}, which this configuration trains with; go on "
                    "with the configuration that wrote it, or start a new run"
                )
            part.load_state_dict(state[name])


def make_learner(
    policy: Policy,
    config: RunConfig,
    numerics: Numerics,
    *,
    fresh: bool,
    start: dict[str, Tensor] | None = None,
    name: str = POLICY,
) -> Learner:
    """The learner of a run. `fresh`: the policy is still the one that training starts from;
    `start` are that one's tensors where they were kept; `name` is the policy's."""
    critic = None
    if has_critic(config):
        path = config.critic.model.path
        source = policy.copy() if path is None else load(path, device=policy.device)
        critic = Critic(ValueModel(source.network), config)
    reference = None
    if config.needs_reference:
        reference = Reference(_starting(policy, config, fresh, start), config)
    return Learner(policy, config, numerics, critic=critic, reference=reference, name=name)


def check_models(policy: Policy, config: RunConfig) -> None:
    """Refuse second models that cannot work, before anything is trained or written."""
    named = {"critic.model.path": config.critic.model.path if has_critic(config) else None}
    named["ref.path"] = config.ref.path if config.needs_reference else None
    for key, path in named.items():
        if path is not None and path != config.model.path:
            check_vocabulary(policy, path, key)


def _starting(
    policy: Policy, config: RunConfig, fresh: bool, start: dict[str, Tensor] | None
) -> Policy:
    """The reference: a model of its own, or the policy that training started from."""
    if config.ref.path is not None:
        return load(config.ref.path, device=policy.device)
    if fresh:
        return frozen(policy)
    if start is not None:
        return frozen(policy, start)
    if config.model.path is None:
        raise ConfigError(
            "a KL from the starting policy is on, but this checkpoint kept no starting policy; "
            "name a reference with ref.path"
        )
    return load(config.model.path, device=policy.device)


def _gap(found: Gathered, logp_BT: Tensor) -> float:
    """Largest difference between sampler and trainer where it was computed."""
    return float((logp_BT - found.old_logp_BT).abs().max())
