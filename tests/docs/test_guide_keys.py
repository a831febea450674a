"""The page of the agent-RL guide's keys is what the program does; what works is used by a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from config.test_aliases import GUIDE as SPELLINGS
from guide_keys import PAGE, page, rows
from typer.testing import CliRunner
from weights.parrot import rows as parrot_rows
from weights.parrot import write_rows
from weights.tiny_job import REWARD

from tutelage.cli import build_app
from tutelage.config import RunConfig
from tutelage.config.fields import Section
from tutelage.testing import tiny_policy

ROWS = rows()
DECIDED = {"rollout.name", "trainer.nnodes", "trainer.n_gpus_per_node"}
"""Keys of which one value alone is possible, so that no run has to look at it."""
STARTED = {"rollout.gpu_memory_utilization"}
"""What the start of a vLLM server reads: `tests/weights/test_vllm_run.py` starts one."""

TINY = """
    agent.use_agent=True agent.template=qwen2.5 agent.agent_type=hf agent.tools=[calculator]
    agent.max_turns=2 agent.max_tokens_per_turn=8 agent.init_args.backend=async_verl
    algorithm.gamma=1.0 algorithm.lam=1.0 algorithm.kl_penalty=low_var_kl
    algorithm.kl_ctrl.kl_coef=0.001 algorithm.kl_ctrl.target_kl=0.1 algorithm.kl_ctrl.horizon=10000
    algorithm.use_kl_in_reward=True algorithm.kl_ctrl.type=adaptive
    trainer.project_name=AgentRL trainer.experiment_name=guide trainer.logger=['console']
    trainer.total_epochs=1 trainer.save_freq=1 trainer.test_freq=1 trainer.val_before_train=True
    trainer.critic_warmup=0 trainer.device=cpu trainer.nnodes=1 trainer.n_gpus_per_node=8
    trainer.threads=1 data.train_batch_size=2 data.val_batch_size=2
    actor_rollout_ref.actor.optim.lr=5e-7 actor_rollout_ref.actor.ppo_mini_batch_size=2
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 actor_rollout_ref.actor.use_kl_loss=True
    actor_rollout_ref.actor.kl_loss_coef=0.001 actor_rollout_ref.actor.kl_loss_type=mse
    actor_rollout_ref.actor.entropy_coeff=0.001 actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.model.enable_gradient_checkpointing=True
    actor_rollout_ref.rollout.response_length=16
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1
    actor_rollout_ref.rollout.gpu_memory_utilization=0.5
    actor_rollout_ref.rollout.tensor_model_parallel_size=2
    critic.ppo_mini_batch_size=2 critic.ppo_micro_batch_size_per_gpu=1
    rollout.max_len=1024 rollout.slots=8
"""
"""The guide's keys, in its spelling, at sizes that end within a second."""


def test_the_page_is_written_anew_when_the_program_changes() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "the page of the guide's keys is old: write it with `python tests/docs/guide_keys.py`"
    )


def test_the_page_has_every_key_of_the_guide() -> None:
    assert {key for row in ROWS for key in row.keys} == set(SPELLINGS.split())


@pytest.fixture(scope="module")
def source(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    write_rows(folder / "tasks.jsonl", parrot_rows(0, 2))
    (folder / "rewards.py").write_text(REWARD)
    tiny_policy("qwen2", 2, max_positions=1024).save(folder / "model")
    return folder


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> set[tuple[type, str]]:
    """(model, field) of each key that code outside the folders called `config` reads from now on;
    what a property of the configuration reads counts for who asks for the property."""
    found = set[tuple[type, str]]()
    properties = {name for name, found in vars(RunConfig).items() if isinstance(found, property)}

    def outside() -> bool:
        frame = sys._getframe(2)
        while frame.f_back is not None and frame.f_code.co_name in properties:
            frame = frame.f_back
        return Path(frame.f_code.co_filename).parent.name != "config"

    def read(self: Any, name: str) -> Any:
        if name in type.__getattribute__(type(self), "__pydantic_fields__") and outside():
            found.add((type(self), name))
        return object.__getattribute__(self, name)

    monkeypatch.setattr(Section, "__getattribute__", read, raising=False)
    return found


@pytest.mark.full
def test_what_works_is_used_by_a_run(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: set[tuple[type, str]]
) -> None:
    monkeypatch.chdir(tmp_path)
    model, tasks = source / "model", source / "tasks.jsonl"
    asked = [
        *TINY.split(),
        f"agent.model_name_or_path={model}",
        f"critic.model.path={model}",
        f"data.train_files={tasks}",
        f"data.val_files={tasks}",
        f"agent.reward_name={source / 'rewards.py'}:vary",
    ]
    _train(*asked, "algorithm.adv_estimator=gae", "--output", "first")
    again = ["trainer.resume_mode=resume_path", "trainer.resume_from_path=first"]
    _train(*asked, "algorithm.adv_estimator=gae", "trainer.total_training_steps=2", *again)
    working = {row.here for row in ROWS if row.verdicts[0].startswith("works")}
    assert len(working) > 45
    unread = {key for key in working - DECIDED - STARTED if _owner(key) not in reads}
    assert not unread


def _train(*words: str) -> None:
    done = CliRunner().invoke(build_app(), ["train", "rl", *words])
    assert done.exit_code == 0, done.output


def _owner(key: str) -> tuple[type, str]:
    """The model and the field of a key."""
    *parents, name = key.split(".")
    model: Any = RunConfig
    for parent in parents:
        model = model.model_fields[parent].annotation
    return model, name
