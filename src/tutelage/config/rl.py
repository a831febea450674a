"""Sections of reinforcement learning: algorithm, actor, critic, rollout and reference.

Key names are those of the agent-RL guide, without its `actor_rollout_ref.` prefix (see
`aliases.py`), so that its commands work unchanged. Every attribute docstring is the help of its key
and its row in the reference page. `schema.py` has the other sections and the root.
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
    ServerUrls,
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
    SERVERS_ARE_GIVEN,
    if_off,
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
    """Controller of the coefficient of the KL penalty in the reward."""

    type: Literal["fixed", "adaptive"] = "fixed"
    """`fixed` keeps the coefficient; `adaptive` adjusts it towards `target_kl`."""
    kl_coef: NonNegative = 0.001
    """Coefficient of the KL penalty in the reward; the initial one if `type` is adaptive."""
    target_kl: Annotated[Positive, FIXED_KL] = 0.1
    """Target KL per token of the adaptive controller, in nats."""
    horizon: Annotated[Positive, FIXED_KL] = 10000.0
    """Horizon of the adaptive controller, in rollouts; larger adapts more slowly."""


class _FilterGroupsConfig(Section):
    """Dynamic sampling: groups with equal rewards are replaced by groups of other tasks."""

    enable: bool = False
    """Dynamic sampling (DAPO): replace groups with equal rewards by groups of other tasks."""
    max_num_gen_batches: Annotated[Count, if_off("algorithm.filter_groups.enable")] = 4
    """Maximum sampling rounds per step; groups that are still flat then stay, without effect."""


class AlgorithmConfig(Section):
    """Settings of the advantage estimator and of the KL penalty in the reward."""

    name: Literal["rl", "sft"] = "rl"
    """Training algorithm: `rl` from rewards, `sft` from demonstrations only. A method such as
    `grpo`, `ppo`, `rloo`, `dapo` or `gspo` is `rl` with its estimator and loss."""
    adv_estimator: Annotated[Extension, BY_REWARDS] = "gae"
    """Advantage estimator; `FILE.py:name` is a custom one."""
    gamma: Annotated[Share, BY_REWARDS] = 1.0
    """Discount factor per trained token."""
    lam: Annotated[Share, BY_REWARDS] = 1.0
    """Lambda of GAE: 1 is the Monte-Carlo return, 0 the one-step TD error."""
    use_kl_in_reward: Annotated[bool, BY_REWARDS] = False
    """Subtract the KL to the reference policy from token rewards."""
    kl_penalty: Annotated[KLKind, BY_REWARDS, NO_KL_IN_REWARD] = "kl"
    """KL estimator in the reward; the suffix `+` uses the gradient of `k2`."""
    norm_adv_by_std_in_grpo: Annotated[bool, BY_REWARDS] = True
    """Divide GRPO's advantages by the group's standard deviation; false is Dr.GRPO."""
    single_member: Annotated[Literal["zero", "verl"], BY_REWARDS] = "zero"
    """Advantage of a group of one: `zero`, or as in `verl`."""
    filter_groups: Annotated[_FilterGroupsConfig, BY_REWARDS] = _FilterGroupsConfig()
    """Dynamic sampling of groups."""
    mask_truncated: Annotated[bool, BY_REWARDS] = False
    """Mask truncated rollouts out of the loss; they still count in their group's statistics."""
    bootstrap_truncated: Annotated[bool, BY_REWARDS] = False
    """Add the critic's discounted value of the last state to the reward of a truncated rollout."""
    kl_ctrl: Annotated[_KLControl, BY_REWARDS, NO_KL_IN_REWARD] = _KLControl()
    """Controller of the KL coefficient in the reward."""


class _OverlongBufferConfig(Section):
    """Soft length penalty of DAPO, which grows over the last tokens of the response length."""

    enable: bool = False
    """Add a negative reward to rollouts close to the response length (DAPO)."""
    len: Annotated[CountOrZero, if_off("reward_model.overlong_buffer.enable")] = 0
    """Tokens before the response length over which the penalty grows linearly."""
    penalty_factor: Annotated[NonNegative, if_off("reward_model.overlong_buffer.enable")] = 1.0
    """Penalty at the response length."""


class RewardModelConfig(Section):
    """Terms added to the reward of a rollout before the update."""

    overlong_buffer: Annotated[_OverlongBufferConfig, BY_REWARDS] = _OverlongBufferConfig()
    """Soft length penalty."""
    tool_error_penalty: Annotated[Share, BY_REWARDS] = 0.0
    """Share of a positive reward that each failed tool call costs before the update; 1 leaves
    nothing of it. Counts tools that run here, not those inside an agent of your own. What is
    reported as success is not changed."""


class OptimizerConfig(Section):
    """AdamW optimizer of the policy, with a linear warm-up."""

    lr: Positive = 1e-6
    """Learning rate."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay rates of AdamW's two moments."""
    warmup_steps: CountOrZero = 0
    """Optimizer steps over which the learning rate rises from zero."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule after the warm-up: `constant`, or `linear` or `cosine` decay to zero at the last
    step, if the number of steps is bounded."""
    clip_grad: Positive = 1.0
    """Maximum norm of the gradient; a larger one is scaled down to it."""


class PolicyLossConfig(Section):
    """Settings of the policy loss."""

    loss_mode: Extension = "vanilla"
    """Policy loss; `vanilla` is PPO's clipped ratio with a dual clip; `FILE.py:name` is a custom
    loss."""
    tau_pos: Positive = 1.0
    """Temperature of `sapo` where the advantage is positive."""
    tau_neg: Positive = 1.05
    """Temperature of `sapo` where the advantage is not positive."""
    clip_cov_ratio: PositiveShare = 2e-4
    """Fraction of the tokens that `clip_cov` detaches."""
    clip_cov_lb: float = 1.0
    """Minimum covariance of a token that `clip_cov` may detach."""
    clip_cov_ub: float = 5.0
    """Maximum covariance of a token that `clip_cov` may detach."""
    kl_cov_ratio: PositiveShare = 2e-4
    """Fraction of the tokens, by highest covariance, that `kl_cov` penalises."""
    ppo_kl_coef: NonNegative = 0.1
    """Coefficient of the KL penalty of `kl_cov`."""


class _ActorOffloadConfig(Section):
    """Offloading of the policy to CPU memory between its uses."""

    param_offload: bool = False
    """Offload the policy's parameters to CPU memory while they are unused."""
    optimizer_offload: bool = False
    """Offload the optimizer's state to CPU memory while it is unused."""


class _ReferenceOffloadConfig(Section):
    """Offloading of the reference model to CPU memory between its uses."""

    param_offload: bool = False
    """Offload the reference model's parameters to CPU memory while they are unused."""


MICRO_BATCH, TOKENS_ON_GPU = "actor.max_tokens_per_micro_batch", 8192
"""Key, and its default on a GPU, where the time of a step is that of starting kernels, so that
fewer micro-batches are faster."""


class ActorConfig(Section):
    """Update of the policy from one batch of rollouts."""

    ppo_mini_batch_size: Annotated[Count | None, BY_REWARDS] = None
    """Rollouts per optimizer step; groups stay together if it is large enough. Null is the whole
    batch."""
    ppo_epochs: Annotated[Count, BY_REWARDS] = 1
    """Passes over each batch."""
    ppo_micro_batch_size_per_gpu: Annotated[Count | None, BY_REWARDS] = None
    """Rows per forward pass; null fills micro-batches up to `max_tokens_per_micro_batch`."""
    max_tokens_per_micro_batch: Annotated[Count, ROWS_ARE_COUNTED] = 2048
    """Tokens per forward pass, if no number of rows is set; 8192 on a GPU. With 20 million
    parameters or more what rows begin with alike is counted once."""
    use_kl_loss: Annotated[bool, BY_REWARDS] = True
    """Add the KL to the reference policy to the loss."""
    kl_loss_coef: Annotated[NonNegative, BY_REWARDS, NO_KL_LOSS] = 0.001
    """Coefficient of the KL in the loss."""
    kl_loss_type: Annotated[KLKind, BY_REWARDS, NO_KL_LOSS] = "low_var_kl"
    """KL estimator in the loss; the suffix `+` uses the gradient of `k2`."""
    entropy_coeff: Annotated[NonNegative, BY_REWARDS] = 0.001
    """Coefficient of the entropy bonus."""
    clip_ratio: Annotated[NonNegative | None, BY_REWARDS, CLIPPED_BY_BOTH] = None
    """Clip range of the probability ratio, below and above 1; null uses the default of the policy
    loss (0.2 for `vanilla`)."""
    clip_ratio_low: Annotated[NonNegative | None, BY_REWARDS] = None
    """Clip range below 1; null uses `clip_ratio`, else the default of the policy loss."""
    clip_ratio_high: Annotated[NonNegative | None, BY_REWARDS] = None
    """Clip range above 1; null uses `clip_ratio`, else the default of the policy loss."""
    clip_ratio_c: Annotated[AboveOne, BY_REWARDS] = 3.0
    """Dual clip: upper bound of the loss of a token with negative advantage, as a multiple of that
    advantage."""
    loss_agg_mode: Annotated[Aggregation | None, BY_REWARDS] = None
    """Aggregation of token losses over the whole optimizer batch; null uses the default of the
    policy loss (`token-mean` for `vanilla`)."""
    loss_scale_factor: Annotated[Positive | None, BY_REWARDS, OTHER_AGGREGATION] = None
    """Divisor of `seq-mean-token-sum-norm`, in tokens; null uses the response length."""
    skip_zero_variance: Annotated[bool, BY_REWARDS] = True
    """Skip groups with equal rewards, if their gradient is exactly zero."""
    policy_loss: Annotated[PolicyLossConfig, BY_REWARDS] = PolicyLossConfig()
    """The policy loss."""
    ulysses_sequence_parallel_size: Count = 1
    """Ranks that compute one sequence together; only 1 is possible."""
    optim: OptimizerConfig = OptimizerConfig()
    """The policy's optimizer."""
    fsdp_config: Annotated[_ActorOffloadConfig, NO_GPU_MEMORY, BY_REWARDS] = _ActorOffloadConfig()
    """Offloading of the policy."""


class _CriticModelConfig(Section):
    """Model of the critic, without the value head."""

    path: str | None = None
    """Folder or hub name of the critic's model; null copies the policy's initial weights."""


class _CriticOptimizerConfig(OptimizerConfig):
    """AdamW optimizer of the critic, with a linear warm-up."""

    lr: Positive = 1e-5
    """Learning rate of the critic."""


class CriticConfig(Section):
    """Value function of estimators with a critic (`gae`)."""

    model: _CriticModelConfig = _CriticModelConfig()
    """The critic's model."""
    optim: _CriticOptimizerConfig = _CriticOptimizerConfig()
    """The critic's optimizer."""
    ppo_mini_batch_size: Count | None = None
    """Rollouts per optimizer step of the critic; null uses the actor's."""
    ppo_micro_batch_size_per_gpu: Count | None = None
    """Rows per forward pass of the critic; null uses the actor's."""
    cliprange_value: Positive = 0.5
    """Clip range of values: the largest change from the old value before the loss is clipped."""


class RolloutConfig(Section):
    """Sampling of rollouts."""

    name: EngineName = "native"
    """Inference engine: `vllm` (or async_verl, async_vllm) samples at `servers`, else at a server
    that `vllm_python` starts. Without both it becomes `native`, with a warning."""
    servers: Annotated[ServerUrls, NO_VLLM] = ()
    """Addresses of running vLLM servers, such as [http://127.0.0.1:8000]; without any, one is
    started and ended with the run."""
    vllm_python: Annotated[str | None, NO_VLLM, SERVERS_ARE_GIVEN] = None
    """Python interpreter of the environment that has vLLM; null is the trainer's own."""
    weight_transfer: Annotated[Literal["file", "lora"], NO_VLLM] = "file"
    """Transfer of weights to vLLM: `file` by a folder that both can read, with a plugin of the
    server; `lora` sends the adapters only."""
    server_patience: Annotated[Positive, NO_VLLM] = 600.0
    """Maximum wait in seconds while no vLLM server answers, before the run ends, to be resumed."""
    temperature: NonNegative = 1.0
    """Sampling temperature in training; log-probabilities use the same one."""
    top_p: PositiveShare = 1.0
    """Nucleus sampling; 1 disables it."""
    top_k: TopK = 0
    """Sampling from the k most probable tokens; 0 or -1 disables it."""
    response_length: Count | None = None
    """Maximum sampled tokens per rollout; null is `max_turns` times `max_tokens_per_turn`, or 512
    if that is null too."""
    slots: Annotated[Count, NOT_NATIVE] = 128
    """Maximum concurrent sequences of the native engine."""
    max_len: Count | None = None
    """Context length per rollout: prompt, responses and observations together; null is the model's
    own, bounded by the memory of the machine."""
    schedule: Annotated[Literal["deterministic", "free"], NOT_NATIVE] = "deterministic"
    """`deterministic` is reproducible bit for bit; `free` appends tool results as they arrive."""
    correction: Annotated[Correction, BY_REWARDS] = "none"
    """Importance-sampling correction of the difference between sampler and trainer; `token_tis`
    unless it is set where the run computes in bfloat16."""
    correction_cap: Annotated[Positive, BY_REWARDS, if_off("rollout.correction", "none")] = 2.0
    """Maximum importance weight."""
    tensor_model_parallel_size: Annotated[Count, ON_THIS_CPU, NO_VLLM, SERVERS_ARE_GIVEN] = 1
    """GPUs per model replica (tensor parallelism)."""
    gpu_memory_utilization: Annotated[PositiveShare, NO_VLLM, SERVERS_ARE_GIVEN] = 0.5
    """Fraction of GPU memory for vLLM."""
    log_prob_micro_batch_size_per_gpu: Annotated[Count | None, NOTHING_IS_SCORED] = None
    """Rows per forward pass that computes log-probabilities without gradients, of the reference or
    of a trainer that differs from the sampler; null uses `max_tokens_per_micro_batch`."""


class AsyncTrainingConfig(Section):
    """Asynchronous training: rollouts are sampled ahead of the steps that train on them."""

    staleness_threshold: Annotated[CountOrZero, BY_REWARDS] = 0
    """Maximum number of policy versions between a rollout and the step that trains on it. 0 plays
    the rollouts of a step, then trains on them. Above 0 rollouts are played ahead of their step and
    continue under new weights; groups that are further behind are dropped."""


class RefConfig(Section):
    """Reference policy, loaded only if a KL term is enabled."""

    path: str | None = None
    """Folder or hub name of the reference model; null is the initial policy, frozen."""
    fsdp_config: Annotated[_ReferenceOffloadConfig, NO_GPU_MEMORY] = _ReferenceOffloadConfig()
    """Offloading of the reference model."""
