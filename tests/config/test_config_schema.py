"""The schema: every key is documented, frozen, and says what it takes."""

import pytest
from pydantic import ValidationError
from tests.in_one_item import in_one_item

from tutelage.config import RunConfig
from tutelage.config.keys import defaults, flatten, get, json_schema, leaf_fields, nest, value_text
from tutelage.config.schema import AgentConfig


@in_one_item("key", list(leaf_fields()))
def test_every_key_has_help_a_type_in_words_and_a_default_that_fits(key: str) -> None:
    text = leaf_fields()[key].description
    assert text, f"{key} has no attribute docstring"
    assert text.rstrip().endswith(".")
    plain = dict(flatten(RunConfig().model_dump(mode="json")))[key]
    assert get(RunConfig.model_validate(nest({key: plain})), key) == defaults()[key]
    assert "None" not in value_text(json_schema(key))


@in_one_item(
    ("key", "default"),
    [
        ("algorithm.adv_estimator", "gae"),
        ("algorithm.gamma", 1.0),
        ("algorithm.lam", 1.0),
        ("algorithm.use_kl_in_reward", False),
        ("algorithm.kl_penalty", "kl"),
        ("algorithm.kl_ctrl.kl_coef", 0.001),
        ("algorithm.kl_ctrl.target_kl", 0.1),
        ("algorithm.kl_ctrl.horizon", 10000),
        ("actor.use_kl_loss", True),
        ("actor.kl_loss_coef", 0.001),
        ("actor.kl_loss_type", "low_var_kl"),
        ("actor.entropy_coeff", 0.001),
        ("model.enable_gradient_checkpointing", False),
        ("rollout.gpu_memory_utilization", 0.5),
        ("trainer.nnodes", 1),
        ("trainer.save_freq", -1),
        ("trainer.test_freq", -1),
        ("trainer.val_before_train", True),
        ("trainer.critic_warmup", 0),
        ("agent.use_agent", True),
        ("agent.max_turns", 4),
    ],
)
def test_defaults_of_the_guide(key: str, default: object) -> None:
    assert defaults()[key] == default


def test_unknown_keys_and_assignment_are_refused() -> None:
    with pytest.raises(ValidationError):
        RunConfig.model_validate({"actor": {"optim": {"learning": 1}}})
    name = "max_turns"
    with pytest.raises(ValidationError):
        setattr(AgentConfig(), name, 3)


@in_one_item(
    ("key", "given", "value"),
    [
        ("agent.tools", "calculator, answer", ("calculator", "answer")),
        ("agent.tools", None, None),
        ("agent.tools", ["calculator"], ("calculator",)),
        ("data.train_files", "a,b.json", ("a,b.json",)),
        ("data.train_files", ["a", "b"], ("a", "b")),
        ("actor.optim.lr", "3e-5", 3e-5),
        ("actor.optim.betas", [0.9, 0.95], (0.9, 0.95)),
        ("trainer.experiment_name", 2026, "2026"),
        ("rollout.top_k", -1, 0),
        ("rollout.name", "async_verl", "vllm"),
        ("rollout.name", "async_vllm", "vllm"),
        ("agent.use_agent", "False", False),
        ("trainer.logger", "console,jsonl", ("console", "jsonl")),
    ],
)
def test_what_a_shell_or_file_can_say(key: str, given: object, value: object) -> None:
    assert get(RunConfig.model_validate(nest({key: given})), key) == value


@in_one_item(
    ("key", "given"),
    [
        ("trainer.total_training_steps", 1.5),
        ("actor.optim.lr", 0),
        ("actor.optim.lr", float("nan")),
        ("actor.kl_loss_coef", float("inf")),
        ("actor.clip_ratio_c", 1.0),
        ("actor.optim.betas", [0.9, 1.0]),
        ("rollout.top_k", -2),
        ("agent.tools", 3),
        ("data.train_files", {"a": 1}),
        ("seed", -1),
    ],
)
def test_what_is_refused(key: str, given: object) -> None:
    with pytest.raises(ValidationError):
        RunConfig.model_validate(nest({key: given}))


def test_derived_counts() -> None:
    config = RunConfig.model_validate(
        {
            "data": {"train_batch_size": 6},
            "agent": {"num_chains": 4, "max_turns": 3, "max_tokens_per_turn": 10},
            "actor": {"ppo_mini_batch_size": 8, "ppo_epochs": 2},
            "algorithm": {"adv_estimator": "grpo"},
        }
    )
    assert config.rollouts_per_batch == 24
    assert config.rollouts_per_update == 8
    assert config.updates_per_batch == 6
    assert config.response_tokens == 30
    assert config.needs_reference
    one_turn = RunConfig.model_validate({"agent": {"use_agent": False}})
    assert one_turn.response_tokens == one_turn.turn_tokens == 512
    assert config.turn_tokens == 10
    assert RunConfig().rollouts_per_update == RunConfig().rollouts_per_batch


def test_a_turn_has_what_the_rollout_has_unless_it_is_limited() -> None:
    """As the guide's commands are, which say how long a rollout is and nothing of its turns."""
    rollout = {"response_length": 256}
    given = RunConfig.model_validate({"rollout": rollout, "agent": {"max_turns": 3}})
    assert (given.turn_tokens, given.response_tokens) == (256, 256)
    both = RunConfig.model_validate({"rollout": rollout, "agent": {"max_tokens_per_turn": 100}})
    assert (both.turn_tokens, both.response_tokens) == (100, 256)
