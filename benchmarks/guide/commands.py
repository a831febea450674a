"""The agent-RL guide's three example commands, argument for argument, as a shell passes them."""

from __future__ import annotations

import shlex

MODEL = "Qwen/Qwen2.5-3B-Instruct"
"""What the guide trains; swapped for a local folder."""

_COMMON = """
    agent.model_name_or_path=Qwen/Qwen2.5-3B-Instruct agent.use_agent=True
    actor_rollout_ref.model.path=Qwen/Qwen2.5-3B-Instruct
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001
    actor_rollout_ref.actor.kl_loss_type=mse actor_rollout_ref.actor.entropy_coeff=0.001
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.gpu_memory_utilization=0.5
    critic.model.path=Qwen/Qwen2.5-3B-Instruct algorithm.kl_ctrl.kl_coef=0.001
    trainer.logger=['console','wandb'] trainer.project_name=AgentRL trainer.nnodes=1
    trainer.save_freq=50 trainer.test_freq=10
"""
_MATH = """
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
_REACT = """
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
_CODE = """
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
COMMANDS = {
    name: tuple(shlex.split(text + _COMMON))
    for name, text in {"math": _MATH, "react": _REACT, "code": _CODE}.items()
}
"""By name: the words after `tutelage train rl`."""


def swapped(name: str, model: str, train: str, val: str) -> list[str]:
    """A command with another model and other data; nothing else is changed."""
    instead = {"data.train_files": train, "data.val_files": val}
    words: list[str] = []
    for word in COMMANDS[name]:
        key, _, value = word.partition("=")
        words.append(f"{key}={instead.get(key, model if value == MODEL else value)}")
    return words
