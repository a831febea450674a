"""`agent.tool_choice`: what must be called is called, and is trained as it was sampled."""

from __future__ import annotations

from pathlib import Path

import pytest
from system.outcome import stored

from tutelage.errors import ConfigError
from tutelage.runs.folder import RunFolder, create
from tutelage.testing import tiny_policy
from tutelage.types import Constraint, Rollout
from tutelage.weights import jobs
from tutelage.weights.config import resolve
from tutelage.weights.inputs import prepare_rl

from .parrot import rows, write_rows
from .samples import LAPTOP
from .tiny_job import REWARD, Notes

TOOL = '''
from typing import Literal

from tutelage import tool


@tool(inline=True)
def price(item: Literal["tea", "coffee"]) -> int:
    """The price of an item.

    Args:
        item: What is bought.
    """
    return 3 if item == "tea" else 4
'''


def keys_for(model: Path, folder: Path) -> list[str]:
    """Keys of a run on a model."""
    tasks = write_rows(folder / "tasks.jsonl", rows(0, 2))
    (folder / "rewards.py").write_text(REWARD)
    (folder / "shop.py").write_text(TOOL)
    return [
        f"model.path={model}", f"data.train_files={tasks}", f"data.val_files={tasks}",
        f"agent.reward_name={folder / 'rewards.py'}:vary", f"agent.tools=[{folder}/shop.py:price]",
        "trainer.device=cpu", "trainer.threads=1", "lr=1e-3",
    ]  # fmt: skip


@pytest.fixture
def source(one_thread: None, tmp_path: Path) -> list[str]:
    """Keys of a run on a tiny model."""
    tiny_policy("qwen2", 2, max_positions=1024).save(tmp_path / "model")
    return keys_for(tmp_path / "model", tmp_path)


def check_required(keys: list[str], folder: RunFolder, tokens: int) -> list[Rollout]:
    """Train two steps with required calls, and look at what was sampled and trained."""
    keys = [
        *keys, "agent.tool_choice=required", "adv_estimator=grpo", "agent.num_chains=2",
        "batch_size=2", "agent.max_turns=2", f"agent.max_tokens_per_turn={tokens}", "steps=2",
        "actor.use_kl_loss=false", "trainer.val_before_train=false",
    ]  # fmt: skip
    jobs.train(resolve("rl", keys, machine=LAPTOP), folder, Notes())
    played = [r for r in stored(folder.path) if r.mode == "train"]
    assert len(played) == 8
    for rollout in played:
        first, *later = rollout.last.calls
        assert first.constraint == Constraint("required")
        assert {c.name for c in first.reply.tool_calls} == {"price"}
        assert min(first.sampled.allowed) == 1
        assert all(c.constraint is None and not c.sampled.allowed for c in later)
        assert all(r.error is None for r in rollout.last.tool_results)
    steps = [line for line in folder.read_metrics() if line["phase"] == "rl"]
    assert all(line["max_dlogp"] < 1e-4 and line["grad_norm"] > 0 for line in steps)
    return played


@pytest.mark.full
def test_required_calls_are_made_and_trained_by_the_odds_among_what_was_allowed(
    source: list[str], tmp_path: Path
) -> None:
    """The trainer computes the log-probabilities that were sampled, also after an update."""
    played = check_required(source, create(tmp_path / "run"), tokens=100)
    assert any(len(r.last.calls) == 2 for r in played), "the turn after the call is free"


def test_none_offers_no_tools(source: list[str]) -> None:
    setting = prepare_rl(resolve("rl", [*source, "agent.tool_choice=none"], machine=LAPTOP).config)
    assert not setting.tools
    assert setting.make_agent(1.0).tool_specs() == []


@pytest.mark.parametrize("key", ["agent.agent_type=react", "agent.tools=[]"])
def test_calls_cannot_be_required_where_the_template_has_none(source: list[str], key: str) -> None:
    keys = [k for k in source if not k.startswith(key.partition("=")[0])]
    config = resolve("rl", [*keys, key, "agent.tool_choice=required"], machine=LAPTOP).config
    with pytest.raises(ConfigError, match="passes no tools to the chat"):
        prepare_rl(config)
