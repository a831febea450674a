"""What a training says of its rates: out of how many judged, and what a graded reward is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tutelage import RL, Trainer, rollout
from tutelage.cli.outcome import build_tables
from tutelage.resources import LLM
from tutelage.runs.result import TrainingResult
from tutelage.testing import tiny_policy

KEYS: dict[str, Any] = {
    "lr": 1e-2,
    "steps": 2,
    "agent.num_chains": 2,
    "data.train_batch_size": 2,
    "agent.max_turns": 1,
    "agent.max_tokens_per_turn": 4,
    "rollout.max_len": 128,
    "trainer.device": "cpu",
    "trainer.threads": 1,
    "trainer.test_freq": 1,
    "trainer.val_tasks": 8,
}


@rollout
async def asks(task: Any, llm: LLM) -> None:
    """One call, graded by the reward of the trainer."""
    await llm.chat(task["question"], max_tokens=4)


def train(folder: Path, reward: Any, worth: list[float], **keys: Any) -> TrainingResult:
    """Two steps; the test tasks carry what they are worth, the others are worth 1 and 0."""
    trainer = Trainer(
        algorithm=RL({**KEYS, **keys}),
        train_dataset=[{"question": f"a{i}", "worth": float(i % 2)} for i in range(4)],
        val_dataset=[{"question": f"v{i}", "worth": worth[i]} for i in range(len(worth))],
        test_dataset=[{"question": f"t{i}", "worth": worth[i]} for i in range(len(worth))],
        policy=tiny_policy(),
        output_dir=folder / "run",
        reward=reward,
    )
    return trainer.fit(asks)


def graded(worth: float) -> dict[str, float]:
    """Its named part says what is right."""
    return {"reward": worth, "right": float(worth >= 0.7)}


@pytest.mark.full
@pytest.mark.parametrize(("rule", "success"), [("right", 0.75), (">=1", 0.25)])
def test_the_user_says_what_a_success_of_a_graded_reward_is(
    tmp_path: Path, rule: str, success: float
) -> None:
    result = train(tmp_path, graded, [0.5, 0.75, 1.0, 0.75], **{"reward.success": rule})
    assert result.success_before == result.success_after == success
    heads = [table.columns[0] for table in build_tables(result.details)]
    assert heads == ["held-out mean reward, 4 tasks", "held-out success, 4 tasks"]
    told = json.loads((result.folder / "result.json").read_text())
    assert told["success_after_sampled"] == success
