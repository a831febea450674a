"""The reference policy and the KL penalty.

The reference is only loaded if a KL is on: the frozen policy from the start of reinforcement
learning, or the model of `ref.path`. The KL may be part of the reward, with a coefficient that a
controller adapts, and of the loss, with a fixed coefficient. The adapted coefficient is saved in
the checkpoint. Estimators and controllers are in `algorithms/rl/kl.py`.

Legend: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from tutelage.algorithms.rl import AdaptiveKL, kl_penalty
from tutelage.algorithms.rl.index import RolloutIndex
from tutelage.config import RunConfig
from tutelage.errors import ConfigError, ModelError
from tutelage.policy.model import Policy
from tutelage.policy.network import TokenTensors
from tutelage.policy.numerics import Numerics
from tutelage.policy.row import Row
from tutelage.policy.sources import local_folder
from tutelage.weights.batch import Batch
from tutelage.weights.config.extensions import has_critic
from tutelage.weights.process_group import ONE_PROCESS, ProcessGroup
from tutelage.weights.scoring import compute_logp, score_tokens


class ReferencePolicy:
    """A frozen reference policy and the KL coefficient of the reward."""

    def __init__(
        self,
        policy: Policy,
        config: RunConfig,
        numerics: Numerics,
        group: ProcessGroup = ONE_PROCESS,
    ) -> None:
        self.policy, self._config, self._numerics, self._group = policy, config, numerics, group
        for tensor in policy.parameters():
            tensor.requires_grad_(False)
        kl_ctrl = config.algorithm.kl_ctrl
        self.beta = kl_ctrl.kl_coef
        """Coefficient of the KL in the reward."""
        self._adaptive: AdaptiveKL | None = None
        if kl_ctrl.type == "adaptive":
            self._adaptive = AdaptiveKL(kl_ctrl.kl_coef, kl_ctrl.target_kl, kl_ctrl.horizon)

    def distribution(self, rows: Sequence[Row]) -> Tensor:
        """Compute log-probabilities of the whole vocabulary at the trained tokens, [K, V]."""
        warm, dtype = self._config.rollout.temperature, self._numerics.dtype
        return self.policy.network.distribution(rows, warm, dtype)

    def measure(self, policy: Policy, batch: Batch) -> Batch:
        """Add the reference log-probabilities, and the KL in the reward, to a new batch."""
        config, dtype, kl_BT = self._config, self._numerics.dtype, None
        kind, budget = config.algorithm.kl_penalty, config.actor.max_tokens_per_micro_batch
        ref_logp_BT = compute_logp(self.policy, batch.rows, config, dtype, self._group)

        def exact_kl(rows: list[Row]) -> TokenTensors:
            warm, reference_KV = config.rollout.temperature, self.distribution(rows)
            scores = policy.score(rows, temperature=warm, dtype=dtype, reference_KV=reference_KV)
            return TokenTensors(_unwrap(scores.full_kl_K), scores.rows_K, scores.columns_K)

        if config.algorithm.use_kl_in_reward and kind.startswith("full"):
            shared = policy.network.large
            kl_BT = score_tokens(batch.rows, budget, exact_kl, shared=shared, group=self._group)
        elif config.algorithm.use_kl_in_reward:
            kl_BT = kl_penalty(_unwrap(batch.trainer_logp_BT), ref_logp_BT, kind)
        return replace(batch, ref_logp_BT=ref_logp_BT, kl_BT=kl_BT)

    def update(self, batch: Batch) -> dict[str, float]:
        """Return KL metrics, and adapt the coefficient for the next batch.

        `kl/ref` is the mean over trained tokens of the low-variance estimator, in nats.
        """
        k3_BT = kl_penalty(_unwrap(batch.trainer_logp_BT), _unwrap(batch.ref_logp_BT), "low_var_kl")
        out = {"kl/ref": float(k3_BT[batch.mask_BT].mean())}
        if batch.kl_BT is not None:
            penalty = float(batch.kl_BT[batch.mask_BT].mean())
            out |= {"kl/reward": penalty, "kl/coef": self.beta}
            # How much rollouts differ by what the KL costs them, against how much rewards do.
            index = RolloutIndex.build(batch.mask_BT, batch.rollouts_B)
            prices, rewards = (
                float(index.sum_N(x_BT).std(correction=0))
                for x_BT in (self.beta * batch.kl_BT, batch.rewards_BT)
            )
            out |= {"kl/pull": prices / rewards} if rewards else {}
            if self._adaptive is not None:
                self.beta = self._adaptive.update(penalty, len(set(batch.rollouts_B)))
        return out

    def state_dict(self) -> dict[str, Any]:
        """Return the KL coefficient as a state dict."""
        return {"coef": self.beta}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the KL coefficient."""
        self.beta = float(state_dict["coef"])
        if self._adaptive is not None:
            self._adaptive.coef = self.beta


def _unwrap(x_BT: Tensor | None) -> Tensor:
    assert x_BT is not None, "a reference measures what both models say of a batch"
    return x_BT


def check_models(policy: Policy, config: RunConfig) -> None:
    """Check that the critic and the reference have the vocabulary of the policy.

    Raises `ModelError` if a folder cannot be read, `ConfigError` if the tokens differ.
    """
    named = {"critic.model.path": config.critic.model.path if has_critic(config) else None}
    named["ref.path"] = config.ref.path if config.needs_reference else None
    for key, path in named.items():
        if path is None or path == config.model.path:
            continue
        from transformers import AutoTokenizer, PreTrainedTokenizerFast

        place = Path(local_folder(path))
        try:
            if (file := place / "tokenizer.json").is_file():
                other: Any = PreTrainedTokenizerFast(tokenizer_file=str(file))
            else:
                other = AutoTokenizer.from_pretrained(str(place), trust_remote_code=False)
        except Exception as error:  # a broken file comes out of transformers as almost anything
            raise ModelError(f"cannot read the tokenizer of {key}={path!r}: {error}") from error
        if other.get_vocab() != policy.codec.tokenizer.get_vocab():
            raise ConfigError(
                f"the vocabulary of {key}={path!r} differs from the policy's. Use a model of the "
                f"same family, or remove {key}."
            )
