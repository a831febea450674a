"""The agent-RL guide's three example commands, as a shell passes them."""

from collections.abc import Sequence

import pytest
from benchmarks.guide.commands import COMMANDS
from tests.in_one_item import in_one_item

from tutelage.config import Machine, Resolved
from tutelage.errors import ConfigError
from tutelage.weights.config import resolve

LAPTOP = Machine(cuda_devices=0, cores=2)


def run(words: Sequence[str], *more: str) -> Resolved:
    return resolve("rl", [*words, *more], machine=LAPTOP)


@in_one_item("name", COMMANDS)
def test_resolves_on_a_cpu(name: str) -> None:
    resolved = run(COMMANDS[name], "trainer.device=cpu")
    config = resolved.config
    assert config.model.path == "Qwen/Qwen2.5-3B-Instruct"
    assert config.trainer.logger == ("console", "wandb")
    assert config.actor.kl_loss_type == "mse"
    assert config.rollout.name == "native"
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


@in_one_item(("name", "steps"), [("math", 8), ("react", 1), ("code", 4)])
def test_optimizer_steps(name: str, steps: int) -> None:
    assert run(COMMANDS[name], "trainer.device=cpu").config.updates_per_batch == steps


@in_one_item("name", COMMANDS)
def test_gpus_that_are_not_there_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"n_gpus_per_node.*trainer\.device=cpu"):
        run(COMMANDS[name])


def test_short_form() -> None:
    resolved = resolve(
        "rl",
        ["adv_estimator=grpo", "actor.use_kl_loss=false"],
        machine=LAPTOP,
        flags={"model": "m", "tasks": "t.json", "tools": "calculator", "reward": "math"},
    )
    assert resolved.config.trainer.total_epochs == 1
    assert resolved.config.agent.tools == ("calculator",)
