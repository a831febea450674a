"""Spellings: all lead to one key, and an unknown one to the nearest."""

import re

import pytest
from tests.in_one_item import in_one_item

from tutelage.config.aliases import (
    NAMES,
    PREFIXES,
    all_spellings,
    canonical_key,
    canonical_section,
    find_nearest,
    list_aliases,
)
from tutelage.config.issues import ConfigIssue
from tutelage.config.keys import leaf_fields

GUIDE = """
agent.use_agent agent.init_args.model_name_or_path agent.init_args.template
agent.init_args.agent_type agent.init_args.tools agent.init_args.reward_name
agent.init_args.backend agent.max_turns agent.num_chains agent.max_tokens_per_turn
agent.agent_type agent.tools agent.template agent.model_name_or_path agent.reward_name
algorithm.adv_estimator algorithm.gamma algorithm.lam algorithm.use_kl_in_reward
algorithm.kl_penalty algorithm.kl_ctrl.type algorithm.kl_ctrl.kl_coef
algorithm.kl_ctrl.target_kl algorithm.kl_ctrl.horizon
trainer.project_name trainer.experiment_name trainer.logger trainer.total_training_steps
trainer.total_epochs trainer.nnodes trainer.n_gpus_per_node trainer.save_freq trainer.test_freq
trainer.val_before_train trainer.critic_warmup trainer.resume_mode trainer.resume_from_path
data.train_files data.val_files data.train_batch_size data.val_batch_size
actor_rollout_ref.actor.optim.lr actor_rollout_ref.actor.ppo_mini_batch_size
actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu actor_rollout_ref.actor.use_kl_loss
actor_rollout_ref.actor.kl_loss_coef actor_rollout_ref.actor.kl_loss_type
actor_rollout_ref.actor.entropy_coeff actor_rollout_ref.actor.fsdp_config.param_offload
actor_rollout_ref.actor.fsdp_config.optimizer_offload actor_rollout_ref.model.path
actor_rollout_ref.model.enable_gradient_checkpointing actor_rollout_ref.rollout.name
actor_rollout_ref.rollout.response_length actor_rollout_ref.rollout.tensor_model_parallel_size
actor_rollout_ref.rollout.gpu_memory_utilization
actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu
actor_rollout_ref.ref.fsdp_config.param_offload
critic.model.path critic.ppo_mini_batch_size critic.ppo_micro_batch_size_per_gpu
"""


@in_one_item("spelling", GUIDE.split())
def test_every_key_of_the_guide_is_known(spelling: str) -> None:
    key = canonical_key(spelling, None)
    assert key in leaf_fields()
    # The canonical name keeps the guide's last word, but for the model's path and the engine.
    if not spelling.endswith(("model_name_or_path", "backend")):
        assert key.rsplit(".", 1)[-1] == spelling.rsplit(".", 1)[-1]


def test_table_points_at_keys_and_sections() -> None:
    assert set(NAMES.values()) <= set(leaf_fields())
    assert not set(NAMES) & set(leaf_fields())
    for long, short in PREFIXES.items():
        assert canonical_section(long.removesuffix(".")) == short.removesuffix(".")


def test_spellings_and_canonical_are_inverse() -> None:
    for key in leaf_fields():
        assert canonical_key(key, None) == key
        for spelling in list_aliases(key):
            assert canonical_key(spelling, None) == key
    assert len(set(all_spellings())) == len(all_spellings())


@in_one_item(
    ("typo", "meant"),
    [
        ("lerning_rate", "learning_rate"),
        ("algorithm.adv_estimater", "algorithm.adv_estimator"),
        ("actor_rollout_ref.actor.optm.lr", "actor_rollout_ref.actor.optim.lr"),
        ("total_training_steps", "trainer.total_training_steps"),
        ("clip_grad", "actor.optim.clip_grad"),
        ("actor.top_p", "rollout.top_p"),
        ("trainer.lr", "lr"),
        ("agent.tool", "agent.tools"),
        ("minuets", "minutes"),
    ],
)
def test_nearest(typo: str, meant: str) -> None:
    assert find_nearest(typo) == meant
    with pytest.raises(ConfigIssue, match=f"Did you mean {re.escape(repr(meant))}"):
        canonical_key(typo, 1)


def test_section_is_told_apart_from_key() -> None:
    with pytest.raises(ConfigIssue, match=r"section.*actor\.ppo_mini_batch_size="):
        canonical_key("actor", 3)
    with pytest.raises(ConfigIssue, match="section"):
        canonical_key("actor_rollout_ref.actor.optim", 3)
    assert canonical_key("model", "x") == "model.path"
