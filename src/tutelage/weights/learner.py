"""The learner: everything that one step of reinforcement learning trains or asks, in one object.

The policy's optimizer, the critic where the estimator has one, the reference where a KL is on. It
makes rows of a step's rollouts, has the models say what the estimator and the KL need, and updates
critic and policy. What it holds beyond the policy's weights is its `state_dict`, so a checkpoint
taken between two steps has all of it. The parts are `batch.py`, `critic.py`, `reference.py` and
`update.py`.

Several policies may learn from the same rollouts, each from its own calls. Every policy has its own
weights, optimizer and rows; they share tasks, rewards and groups. One in whose rollouts nobody
spoke for it learns nothing from a step. `loop.py` drives them as `MultiPolicyLearner`; most runs
have only the main one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from tutelage.config import RunConfig
from tutelage.errors import ConfigError, RunError
from tutelage.policy.model import Policy, load_policy
from tutelage.policy.numerics import Numerics
from tutelage.policy.value import ValueModel
from tutelage.resources import POLICY
from tutelage.seeds import SeedTree
from tutelage.types import Rollout
from tutelage.weights.batch import Batch, make_rows, with_advantages
from tutelage.weights.config.extensions import has_critic
from tutelage.weights.critic import Critic
from tutelage.weights.optim import Optimizer, learning_rate_share, make_optimizer
from tutelage.weights.process_group import ONE_PROCESS, ProcessGroup
from tutelage.weights.reference import ReferencePolicy
from tutelage.weights.update import trainer_logp, update_policy


class Learner:
    """What reinforcement learning trains and asks."""

    def __init__(
        self,
        policy: Policy,
        config: RunConfig,
        numerics: Numerics,
        *,
        critic: Critic | None = None,
        reference: ReferencePolicy | None = None,
        name: str = POLICY,
        group: ProcessGroup = ONE_PROCESS,
    ) -> None:
        """`name` says whose calls it learns from (`Call.policy`), `group` which processes do."""
        self._name, self._group = name, group
        self._config, self._numerics, self._whole = config, numerics, policy
        fsdp = config.actor.fsdp_config
        offload = fsdp.param_offload or fsdp.optimizer_offload
        self._policy = trained = group.shard(policy, numerics.dtype, offload=offload)
        self.optimizer: Optimizer = make_optimizer(trained.named(), config.actor.optim, group=group)
        self.critic, self.reference = critic, reference

    def make_rows(self, rollouts: Sequence[Rollout]) -> Batch:
        """The rows of what this policy sampled, see `batch.make_rows`."""
        return make_rows(rollouts, self._config, self._name, self._policy.version)

    def estimate_advantages(self, batch: Batch, baselines: Mapping[str, float] | None) -> Batch:
        """The batch with advantages, and with what critic and reference say of its tokens.

        `baselines` are rewards of greedy rollouts by group, for an estimator that compares with
        them.
        """
        config, critic, reference = self._config, self.critic, self.reference
        if critic is not None or reference is not None:
            logp_BT = trainer_logp(self._policy, batch, config, self._numerics, self._group)
            batch = replace(batch, trainer_logp_BT=logp_BT)
        if reference is not None:
            batch = reference.measure(self._policy, batch, self._numerics)
        return with_advantages(
            batch,
            config,
            values_BT=None if critic is None else critic.values(batch.rows, self._numerics),
            following_BT=None if critic is None else critic.following(batch, self._numerics),
            baselines=baselines,
            beta=0.0 if reference is None else reference.beta,
        )

    def optimize(
        self, batch: Batch, *, seeds: SeedTree, step: int, limit: int | None
    ) -> tuple[Batch, dict[str, float]]:
        """Update critic and policy with the batch of one step, counted from 0, of `limit` steps.

        The first `trainer.critic_warmup` steps train the critic alone. Returns the batch with what
        the trainer said of its tokens, and metrics.
        """
        config, numerics = self._config, self._numerics
        values: dict[str, float] = {}
        if batch.stale:
            behind = [self._policy.version - row.oldest_version for row in batch.rows]
            values["staleness/mean"] = sum(behind) / len(behind)
            values["staleness/max"] = float(max(behind))
        if self.critic is not None:
            rate = learning_rate_share(step, limit, config.critic.optim)
            values |= self.critic.update(batch, numerics, seeds=seeds.child("critic"), rate=rate)
            values["value/lr"] = config.critic.optim.lr * rate
        if self.critic is not None and step < config.trainer.critic_warmup:
            values |= {**batch.group_metrics, **batch.known_gap, "lr": 0.0}
        else:
            rate = learning_rate_share(step, limit, config.actor.optim)
            batch, fields = update_policy(
                self._policy,
                self.optimizer,
                batch,
                config,
                numerics,
                seeds=seeds,
                rate=rate,
                reference=None if self.reference is None else self.reference.whole,
                group=self._group,
            )
            values |= {**fields, "lr": config.actor.optim.lr * rate}
            self._group.publish(self._policy, self._whole)
        if len(batch.stale) == len(batch.rows):
            values.pop("max_dlogp", None)  # no row could be compared
        if self.reference is not None:
            values |= self.reference.steer(batch)
        return batch, values

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on beside the policy's weights."""
        parts = {"policy": self.optimizer, "critic": self.critic, "reference": self.reference}
        return {name: part.state_dict() for name, part in parts.items() if part is not None}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict`, bit for bit. Raises `RunError` when a part is missing."""
        parts = {"policy": self.optimizer, "critic": self.critic, "reference": self.reference}
        for name, part in parts.items():
            if part is None:
                continue
            if name not in state_dict:
                raise RunError(
                    f"the checkpoint has no {name}, which this configuration needs; continue with "
                    "the configuration that saved it, or start a new run"
                )
            part.load_state_dict(state_dict[name])


class MultiPolicyLearner:
    """Learners of policies by name; the main one is `POLICY`."""

    def __init__(self, learners: Mapping[str, Learner]) -> None:
        self._all = learners

    def make_rows(self, rollouts: Sequence[Rollout]) -> dict[str, Batch]:
        """Rows of each policy that spoke."""
        spoke = {c.policy for r in rollouts for c in r.last.calls}
        return {
            name: learner.make_rows(rollouts)
            for name, learner in self._all.items()
            if name == POLICY or name in spoke
        }

    def estimate_advantages(
        self, rows: Mapping[str, Batch], baselines: Mapping[str, float] | None
    ) -> dict[str, Batch]:
        """`Learner.estimate_advantages` of each."""
        return {
            name: self._all[name].estimate_advantages(batch, baselines)
            for name, batch in rows.items()
        }

    def optimize(
        self, batches: Mapping[str, Batch], *, seeds: SeedTree, step: int, limit: int | None
    ) -> tuple[dict[str, Batch], dict[str, float]]:
        """`Learner.optimize` of each; the others' metrics begin with `policy/NAME/`."""
        done: dict[str, Batch] = {}
        values: dict[str, float] = {}
        for name, batch in batches.items():
            main = name == POLICY
            under = seeds if main else seeds.child("policy", name)
            done[name], fields = self._all[name].optimize(
                batch, seeds=under, step=step, limit=limit
            )
            prefix = "" if main else f"policy/{name}/"
            values |= {f"{prefix}{key}": value for key, value in fields.items()}
            gaps = [told["max_dlogp"] for told in (values, fields) if "max_dlogp" in told]
            values |= {"max_dlogp": max(gaps)} if gaps else {}
        return done, values

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on beside the policies' weights."""
        states = {name: learner.state_dict() for name, learner in self._all.items()}
        main = states.pop(POLICY)
        return {**main, **({"others": states} if states else {})}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a `state_dict`, bit for bit."""
        for name, learner in self._all.items():
            learner.load_state_dict(state_dict if name == POLICY else state_dict["others"][name])


def make_learner(
    policy: Policy,
    config: RunConfig,
    numerics: Numerics,
    *,
    fresh: bool,
    start: dict[str, Tensor] | None = None,
    name: str = POLICY,
    group: ProcessGroup = ONE_PROCESS,
) -> Learner:
    """The learner of a run. `fresh`: the policy is still the one that training starts from;
    `start` are that one's tensors where they were kept; `name` is the policy's."""
    critic = None
    if has_critic(config):
        path = config.critic.model.path
        source = policy.copy() if path is None else load_policy(path, device=policy.device)
        if config.model.enable_gradient_checkpointing:
            source.network.recompute()
        fsdp = config.actor.fsdp_config
        offload = fsdp.param_offload or fsdp.optimizer_offload
        described: Any = source.config.get_text_config()
        trunk = group.shard(source, numerics.dtype, offload=offload, head=False)
        critic = Critic(ValueModel(trunk.network, described.hidden_size), config, group)
    reference = None
    if config.needs_reference:
        start_policy, offload = _starting(policy, config, fresh, start), config.ref.fsdp_config
        frozen = group.shard(start_policy, numerics.dtype, offload=offload.param_offload)
        reference = ReferencePolicy(frozen, config, group)
    return Learner(
        policy, config, numerics, critic=critic, reference=reference, name=name, group=group
    )


def _starting(
    policy: Policy, config: RunConfig, fresh: bool, start: dict[str, Tensor] | None
) -> Policy:
    """The reference: a model of its own, or the policy that training started from."""
    if config.ref.path is not None:
        return load_policy(config.ref.path, device=policy.device)
    if fresh or start is not None:
        return policy.copy(None if fresh else start)
    if config.model.path is None:
        raise ConfigError(
            "KL to the initial policy is enabled, but this checkpoint has no initial policy; set a "
            "reference with ref.path"
        )
    if any(name.endswith(".lora_B") for name, _ in policy.named()):
        # Without what adapters add it is the model, of which the frozen tensors are shared.
        held = policy.snapshot()
        return policy.copy({n: t.zero_() if n.endswith(".lora_B") else t for n, t in held.items()})
    return load_policy(config.model.path, device=policy.device)
