"""Every key of a run: its name, type, default and help text.

The rest of the package reads `RunConfig`; `resolve.py` creates it from a recipe, flags and
overrides, with the origin of each value. Sections are frozen and reject unknown keys. The attribute
docstring below a key is its help text and its row in the reference page. `rl.py` has the sections
of reinforcement learning.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from tutelage.config.fields import (
    Arguments,
    Count,
    CountOrZero,
    Every,
    Extension,
    Loggers,
    Measurements,
    Names,
    NamesOrNone,
    Paths,
    Positive,
    PositiveShare,
    RunSettings,
    Section,
    Share,
    SuccessRule,
    Url,
)
from tutelage.config.ray import RayConfig
from tutelage.config.rl import (
    ActorConfig,
    AlgorithmConfig,
    AsyncTrainingConfig,
    CriticConfig,
    RefConfig,
    RewardModelConfig,
    RolloutConfig,
)
from tutelage.config.unused import (
    ALL_ARE_SHOWN,
    ALWAYS_CALLS,
    BUILT_IN_AGENT,
    BUILT_IN_REWARD,
    BY_REWARDS,
    ENDS_BY_STEPS,
    IN_COLD_START,
    LEARNS_FROM_TRAIN_FILES,
    NO_ADAPTERS,
    NO_CONTROL,
    NO_DEMONSTRATIONS,
    NO_ENVIRONMENT,
    NO_JUDGE,
    NO_REFERENCE,
    NO_SEARCH,
    NO_TRACKER,
    NODES_ON_THIS_CPU,
    NOT_PLAYED,
    ON_THIS_CPU,
    ONE_TURN,
    OWN_DEMONSTRATIONS,
    OWN_SHAPE,
    OWN_TASKS,
    OWN_TEMPLATE,
    SHOWN_IN_PASSES,
    STEPS_WIN,
    TAUGHT_ALREADY,
    THOUGHT_IS_SHORTER,
)


def _parse_control(value: Any) -> Any:
    if value is None or value is False:
        return "none"
    return "auto" if value is True else value


Control = Annotated[
    str,
    Field(json_schema_extra={"examples": ["none", "auto", "an estimator"]}),
    BeforeValidator(_parse_control),
]
Template = Literal["qwen2.5", "qwen2.5-vl", "qwen3", "smollm2", "llama-3.2"]


RESPONSE_TOKENS = 512
"""Sampled tokens per rollout if neither the rollout nor its turns have a limit; verl's default."""


class LoraConfig(Section):
    """Low-rank adapters, trained instead of the model's own weights."""

    rank: CountOrZero = 0
    """Rank of the adapters; 0 trains the model's own weights."""
    alpha: Annotated[Positive, NO_ADAPTERS] = 16.0
    """Scaling of the adapters: their product is multiplied by alpha / rank."""
    target_modules: Annotated[Names, NO_ADAPTERS] = ()
    """Linear layers with an adapter, such as q_proj,v_proj; empty is every linear layer of the
    blocks."""


class _ModelConfig(Section):
    """Weights of the policy."""

    path: str | None = None
    """Folder or hub name of a Hugging Face model, a GGUF file, `shipped` (a small policy in this
    package, trained on demonstrations), or `smollm2` (downloaded on first use); null is the
    embedded policy, a small one with new weights."""
    size: Annotated[Literal["xs", "s"], OWN_SHAPE] = "xs"
    """Size of the embedded policy: `xs` has 0.6 million parameters, `s` 1.7 million."""
    layout: Annotated[Literal["qwen2", "qwen3", "llama"], OWN_SHAPE] = "qwen3"
    """Architecture of the embedded policy."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of the forward pass; `auto` is bfloat16 on a GPU, float32 on a CPU."""
    enable_gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    lora: LoraConfig = LoraConfig()
    """Adapters."""


class _DataConfig(Section):
    """Tasks and demonstrations."""

    train_files: Paths = ()
    """Training tasks: JSON, JSONL, Parquet or CSV; empty uses the recipe's own."""
    val_files: Paths = ()
    """Validation tasks; empty uses some of the training files, or the recipe's own tasks."""
    test_files: Paths = ()
    """Held-out test tasks, for evaluation only."""
    demonstrations: Annotated[Paths, LEARNS_FROM_TRAIN_FILES] = ()
    """Demonstrations to learn before reinforcement learning: files of chat rows, as `train sft`
    reads them, or runs of `tutelage eval`, whose successful rollouts become such rows."""
    train_tasks: Annotated[Count | None, IN_COLD_START, ALL_ARE_SHOWN] = None
    """Maximum number of training tasks, from the first; null uses all. The demonstrations of the
    embedded job are separate tasks and do not count."""
    train_batch_size: Annotated[Count, IN_COLD_START] = 16
    """Tasks per training batch; each gets `agent.num_chains` rollouts."""
    val_batch_size: Annotated[Count | None, NOT_PLAYED] = None
    """Concurrent tasks of a validation or test; null leaves it to the engine."""
    sampling: Annotated[Literal["epochs", "sequential"], BY_REWARDS] = "epochs"
    """Task sampling: `epochs` uses each task once per epoch, shuffled; `sequential` the same in the
    given order."""
    max_length: Annotated[Count | None, NO_DEMONSTRATIONS] = None
    """Maximum tokens per demonstration; null uses the model's context length."""
    level: Annotated[Literal["default", "hard", "full"], OWN_TASKS] = "default"
    """Difficulty of the recipe's own tasks: `hard` (`math`) has longer expressions and more items,
    `full` (`word-problems`) all seven kinds."""


class AgentConfig(Section):
    """The agent that acts on a task."""

    use_agent: Annotated[bool, NOT_PLAYED] = True
    """Run a multi-turn agent with tools; false is a single turn without tools."""
    agent_type: Annotated[Extension, NOT_PLAYED] = "hf"
    """`hf` calls tools through the chat template, `react` as text, `code` as Python;
    `FILE.py:Class` is a custom agent."""
    tools: Annotated[NamesOrNone, NOT_PLAYED, ONE_TURN] = None
    """Tools of the agent by name or as FILE.py:function; null uses the recipe's own, `[]` is no
    tools."""
    tool_choice: Annotated[Literal["auto", "required", "none"], NOT_PLAYED, ONE_TURN] = "auto"
    """`auto` leaves tool calls to the model, `none` offers no tools, and `required` constrains each
    turn to tool calls of the chat template until the first one, after which it is `auto`."""
    reward_name: Annotated[str | None, NOT_PLAYED] = None
    """Reward by name or as FILE.py:function; null uses the recipe's own."""
    template: Annotated[Template | None, OWN_TEMPLATE] = None
    """Chat template by name; null uses the tokenizer's own."""
    thinking: Annotated[Literal["keep", "drop"] | None, NOT_PLAYED] = None
    """Reasoning of earlier turns in the history: `keep` keeps it even if the template drops it, so
    that turns merge into one training row; `drop` drops it; null does what the template does."""
    max_thinking_tokens: Annotated[Count | None, NOT_PLAYED, THOUGHT_IS_SHORTER] = None
    """Maximum sampled tokens of a turn before the end of its reasoning, which is then closed by the
    template's own marker (not trained); null sets no limit."""
    max_turns: Annotated[Count, NOT_PLAYED, ONE_TURN] = 4
    """Maximum model calls per rollout."""
    num_chains: Annotated[Count, BY_REWARDS] = 8
    """Rollouts per task (group size); 1 for estimators without groups, unless it is set."""
    max_tokens_per_turn: Annotated[Count | None, NOT_PLAYED] = None
    """Maximum sampled tokens per turn; null is what `rollout.response_length` leaves."""
    timeout: Annotated[Positive, NOT_PLAYED, BUILT_IN_AGENT] = 60.0
    """Time limit of a custom agent per rollout, in seconds; time spent in model calls does not
    count. Built-in agents are limited by turns and tokens only."""
    failure_reward: Annotated[float, NOT_PLAYED] = 0.0
    """Reward of a rollout in which the agent failed: an exception, a timeout or a full context. If
    rewards can be lower, set it to the lowest; otherwise the policy learns to fail."""
    allow_no_calls: Annotated[bool, BY_REWARDS, ALWAYS_CALLS] = False
    """Train on rollouts in which a custom agent made no model call with the reward that they get;
    false makes them failures (`no_calls`)."""
    reward_timeout: Annotated[Positive, NOT_PLAYED, BUILT_IN_REWARD] = 60.0
    """Time limit of a custom reward per rollout, in seconds; a rollout that exceeds it is dropped.
    Built-in rewards limit their own time."""
    system_prompt: Annotated[str | None, NOT_PLAYED] = None
    """System prompt; null uses the agent type's own, an empty one omits it."""
    group_deadline: Annotated[Positive | None, BY_REWARDS, BUILT_IN_AGENT] = None
    """Time limit of a training rollout, in seconds, measured as `agent.timeout`. Slower rollouts
    are dropped and their group is trained without them; null is no limit."""
    placement: Annotated[Literal["local", "ray"], NOT_PLAYED] = "local"
    """Where rollouts are played: `local` in this process, `ray` by workers that Ray places."""


class _EnvironmentConfig(Section):
    """Environment that responds to the agent over several turns."""

    name: str | None = None
    """Environment that the agent acts in: a built-in one, SCHEME:ARGUMENT or FILE.py:NAME."""
    kwargs: Annotated[Arguments, NO_ENVIRONMENT] = "{}"
    """Arguments of the environment, as a JSON object."""
    pool_size: Annotated[Count, NO_ENVIRONMENT] = 64
    """Maximum number of environments that are open at the same time."""
    step_timeout: Annotated[Positive, NO_ENVIRONMENT] = 30.0
    """Time limit of one step of the environment, in seconds; a rollout that exceeds it is
    dropped."""


class _ToolsConfig(Section):
    """Settings of tools."""

    search_index: Annotated[str | None, NO_SEARCH] = None
    """Corpus of the tool `search`, built by `tutelage index`; null uses `TUTELAGE_SEARCH_INDEX`."""
    allow_unsandboxed: bool = False
    """Run model-written code even if no sandbox works."""


class _RewardConfig(Section):
    """Definition of success."""

    success: SuccessRule | None = None
    """What counts as success: a part of the reward that is 1 (`right`), a least reward (`>=0.5`),
    or a least part (`right>=0.5`). Null uses the part `exact`, else a reward of 1 if all rewards
    are 0 or 1."""


class _JudgeConfig(Section):
    """Model that the reward `llm_judge` uses."""

    base_url: str | None = None
    """Base URL of an OpenAI-compatible server, including `/v1`."""
    model: str | None = None
    """Name of the judge model."""


class _SftConfig(Section):
    """Cold start: supervised steps on demonstrations before reinforcement learning."""

    optimizer: Literal["muon", "adamw"] = "muon"
    """Optimizer of supervised training: `muon` for a newly initialised policy, `adamw` for
    others."""

    lr: Annotated[Positive, OWN_DEMONSTRATIONS] = 3e-3
    """Learning rate of the cold start."""
    batch_size: Annotated[Count, OWN_DEMONSTRATIONS] = 32
    """Demonstrations per step."""
    max_steps: Annotated[Every, OWN_DEMONSTRATIONS] = 500
    """Maximum steps on clean demonstrations before the cool-down; 0 skips the cold start, -1 is two
    passes over `data.demonstrations`."""
    skill_target: Annotated[PositiveShare, OWN_DEMONSTRATIONS, SHOWN_IN_PASSES] = 0.9
    """Held-out greedy success at which the cool-down starts."""
    eval_every: Annotated[Count, OWN_DEMONSTRATIONS, SHOWN_IN_PASSES] = 50
    """Steps between evaluations of that success."""
    cooldown_steps: Annotated[Every, OWN_DEMONSTRATIONS] = 100
    """Steps on clean demonstrations over which the learning rate decays to a twentieth; -1 is one
    pass over `data.demonstrations`."""
    mixed_steps: Annotated[CountOrZero, OWN_DEMONSTRATIONS, SHOWN_IN_PASSES] = 300
    """Maximum steps on demonstrations of mixed quality, after the clean ones."""
    guess_share: Annotated[Share, OWN_DEMONSTRATIONS, SHOWN_IN_PASSES] = 0.7
    """Fraction of the mixed demonstrations that guess an answer without calling a tool."""
    mixed_success: Annotated[Share, OWN_DEMONSTRATIONS, SHOWN_IN_PASSES] = 0.3
    """Held-out sampled success at which the steps on mixed demonstrations end."""
    hard_share: Annotated[Share, OWN_DEMONSTRATIONS, SHOWN_IN_PASSES] = 0.06
    """Fraction of hard demonstrations at level `hard`; the others are easier."""


class _TrainerConfig(Section):
    """Settings of the run: length, output, logging and checkpoints."""

    project_name: Annotated[str | None, NO_TRACKER] = None
    """Project name for wandb and mlflow."""
    experiment_name: str | None = None
    """Name of the run; null generates one."""
    logger: Loggers = ("jsonl", "console")
    """Loggers of metrics; the console and `metrics.jsonl` are always written."""
    store_url: str | None = None
    """Database for rollouts, as postgresql://HOST/DATABASE; null is a file in the run folder."""
    otlp_endpoint: Url | None = None
    """OTLP/HTTP endpoint for traces; null uses OTEL_EXPORTER_OTLP_ENDPOINT, if it is set."""
    otlp_content: bool = False
    """Include messages, tool arguments and results in exported traces."""
    total_training_steps: Annotated[CountOrZero | None, IN_COLD_START] = None
    """Training steps, one batch each; overrides `total_epochs`."""
    total_epochs: Annotated[Count | None, IN_COLD_START, STEPS_WIN] = None
    """Epochs: passes over the training tasks."""
    minutes: Positive | None = None
    """Time limit of training in minutes, checked after each step; the cold start counts."""
    nnodes: Annotated[Count, NODES_ON_THIS_CPU] = 1
    """Number of machines; above 1 with `ray_kwargs.ray_init` Ray places a rank on each."""
    n_gpus_per_node: Annotated[Count | None, ON_THIS_CPU] = None
    """GPUs per machine, at most 1; null uses one if there is one."""
    save_freq: Every = -1
    """Steps between checkpoints; the last step is always saved, -1 saves no other."""
    max_actor_ckpt_to_keep: Count | None = 2
    """Number of training checkpoints to keep, each a Hugging Face folder, in addition to the best
    in validation; null keeps all."""
    test_freq: Every = -1
    """Steps between validations; -1 disables them."""
    val_before_train: bool = True
    """Validate before the first step."""
    skip_measurements: Annotated[Measurements, NOT_PLAYED] = ()
    """Measurements of the test tasks to leave out: before/greedy, after/greedy, after/no_tools."""
    critic_warmup: Annotated[CountOrZero, BY_REWARDS] = 0
    """First steps, which train only the critic."""
    resume_mode: Literal["auto", "disable", "resume_path"] = "auto"
    """`auto` resumes from the latest complete checkpoint, if there is one; `disable` refuses a
    folder that has a run."""
    resume_from_path: str | None = None
    """Checkpoint to resume from, with `resume_mode=resume_path`."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Training device; `auto` uses a GPU by NVIDIA or AMD if there is one; `mps` is refused."""
    threads: Count | None = None
    """CPU threads; null uses OMP_NUM_THREADS, else the number of cores, where bits do not depend on
    it."""
    val_tasks: Annotated[Count | None, NOT_PLAYED] = None
    """Maximum tasks per validation; null uses all of `data.val_files`, or 200 if they are generated
    or held out from training."""
    test_tasks: Annotated[Count | None, NOT_PLAYED] = None
    """Maximum test tasks; null as for `trainer.val_tasks`."""
    stop_at_success: Annotated[PositiveShare | None, ENDS_BY_STEPS] = None
    """Sampled validation success at which training stops; null disables early stopping. A graded
    reward needs `reward.success` for it."""
    control: Annotated[Control, NO_CONTROL] = "none"
    """Estimator of a control run: a second training from the same start, with as many steps and
    rollouts, for comparison. `auto` (or true) is `raft` if every reward was 0 or 1, else
    `best_of_n`; `none` (or false) disables it."""


class RunConfig(RunSettings):
    """Configuration of a run that trains weights."""

    recipe: str = "math"
    """`math` is the embedded job, `rl` your model and tasks, `sft` your demonstrations."""
    model: _ModelConfig = _ModelConfig()
    """The policy's weights."""
    data: _DataConfig = _DataConfig()
    """The tasks."""
    agent: AgentConfig = AgentConfig()
    """The agent."""
    environment: Annotated[_EnvironmentConfig, NOT_PLAYED] = _EnvironmentConfig()
    """The environment."""
    tools: Annotated[_ToolsConfig, NOT_PLAYED] = _ToolsConfig()
    """Settings of tools."""
    reward: Annotated[_RewardConfig, NOT_PLAYED] = _RewardConfig()
    """The success criterion."""
    reward_model: RewardModelConfig = RewardModelConfig()
    """Additions to the training reward."""
    judge: Annotated[_JudgeConfig, NOT_PLAYED, NO_JUDGE] = _JudgeConfig()
    """The judge model."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """The training algorithm."""
    actor: Annotated[ActorConfig, IN_COLD_START] = ActorConfig()
    """The policy's update."""
    critic: Annotated[CriticConfig, BY_REWARDS] = CriticConfig()
    """The value function."""
    rollout: Annotated[RolloutConfig, NOT_PLAYED] = RolloutConfig()
    """Sampling."""
    async_training: AsyncTrainingConfig = AsyncTrainingConfig()
    """Asynchronous training."""
    ref: Annotated[RefConfig, BY_REWARDS, NO_REFERENCE] = RefConfig()
    """The reference policy."""
    sft: Annotated[_SftConfig, TAUGHT_ALREADY] = _SftConfig()
    """The cold start."""
    trainer: _TrainerConfig = _TrainerConfig()
    """The run."""
    ray_kwargs: Annotated[RayConfig, NOT_PLAYED] = RayConfig()
    """Ray."""

    @property
    def epochs(self) -> int | None:
        """Number of training epochs; None if training is limited by steps or time instead."""
        return self.trainer.total_epochs if self.trainer.total_training_steps is None else None

    @property
    def is_local(self) -> bool:
        """True if rollouts and training run on one node without Ray workers."""
        return self.agent.placement == "local" and self.trainer.nnodes == 1

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
        """Optimizer steps per batch; all except the first are off-policy. A smaller batch of a
        limited epoch may have fewer steps."""
        return -(-self.rollouts_per_batch // self.rollouts_per_update) * self.actor.ppo_epochs

    @property
    def response_tokens(self) -> int:
        """Maximum sampled tokens of a rollout over all its turns."""
        turns = self.agent.max_turns if self.agent.use_agent else 1
        per_turn = self.agent.max_tokens_per_turn
        return self.rollout.response_length or (turns * per_turn if per_turn else RESPONSE_TOKENS)

    @property
    def turn_tokens(self) -> int:
        """Maximum sampled tokens of a turn."""
        return self.agent.max_tokens_per_turn or self.response_tokens

    @property
    def needs_calls(self) -> bool:
        """True if turns are constrained to tool calls until the first tool call."""
        return self.agent.use_agent and self.agent.tool_choice == "required"

    @property
    def needs_tools(self) -> bool:
        """True if tools are configured or required, or the tasks of the recipe need tools."""
        return bool(self.agent.tools) or not self.data.train_files or self.needs_calls

    @property
    def needs_reference(self) -> bool:
        """True if a KL term is enabled, so that the reference model is loaded."""
        kl_on = self.algorithm.use_kl_in_reward or self.actor.use_kl_loss
        return self.algorithm.name == "rl" and kl_on
