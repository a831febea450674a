"""Every key of a run: its name, type, default and help text, each written once.

`RunConfig` is what the rest of the package reads; `resolve.py` makes it from a recipe, flags and
overrides, and says where each value came from. Sections are frozen and refuse unknown keys. The
attribute docstring under a key is its help text and its line in the reference page, so a key
without one is a defect that a test catches. The reinforcement-learning sections are in `rl.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from tutelage.config.fields import (
    Count,
    CountOrZero,
    EngineName,
    Every,
    Extension,
    Loggers,
    Names,
    NamesOrNone,
    Paths,
    Positive,
    PositiveShare,
    RunSettings,
    Section,
    Share,
    SuccessRule,
)
from tutelage.config.rl import (
    ActorConfig,
    AlgorithmConfig,
    CriticConfig,
    RefConfig,
    RewardModelConfig,
    RolloutConfig,
)
from tutelage.config.unused import (
    ALL_ARE_SHOWN,
    BUILT_IN_AGENT,
    BUILT_IN_REWARD,
    BY_REWARDS,
    ENDS_BY_STEPS,
    IN_COLD_START,
    NO_ADAPTERS,
    NO_CONTROL,
    NO_DEMONSTRATIONS,
    NO_JUDGE,
    NO_REFERENCE,
    NO_SEARCH,
    NO_TRACKER,
    NOT_PLAYED,
    ON_THIS_CPU,
    ONE_TURN,
    OWN_DEMONSTRATIONS,
    OWN_SHAPE,
    OWN_TASKS,
    OWN_TEMPLATE,
    STEPS_WIN,
    TAUGHT_ALREADY,
    off,
)


def _on_or_off(value: Any) -> Any:
    if value is None or value is False:
        return "none"
    return "auto" if value is True else value


Control = Annotated[
    str,
    Field(json_schema_extra={"examples": ["none", "auto", "an estimator"]}),
    BeforeValidator(_on_or_off),
]
Template = Literal["qwen2.5", "qwen2.5-vl", "qwen3", "llama-3.2"]


class LoraConfig(Section):
    """Low-rank adapters, trained instead of the model's own weights."""

    rank: CountOrZero = 0
    """Rank of the adapters; 0 trains the model's own weights."""
    alpha: Annotated[Positive, NO_ADAPTERS] = 16.0
    """The adapters' product is multiplied by this over the rank."""
    target_modules: Annotated[Names, NO_ADAPTERS] = ()
    """Linear layers that get one, such as q_proj,v_proj; empty takes all of the blocks."""


class _ModelConfig(Section):
    """The policy's weights."""

    path: str | None = None
    """Folder or hub name of a Hugging Face model; null makes the embedded tiny policy."""
    size: Annotated[Literal["xs", "s"], OWN_SHAPE] = "xs"
    """Size of the embedded policy: `xs` has 0.6 million parameters, `s` 1.7 million."""
    layout: Annotated[Literal["qwen2", "qwen3", "llama"], OWN_SHAPE] = "qwen3"
    """Architecture in which the embedded policy is built and saved."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of the forward pass; `auto` takes bfloat16 on a GPU, float32 on a CPU."""
    enable_gradient_checkpointing: bool = False
    """Recompute activations in the backward pass, which saves memory and costs time."""
    lora: LoraConfig = LoraConfig()
    """Adapters."""


class _DataConfig(Section):
    """The tasks."""

    train_files: Paths = ()
    """Training tasks: JSON, JSONL, Parquet or CSV; empty takes the recipe's own."""
    val_files: Paths = ()
    """Validation tasks; empty takes the recipe's own held-out ones."""
    test_files: Paths = ()
    """Test tasks, seen only after training."""
    train_tasks: Annotated[Count | None, IN_COLD_START, ALL_ARE_SHOWN] = None
    """Maximum number of training tasks, the first ones; null takes all. The embedded job's
    demonstrations are other tasks, and are not counted."""
    train_batch_size: Annotated[Count, IN_COLD_START] = 16
    """Tasks in one training batch; each becomes `agent.num_chains` rollouts."""
    val_batch_size: Annotated[Count | None, NOT_PLAYED] = None
    """Concurrent tasks of a validation or test; null leaves it to the engine."""
    sampling: Annotated[Literal["epochs", "difficulty"], BY_REWARDS] = "epochs"
    """Task sampling: each task once per epoch, or tasks solved about half the time most often."""
    sampling_floor: Annotated[PositiveShare, BY_REWARDS, off("data.sampling", "epochs")] = 0.1
    """Sampling weight of a task that is always or never solved; the largest weight is 1."""
    max_length: Annotated[Count | None, NO_DEMONSTRATIONS] = None
    """Maximum tokens of a demonstration, in `train sft`; null takes what the model is made for."""
    level: Annotated[Literal["default", "hard"], OWN_TASKS] = "default"
    """Difficulty of the embedded tasks."""


class AgentConfig(Section):
    """The agent that acts on a task."""

    use_agent: Annotated[bool, NOT_PLAYED] = True
    """Run as an agent; false is one turn without tools."""
    agent_type: Annotated[Extension, NOT_PLAYED] = "hf"
    """`hf` calls tools by its chat template, `react` in text, `code` by Python; your own is
    `FILE.py:Class`."""
    tools: Annotated[NamesOrNone, NOT_PLAYED, ONE_TURN] = None
    """Tools of the agent by name; null takes the recipe's own, `[]` is none."""
    reward_name: Annotated[str | None, NOT_PLAYED] = None
    """Reward function by name; null takes the recipe's own."""
    template: Annotated[Template | None, OWN_TEMPLATE] = None
    """Chat template by name; null takes the tokenizer's own."""
    backend: Annotated[EngineName, NOT_PLAYED] = "native"
    """Engine that samples, the same as `rollout.name`; async_verl and async_vllm mean vllm."""
    max_turns: Annotated[Count, NOT_PLAYED, ONE_TURN] = 4
    """Maximum number of model calls of one rollout."""
    num_chains: Annotated[Count, BY_REWARDS] = 8
    """Rollouts of each task; 1 by default for estimators without groups."""
    max_tokens_per_turn: Annotated[Count, NOT_PLAYED] = 64
    """Maximum tokens sampled in one turn."""
    timeout: Annotated[Positive, NOT_PLAYED, BUILT_IN_AGENT] = 60.0
    """Time limit of your own agent for a rollout, in seconds, not counting those in which its calls
    wait for a model or are sampled. The built-in agents are bounded by turns and tokens alone."""
    failure_reward: Annotated[float, NOT_PLAYED] = 0.0
    """Reward of a rollout that failed for the agent's own reasons: it raised, ran out of time, or
    filled its context. Where rewards may be lower, set it to the lowest, or crashing pays."""
    reward_timeout: Annotated[Positive, NOT_PLAYED, BUILT_IN_REWARD] = 60.0
    """Time limit of your own reward for one rollout, in seconds; one that takes longer is ended,
    and the rollout is left out. The built-in rewards bound their own time."""
    system_prompt: Annotated[str | None, NOT_PLAYED] = None
    """System prompt; null takes the agent type's own, an empty one leaves it out."""
    group_deadline: Annotated[Positive | None, BY_REWARDS, BUILT_IN_AGENT] = None
    """Like `agent.timeout`, in training: a rollout that takes longer is left out, and its task's
    group closes with those that ended; null never."""


class _ToolsConfig(Section):
    """Settings of tools."""

    search_index: Annotated[str | None, NO_SEARCH] = None
    """Corpus that `search` reads, made by `tutelage index`; null takes `TUTELAGE_SEARCH_INDEX`."""
    allow_unsandboxed: bool = False
    """Run model-written code even where no sandbox works."""


class _RewardConfig(Section):
    """Definition of success."""

    success: SuccessRule | None = None
    """What counts as success: a part of the reward (`right`), a bound (`>=0.5`), or both
    (`right>=0.5`). Null takes the part `exact`, else a reward of 1 where all are 0 or 1."""


class _JudgeConfig(Section):
    """The model behind the reward `llm_judge`."""

    base_url: str | None = None
    """Address of an OpenAI-compatible server, up to and with its `/v1`."""
    model: str | None = None
    """Model that judges."""


class SftConfig(Section):
    """The cold start: supervised steps on demonstrations before the first rollout is rewarded."""

    optimizer: Literal["muon", "adamw"] = "muon"
    """Optimizer of supervised training: `muon` for a policy from nothing, `adamw` for others."""

    lr: Annotated[Positive, OWN_DEMONSTRATIONS] = 3e-3
    """Learning rate of the cold start."""
    batch_size: Annotated[Count, OWN_DEMONSTRATIONS] = 32
    """Demonstrations in one step."""
    max_steps: Annotated[CountOrZero, OWN_DEMONSTRATIONS] = 500
    """Maximum number of steps on clean demonstrations before the cool-down; 0 leaves the cold start
    out."""
    skill_target: Annotated[PositiveShare, OWN_DEMONSTRATIONS] = 0.9
    """Greedy success, measured on held-out tasks, at which the cool-down begins."""
    eval_every: Annotated[Count, OWN_DEMONSTRATIONS] = 50
    """Steps between two measurements of that success."""
    cooldown_steps: Annotated[CountOrZero, OWN_DEMONSTRATIONS] = 100
    """Further clean steps over which the learning rate falls to a twentieth."""
    mixed_steps: Annotated[CountOrZero, OWN_DEMONSTRATIONS] = 300
    """Maximum number of steps on demonstrations of mixed quality that follow the clean ones."""
    guess_share: Annotated[Share, OWN_DEMONSTRATIONS] = 0.7
    """Share of the mixed demonstrations that guess an answer instead of calling their tools."""
    mixed_success: Annotated[Share, OWN_DEMONSTRATIONS] = 0.3
    """Sampled success, measured on held-out tasks, at which the mixed part ends."""
    hard_share: Annotated[Share, OWN_DEMONSTRATIONS] = 0.06
    """Share of the demonstrations at level `hard` that are of that level; the others are easier."""


class _TrainerConfig(Section):
    """The run: length, output, logging and checkpoints."""

    project_name: Annotated[str | None, NO_TRACKER] = None
    """Project under which an experiment tracker files the run."""
    experiment_name: str | None = None
    """Name of the run; null makes one."""
    logger: Loggers = ("jsonl", "console")
    """Where metrics go; the console and `metrics.jsonl` always get them."""
    store_url: str | None = None
    """Database for rollouts, as postgresql://HOST/DATABASE; null makes a file in the run folder."""
    record_tokens: Annotated[CountOrZero, BY_REWARDS] = 10_000_000
    """Trained tokens of a run for which the store keeps the trainer's log-probability, entropy and
    importance weight, from the first one on; rows have their advantage anyway."""
    otlp_endpoint: str | None = None
    """Collector for traces, by OTLP/HTTP; null takes OTEL_EXPORTER_OTLP_ENDPOINT, if it is set."""
    otlp_content: bool = False
    """Send messages, tool arguments and results with the traces."""
    total_training_steps: Annotated[CountOrZero | None, IN_COLD_START] = None
    """Training steps, one batch each; overrides `total_epochs`."""
    total_epochs: Annotated[Count | None, IN_COLD_START, STEPS_WIN] = None
    """Passes over the training tasks."""
    minutes: Positive | None = None
    """Minutes after which training ends, at the end of a step; the cold start counts."""
    nnodes: Annotated[Count, ON_THIS_CPU] = 1
    """Number of machines."""
    n_gpus_per_node: Annotated[Count | None, ON_THIS_CPU] = None
    """GPUs of each machine, 1 at most; null takes one where there is any."""
    save_freq: Every = -1
    """Steps between two checkpoints; -1 saves only the last step, which is always saved."""
    max_actor_ckpt_to_keep: Count | None = 2
    """Checkpoints of training to keep, each a Hugging Face folder; the one that did best in
    validation stays as well. null keeps all."""
    test_freq: Every = -1
    """Steps between two validations; -1 for none."""
    val_before_train: bool = True
    """Validate before the first step."""
    critic_warmup: Annotated[CountOrZero, BY_REWARDS] = 0
    """First steps that train only the critic."""
    resume_mode: Literal["auto", "disable", "resume_path"] = "auto"
    """`auto` goes on from the latest complete checkpoint, if there is one."""
    resume_from_path: str | None = None
    """Checkpoint to go on from, with `resume_mode=resume_path`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; `auto` takes a GPU if there is one."""
    threads: Count | None = None
    """CPU threads of the tensor library; null takes OMP_NUM_THREADS, else the cores of the
    machine."""
    val_tasks: Annotated[Count | None, NOT_PLAYED] = None
    """Maximum number of tasks of one validation; null takes all of `data.val_files`, and 200 where
    they are drawn or held out."""
    test_tasks: Annotated[Count | None, NOT_PLAYED] = None
    """Maximum number of test tasks; null is as `trainer.val_tasks`."""
    stop_at_success: Annotated[PositiveShare | None, ENDS_BY_STEPS] = None
    """Sampled success on validation tasks at which training ends; null goes on to the end. A graded
    reward has a success where `reward.success` says what it is."""
    control: Annotated[Control, NO_CONTROL] = "none"
    """Estimator of a second training that follows, from the same start and with as many steps and
    rollouts, to compare with. `auto` (or true) is `raft` where every reward was 0 or 1, and
    `best_of_n` where rewards are graded; `none` (or false) leaves it out."""


class RunConfig(RunSettings):
    """One training of weights, completely."""

    recipe: str = "math"
    """`math` is the embedded job, `rl` your model and tasks, `sft` your demonstrations."""
    model: _ModelConfig = _ModelConfig()
    """The policy's weights."""
    data: _DataConfig = _DataConfig()
    """The tasks."""
    agent: AgentConfig = AgentConfig()
    """The agent."""
    tools: Annotated[_ToolsConfig, NOT_PLAYED] = _ToolsConfig()
    """What tools need."""
    reward: Annotated[_RewardConfig, NOT_PLAYED] = _RewardConfig()
    """Definition of success."""
    reward_model: RewardModelConfig = RewardModelConfig()
    """What is added to rewards in training."""
    judge: Annotated[_JudgeConfig, NOT_PLAYED, NO_JUDGE] = _JudgeConfig()
    """The judging model."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """The learning rule."""
    actor: Annotated[ActorConfig, IN_COLD_START] = ActorConfig()
    """The policy's update."""
    critic: Annotated[CriticConfig, BY_REWARDS] = CriticConfig()
    """The value function."""
    rollout: Annotated[RolloutConfig, NOT_PLAYED] = RolloutConfig()
    """Sampling."""
    ref: Annotated[RefConfig, BY_REWARDS, NO_REFERENCE] = RefConfig()
    """The reference policy."""
    sft: Annotated[SftConfig, TAUGHT_ALREADY] = SftConfig()
    """The cold start."""
    trainer: _TrainerConfig = _TrainerConfig()
    """The run."""

    @property
    def rollouts_per_batch(self) -> int:
        """Rollouts of one training batch: tasks times rollouts per task."""
        return self.data.train_batch_size * self.agent.num_chains

    @property
    def rollouts_per_update(self) -> int:
        """Rollouts in one optimizer step of the policy."""
        return self.actor.ppo_mini_batch_size or self.rollouts_per_batch

    @property
    def updates_per_batch(self) -> int:
        """Optimizer steps made from one batch; all but the first are off-policy."""
        return self.rollouts_per_batch // self.rollouts_per_update * self.actor.ppo_epochs

    @property
    def response_tokens(self) -> int:
        """Tokens that one rollout may sample over all its turns."""
        turns = self.agent.max_turns if self.agent.use_agent else 1
        return self.rollout.response_length or turns * self.agent.max_tokens_per_turn

    @property
    def needs_reference(self) -> bool:
        """Whether a KL from the reference policy is on, so that its model is loaded."""
        kl_on = self.algorithm.use_kl_in_reward or self.actor.use_kl_loss
        return self.algorithm.name == "rl" and kl_on
