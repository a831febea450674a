"""The sections that steer reinforcement learning: algorithm, actor, critic, rollout and reference.

Key names are the agent-RL guide's, without its `actor_rollout_ref.` prefix (see `aliases.py`), so
that a command written for it reads the same here. Every attribute docstring is the key's help text
and its line in the reference page. The other sections and the root are in `schema.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from tutelage.config.fields import (
    AboveOne,
    Beta,
    Count,
    CountOrZero,
    EngineName,
    Extension,
    NonNegative,
    Positive,
    PositiveShare,
    Section,
    Share,
    TopK,
)
from tutelage.config.unused import (
    BY_REWARDS,
    CLIPPED_BY_BOTH,
    FIXED_KL,
    NO_GPU_MEMORY,
    NO_KL_IN_REWARD,
    NO_KL_LOSS,
    NO_VLLM,
    NOT_NATIVE,
    NOTHING_IS_SCORED,
    ON_THIS_CPU,
    OTHER_AGGREGATION,
    ROWS_ARE_COUNTED,
    off,
)

Aggregation = Literal[
    "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]
KLKind = Literal[
    "kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "full",
    "kl+", "k1+", "abs+", "mse+", "k2+", "low_var_kl+", "k3+", "full+",
]  # fmt: skip
Correction = Literal["none", "token_tis", "sequence_tis", "sequence_mask", "icepop"]


class _KLControl(Section):
    """How the coefficient of the KL penalty in the reward moves."""

    type: Literal["fixed", "adaptive"] = "fixed"
    """`fixed` keeps the coefficient; `adaptive` steers the measured KL towards `target_kl`."""
    kl_coef: NonNegative = 0.001
    """Coefficient of the KL penalty in the reward; the first one when `type` is adaptive."""
    target_kl: Annotated[Positive, FIXED_KL] = 0.1
    """KL per token, in nats, that the adaptive controller aims at."""
    horizon: Annotated[Positive, FIXED_KL] = 10000.0
    """Rollouts over which the adaptive controller moves; larger is slower."""


class _FilterGroupsConfig(Section):
    """Dynamic sampling: groups whose rewards are all equal are replaced by fresh ones."""

    enable: bool = False
    """Replace groups without reward variance by groups of other tasks (dynamic sampling)."""
    max_num_gen_batches: Annotated[Count, off("algorithm.filter_groups.enable")] = 4
    """Maximum number of sampling rounds for one step; groups without variance after that have no
    effect."""


class AlgorithmConfig(Section):
    """What is learned from rewards: the advantage estimator and the KL penalty in the reward."""

    name: Literal["rl", "sft"] = "rl"
    """How the policy is improved: `rl` from rewards, `sft` from demonstrations alone. A method by
    name, such as `grpo`, `ppo`, `rloo`, `dapo` or `gspo`, is `rl` with its estimator and loss."""
    adv_estimator: Annotated[Extension, BY_REWARDS] = "gae"
    """Advantage estimator, which turns rewards into one advantage for each trained token; your own
    is `FILE.py:name`."""
    gamma: Annotated[Share, BY_REWARDS] = 1.0
    """Discount of a reward for each trained token that lies between."""
    lam: Annotated[Share, BY_REWARDS] = 1.0
    """Lambda of GAE: 1 trusts the rewards, 0 the value function."""
    use_kl_in_reward: Annotated[bool, BY_REWARDS] = False
    """Subtract the KL from the reference policy from each token's reward."""
    kl_penalty: Annotated[KLKind, BY_REWARDS, NO_KL_IN_REWARD] = "kl"
    """Estimator of the KL in the reward; a `+` after the name takes the gradient of `k2`."""
    norm_adv_by_std_in_grpo: Annotated[bool, BY_REWARDS] = True
    """Divide GRPO's advantages by the group's standard deviation; false is Dr.GRPO."""
    single_member: Annotated[Literal["zero", "verl"], BY_REWARDS] = "zero"
    """Advantage of a group of one: `zero`, or what `verl` gives it."""
    filter_groups: Annotated[_FilterGroupsConfig, BY_REWARDS] = _FilterGroupsConfig()
    """Replacement of groups that cannot teach."""
    mask_truncated: Annotated[bool, BY_REWARDS] = False
    """Leave rollouts that were cut off out of the loss; they still count in their group."""
    bootstrap_truncated: Annotated[bool, BY_REWARDS] = False
    """Add the critic's value of what would have followed to the reward of a rollout that was cut
    off."""
    kl_ctrl: Annotated[_KLControl, BY_REWARDS, NO_KL_IN_REWARD] = _KLControl()
    """Controller of the KL coefficient in the reward."""


class _OverlongBufferConfig(Section):
    """Soft length penalty of DAPO: the last tokens of the response length cost more and more."""

    enable: bool = False
    """Take a penalty from the reward of a rollout that comes near the response length."""
    len: Annotated[CountOrZero, off("reward_model.overlong_buffer.enable")] = 0
    """Tokens before the response length over which the penalty grows."""
    penalty_factor: Annotated[NonNegative, off("reward_model.overlong_buffer.enable")] = 1.0
    """Penalty at the response length."""


class RewardModelConfig(Section):
    """Terms added to the reward of a rollout before the update."""

    overlong_buffer: Annotated[_OverlongBufferConfig, BY_REWARDS] = _OverlongBufferConfig()
    """Soft length penalty."""


class OptimizerConfig(Section):
    """AdamW of the policy, with a linear warm-up."""

    lr: Positive = 1e-6
    """Learning rate."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay rates of AdamW's two moments."""
    warmup_steps: CountOrZero = 0
    """Optimizer steps over which the learning rate rises from zero."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up: `constant`; `linear` or `cosine` to zero at the last of bounded steps."""
    clip_grad: Positive = 1.0
    """Largest norm of the gradient; a longer one is scaled down to it."""


class PolicyLossConfig(Section):
    """Which surrogate loss the policy descends."""

    loss_mode: Extension = "vanilla"
    """Policy loss; `vanilla` is PPO's clipped ratio with a dual clip; your own is
    `FILE.py:name`."""
    tau_pos: Positive = 1.0
    """Temperature of `sapo` where the advantage is positive."""
    tau_neg: Positive = 1.05
    """Temperature of `sapo` where the advantage is not positive."""
    clip_cov_ratio: PositiveShare = 2e-4
    """Share of the tokens that `clip_cov` detaches."""
    clip_cov_lb: float = 1.0
    """Least covariance of a token that `clip_cov` may detach."""
    clip_cov_ub: float = 5.0
    """Greatest covariance of a token that `clip_cov` may detach."""
    kl_cov_ratio: PositiveShare = 2e-4
    """Share of the tokens, those of highest covariance, that `kl_cov` penalises."""
    ppo_kl_coef: NonNegative = 0.1
    """Weight of the penalty of `kl_cov`."""


class _ActorOffloadConfig(Section):
    """What leaves the GPU's memory between its uses."""

    param_offload: bool = False
    """Keep the policy's parameters in main memory while they are not in use."""
    optimizer_offload: bool = False
    """Keep the optimizer's state in main memory while it is not in use."""


class _ReferenceOffloadConfig(Section):
    """What of the reference model leaves the GPU's memory between its uses."""

    param_offload: bool = False
    """Keep the reference model's parameters in main memory while they are not in use."""


class ActorConfig(Section):
    """How the policy is updated from one batch of rollouts."""

    ppo_mini_batch_size: Annotated[Count | None, BY_REWARDS] = None
    """Rollouts in one optimizer step, those of one task together where it is large enough; null
    takes the whole batch."""
    ppo_epochs: Annotated[Count, BY_REWARDS] = 1
    """Passes over one batch."""
    ppo_micro_batch_size_per_gpu: Annotated[Count | None, BY_REWARDS] = None
    """Rows in one forward pass; null fills micro-batches up to `max_tokens_per_micro_batch`."""
    max_tokens_per_micro_batch: Annotated[Count, ROWS_ARE_COUNTED] = 2048
    """Tokens, padding included, in one forward pass when no row count is given."""
    use_kl_loss: Annotated[bool, BY_REWARDS] = True
    """Add the KL from the reference policy to the loss."""
    kl_loss_coef: Annotated[NonNegative, BY_REWARDS, NO_KL_LOSS] = 0.001
    """Coefficient of the KL in the loss."""
    kl_loss_type: Annotated[KLKind, BY_REWARDS, NO_KL_LOSS] = "low_var_kl"
    """Estimator of the KL in the loss; a `+` after the name takes the gradient of `k2`."""
    entropy_coeff: Annotated[NonNegative, BY_REWARDS] = 0.001
    """Coefficient of the entropy bonus."""
    clip_ratio: Annotated[NonNegative | None, BY_REWARDS, CLIPPED_BY_BOTH] = None
    """Distance from 1 at which the probability ratio is clipped, on both sides; null takes what the
    policy loss takes by default (0.2 for `vanilla`)."""
    clip_ratio_low: Annotated[NonNegative | None, BY_REWARDS] = None
    """Clip distance below 1; null takes `clip_ratio`, or else the loss's own."""
    clip_ratio_high: Annotated[NonNegative | None, BY_REWARDS] = None
    """Clip distance above 1; null takes `clip_ratio`, or else the loss's own."""
    clip_ratio_c: Annotated[AboveOne, BY_REWARDS] = 3.0
    """Dual clip: bounds the loss of a token with negative advantage to this many advantages."""
    loss_agg_mode: Annotated[Aggregation | None, BY_REWARDS] = None
    """How token losses become one number, always over the whole optimizer batch; null takes the
    loss's own (`token-mean` for `vanilla`)."""
    loss_scale_factor: Annotated[Positive | None, BY_REWARDS, OTHER_AGGREGATION] = None
    """Divisor of `seq-mean-token-sum-norm`, in tokens; null takes the response length."""
    skip_zero_variance: Annotated[bool, BY_REWARDS] = True
    """Leave out groups whose rewards are all equal where their gradient is exactly zero."""
    policy_loss: Annotated[PolicyLossConfig, BY_REWARDS] = PolicyLossConfig()
    """The surrogate loss."""
    optim: OptimizerConfig = OptimizerConfig()
    """The policy's optimizer."""
    fsdp_config: Annotated[_ActorOffloadConfig, NO_GPU_MEMORY, BY_REWARDS] = _ActorOffloadConfig()
    """Offloading of the policy."""


class _CriticModelConfig(Section):
    """The network under the value head."""

    path: str | None = None
    """Folder or hub name of the critic's model; null starts from the policy's."""


class _CriticOptimizerConfig(OptimizerConfig):
    """AdamW of the critic, with a linear warm-up."""

    lr: Positive = 1e-5
    """Learning rate of the critic."""


class CriticConfig(Section):
    """The value function, used by estimators with a critic (`gae`)."""

    model: _CriticModelConfig = _CriticModelConfig()
    """The critic's model."""
    optim: _CriticOptimizerConfig = _CriticOptimizerConfig()
    """The critic's optimizer."""
    ppo_mini_batch_size: Count | None = None
    """Rollouts in one optimizer step of the critic; null takes the actor's."""
    ppo_micro_batch_size_per_gpu: Count | None = None
    """Rows in one forward pass of the critic; null takes the actor's."""
    cliprange_value: Positive = 0.5
    """Distance by which a value may move from the old one before its loss is clipped."""


class RolloutConfig(Section):
    """How rollouts are sampled."""

    name: EngineName = "native"
    """Engine that samples, the same as `agent.backend`; `vllm` becomes `native`, with a warning."""
    temperature: NonNegative = 1.0
    """Sampling temperature in training; log-probabilities are taken at the same one."""
    top_p: PositiveShare = 1.0
    """Nucleus sampling; 1 is off."""
    top_k: TopK = 0
    """Sampling among the k likeliest tokens; 0 is off (-1 too)."""
    response_length: Count | None = None
    """Sampled tokens of a whole rollout; null takes `max_turns` times `max_tokens_per_turn`."""
    slots: Annotated[Count, NOT_NATIVE] = 128
    """Sequences that the native engine decodes at once."""
    max_len: Annotated[Count, NOT_NATIVE] = 1024
    """Tokens of context for each slot, prompt, answers and observations together."""
    schedule: Annotated[Literal["deterministic", "free"], NOT_NATIVE] = "deterministic"
    """`deterministic` repeats bit for bit; `free` takes tool results as they arrive."""
    correction: Annotated[Correction, BY_REWARDS] = "none"
    """Importance correction for sampler and trainer that compute different log-probabilities."""
    correction_cap: Annotated[Positive, BY_REWARDS, off("rollout.correction", "none")] = 2.0
    """Largest weight of the importance correction."""
    tensor_model_parallel_size: Annotated[Count, ON_THIS_CPU, NO_VLLM] = 1
    """GPUs over which the engine splits one model."""
    gpu_memory_utilization: Annotated[PositiveShare, NO_VLLM] = 0.5
    """Share of a GPU's memory that vLLM takes."""
    log_prob_micro_batch_size_per_gpu: Annotated[Count | None, NOTHING_IS_SCORED] = None
    """Rows in one forward pass that scores a batch without gradients, by the reference and where
    the trainer computes otherwise than the sampler; null takes `max_tokens_per_micro_batch`."""


class RefConfig(Section):
    """The reference policy, loaded only where a KL needs it."""

    path: str | None = None
    """Folder or hub name of the reference; null freezes the policy that training starts from."""
    fsdp_config: Annotated[_ReferenceOffloadConfig, NO_GPU_MEMORY] = _ReferenceOffloadConfig()
    """Offloading of the reference model."""
