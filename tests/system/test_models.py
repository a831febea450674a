"""Models in the layouts that people have, through the whole command: train, load, eval, ask.

The folders are written by `transformers` itself. The tasks, the reward and the tool are a user's
own files, about thirty lines in all.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from weights.parrot import make_parrot, rows, write_rows

from tutelage.runs.folder import RunFolder
from tutelage.tools.loading import load_attribute
from tutelage.tools.registry import resolve_tools

from .command import Command
from .outcome import stored

MINE = '''
def rewarded(prediction, answer, trajectory):
    """One for the right answer, and a part that counts the tool's use."""
    used = sum(result.error is None for result in trajectory.tool_results)
    return {"reward": float(prediction.strip() == str(answer)), "used": used}


def calculate(expression: str) -> str:
    """Multiply two numbers.

    Args:
        expression: such as 6 * 7
    """
    left, right = expression.split("*")
    return str(int(left) * int(right))
'''


def own_files(folder: Path) -> list[str]:
    """Tasks, reward and tool of a user; the flags that name them."""
    write_rows(folder / "a.jsonl", rows(0, 12))
    write_rows(folder / "b.jsonl", rows(12, 6))
    (folder / "mine.py").write_text(MINE)
    return ["--train", "a.jsonl", "--val", "b.jsonl", "--tools", "mine.py:calculate"]


SMALL = ("agent.num_chains=4", "data.train_batch_size=4", "agent.max_tokens_per_turn=48")


def loads(policy: Path) -> Any:
    """The saved policy as anybody else would load it, on a prompt of its own template."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(policy)
    model = AutoModelForCausalLM.from_pretrained(policy)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "3: what is 6 * 7?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    with torch.no_grad():
        assert model(**prompt).logits.isfinite().all()
    return model


@pytest.mark.full  # tests/weights/test_word_problems_job.py trains one in `make test`
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
def test_a_model_of_the_users_own(
    one_thread: None, family: str, tutelage: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tutelage.cwd)
    flags = own_files(tutelage.cwd)
    tool = resolve_tools(["mine.py:calculate"])["calculate"]
    assert callable(load_attribute("mine.py:rewarded", "reward"))
    before = make_parrot(tutelage.cwd / "model", family, tool=tool, steps=100)
    args = ["--model", "model", *flags, "--reward", "mine.py:rewarded", "--steps", "2"]
    job = tutelage("train", "math", *args, "--output", "out", *SMALL).check()
    assert "tools   calculate" in job.err
    run = RunFolder(tutelage.cwd / "out")

    calls = [t for r in stored(run.path) for t in r.last.tool_results]
    assert {t.text for t in calls if t.error is None} >= {"42"}, (
        "it calls the tool as it was taught"
    )
    for rollout in stored(run.path):
        for call in rollout.last.calls[1:]:
            assert rollout.last.calls[0].sampled.token_ids, call
    lines = [line for line in run.read_metrics() if line["phase"] == "rl"]
    assert len(lines) == 2
    assert all(line["max_dlogp"] < 1e-4 for line in lines)
    assert all("reward/used" in line for line in lines)
    result = run.read_result()
    assert result is not None
    assert result["status"] == "finished"
    assert result["cold_start_steps"] == 0

    trained, untrained = loads(run.policy), loads(before)
    assert trained.config.model_type == untrained.config.model_type == family
    moved = [
        not torch.equal(a, b)
        for a, b in zip(trained.parameters(), untrained.parameters(), strict=True)
    ]
    assert any(moved)

    found = tutelage("eval", "out", "--test", "b.jsonl", "--json").check().out
    assert json.loads(found)["tasks"] == 6
    assert json.loads(found)["rollouts"] == 6
    sampled = tutelage("eval", "out", "--test", "b.jsonl", "--samples", "4", "--json").check().out
    assert json.loads(sampled)["success"] > 0
    given = ["--tools", "mine.py:calculate", "--reward", "mine.py:rewarded"]
    assert "success" in tutelage("eval", "model", "--test", "b.jsonl", *given).check().out
    asked = tutelage("ask", "out", "3: what is 6 * 7?", "--temperature", "1").check().out
    assert "turn 1" in asked
    assert "answer" in asked


@pytest.mark.full
def test_the_guides_command(one_thread: None, tutelage: Command) -> None:
    """The agent-RL guide's math example, with its model, its data and its GPUs exchanged."""
    own_files(tutelage.cwd)
    make_parrot(tutelage.cwd / "model", "qwen2", steps=100)
    keys = [
        "algorithm.adv_estimator=grpo",
        "data.train_files=a.jsonl",
        "data.val_files=b.jsonl",
        "data.train_batch_size=4",
        "agent.agent_type=hf",
        "agent.tools=[calculator]",
        "agent.reward_name=math_reward_string_equal",
        "agent.max_turns=4",
        "agent.num_chains=4",
        "agent.backend=async_verl",
        "actor_rollout_ref.model.path=model",
        "actor_rollout_ref.actor.optim.lr=5e-3",
        "actor_rollout_ref.actor.ppo_mini_batch_size=16",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
        "actor_rollout_ref.actor.use_kl_loss=False",
        "actor_rollout_ref.actor.kl_loss_type=mse",
        "actor_rollout_ref.actor.entropy_coeff=0.001",
        "actor_rollout_ref.actor.fsdp_config.param_offload=True",
        "actor_rollout_ref.rollout.response_length=128",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.5",
        "actor_rollout_ref.rollout.name=vllm",
        "critic.model.path=model",
        "algorithm.kl_ctrl.kl_coef=0.001",
        "trainer.logger=['console']",
        "trainer.project_name=agents",
        "trainer.experiment_name=guide",
        "trainer.n_gpus_per_node=8",
        "trainer.nnodes=1",
        "trainer.save_freq=2",
        "trainer.test_freq=1",
        "trainer.total_training_steps=3",
        "trainer.val_before_train=False",
        "trainer.device=cpu",
    ]
    job = tutelage("train", "rl", *keys).check()
    assert "the native engine is used" in job.err
    for unused in ("trainer.n_gpus_per_node", "critic.model.path", "kl_loss_type"):
        assert unused in job.err, job.err
    (folder,) = (tutelage.cwd / "runs").iterdir()
    assert folder.name == "guide"
    run = RunFolder(folder)
    lines = [line for line in run.read_metrics() if line["phase"] == "rl"]
    assert len(lines) == 3
    assert all(line["max_dlogp"] < 1e-4 for line in lines)
    assert all(line["entropy"] > 0 and line["grad_norm"] > 0 for line in lines)
    assert all("val/success_greedy" in line for line in lines)
    loads(run.policy)
    listed = tutelage("runs").check().out
    assert folder.name in listed
    assert "finished" in tutelage("show", folder.name).check().out


@pytest.mark.full
def test_supervised_training_of_the_embedded_job(tutelage: Command) -> None:
    """`--algorithm sft`: demonstrations alone, and no step of reinforcement learning."""
    keys = ["sft.max_steps=4", "sft.eval_every=2", "sft.cooldown_steps=2", "sft.batch_size=4"]
    keys += ["trainer.val_tasks=4", "agent.max_tokens_per_turn=16"]
    tutelage("train", "math", "--algorithm", "sft", "--output", "out", *keys).check()
    run = RunFolder(tutelage.cwd / "out")
    assert {line["phase"] for line in run.read_metrics()} == {"cold_start", "after"}
    result = run.read_result()
    assert result is not None
    assert (result["status"], result["rl_steps"], result["algorithm"]) == ("finished", 0, "sft")
    loads(run.policy)
    tutelage("ask", "out", "What is 17 * 23 + 5?").check()
