"""The agent-RL guide's three example commands, as a shell passes them."""

import shlex

import pytest

from tutelage.config import Built, Machine, Resolved, resolve
from tutelage.errors import ConfigError

COMMON = """
    agent.model_name_or_path=Qwen/Qwen2.5-3B-Instruct agent.use_agent=True
    actor_rollout_ref.model.path=Qwen/Qwen2.5-3B-Instruct
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001
    actor_rollout_ref.actor.kl_loss_type=mse actor_rollout_ref.actor.entropy_coeff=0.001
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.gpu_memory_utilization=0.5
    critic.model.path=Qwen/Qwen2.5-3B-Instruct algorithm.kl_ctrl.kl_coef=0.001
    trainer.logger=['console','wandb'] trainer.project_name=AgentRL trainer.nnodes=1
    trainer.save_freq=50 trainer.test_freq=10
"""
MATH = """
    algorithm.adv_estimator=grpo data.train_files="./data/rlhf/math/gsm8k_train.json"
    data.val_files="./data/rlhf/math/gsm8k_test.json" data.train_batch_size=64 agent.agent_type=hf
    agent.tools="[calculator]" agent.template=qwen2.5 agent.max_turns=3
    agent.reward_name="math_reward_string_equal" agent.num_chains=8
    actor_rollout_ref.actor.optim.lr=5e-7 actor_rollout_ref.actor.ppo_mini_batch_size=64
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8
    actor_rollout_ref.rollout.response_length=256
    actor_rollout_ref.rollout.tensor_model_parallel_size=1
    trainer.experiment_name=test_gsm8k trainer.n_gpus_per_node=1 trainer.total_training_steps=100
"""
REACT = """
    algorithm.adv_estimator=reinforce_plus_plus
    data.train_files="./data/rlhf/qa/train_random_8000.json"
    data.val_files="./data/rlhf/qa/dev_random_500.json" data.train_batch_size=128
    data.val_batch_size=512 agent.agent_type=react agent.tools="[google_search,answer]"
    agent.max_turns=4 agent.reward_name="qa_f1_reward" agent.num_chains=1
    actor_rollout_ref.actor.optim.lr=5e-7 actor_rollout_ref.actor.ppo_mini_batch_size=128
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2
    actor_rollout_ref.rollout.response_length=512
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 critic.ppo_mini_batch_size=32
    trainer.experiment_name=react_search_agent trainer.n_gpus_per_node=8
    trainer.total_training_steps=200 trainer.val_before_train=True
"""
CODE = """
    algorithm.adv_estimator=grpo data.train_files="./data/rlhf/code/train.json"
    data.val_files="./data/rlhf/code/val.json" data.train_batch_size=64 agent.agent_type=code
    agent.tools="[python_executor]" agent.max_turns=5 agent.reward_name="code_reward"
    agent.num_chains=4 actor_rollout_ref.actor.optim.lr=4e-7
    actor_rollout_ref.actor.ppo_mini_batch_size=64
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4
    actor_rollout_ref.rollout.response_length=512
    actor_rollout_ref.rollout.tensor_model_parallel_size=1
    trainer.experiment_name=code_agent trainer.n_gpus_per_node=4 trainer.total_training_steps=300
"""
COMMANDS = {"math": MATH, "react": REACT, "code": CODE}
LAPTOP = Machine(cuda_devices=0, cores=2)


def run(command: str, *more: str, built: Built | None = None) -> Resolved:
    arguments = [*shlex.split(command + COMMON), *more]
    return resolve("rl", arguments, machine=LAPTOP, built=built or Built.everything())


@pytest.mark.parametrize("name", COMMANDS)
def test_resolves_on_a_cpu(name: str) -> None:
    resolved = run(COMMANDS[name], "trainer.device=cpu")
    config = resolved.config
    assert config.model.path == "Qwen/Qwen2.5-3B-Instruct"
    assert config.trainer.logger == ("console", "wandb")
    assert config.actor.kl_loss_type == "mse"
    assert config.rollout.name == config.agent.backend == "native"
    assert sum("vLLM" in warning for warning in resolved.warnings) == 1
    for key in (
        "trainer.n_gpus_per_node",
        "rollout.tensor_model_parallel_size",
        "rollout.gpu_memory_utilization",
        "critic.model.path",
        "algorithm.kl_ctrl.kl_coef",
    ):
        assert key in resolved.unused
    assert Resolved.from_json(resolved.to_json()) == resolved


@pytest.mark.parametrize(("name", "steps"), [("math", 8), ("react", 1), ("code", 4)])
def test_optimizer_steps(name: str, steps: int) -> None:
    assert run(COMMANDS[name], "trainer.device=cpu").config.updates_per_batch == steps


@pytest.mark.parametrize("name", COMMANDS)
def test_gpus_that_are_not_there_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"n_gpus_per_node.*trainer\.device=cpu"):
        run(COMMANDS[name])


@pytest.mark.parametrize("name", COMMANDS)
def test_all_they_ask_for_is_built(name: str) -> None:
    assert run(COMMANDS[name], "trainer.device=cpu", built=Built()).config.recipe == "rl"


def test_what_needs_a_browser_is_refused() -> None:
    command = " ".join(part for part in MATH.split() if not part.startswith("agent.agent_type"))
    with pytest.raises(ConfigError, match=r"agent\.agent_type.*not built yet"):
        run(command, "agent.agent_type=gui", "trainer.device=cpu", built=Built())


def test_short_form() -> None:
    resolved = resolve(
        "rl",
        ["adv_estimator=grpo", "actor.use_kl_loss=false"],
        machine=LAPTOP,
        flags={"model": "m", "tasks": "t.json", "tools": "calculator", "reward": "math"},
    )
    assert resolved.config.trainer.total_epochs == 1
    assert resolved.config.agent.tools == ("calculator",)
