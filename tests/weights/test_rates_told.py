"""What a whole run tells of its rates, seen from outside: its result, `result.json` and `show`.

Only public names are used, so that the tests run on any version.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tutelage import RL, Trainer, rollout
from tutelage.cli import build_app
from tutelage.resources import LLM
from tutelage.testing import tiny_policy

KEYS: dict[str, Any] = {
    "lr": 1e-2,
    "steps": 1,
    "agent.num_chains": 2,
    "agent.timeout": 1.5,
    "data.train_batch_size": 2,
    "agent.max_turns": 1,
    "agent.max_tokens_per_turn": 4,
    "rollout.max_len": 128,
    "trainer.device": "cpu",
    "trainer.threads": 1,
    "trainer.test_freq": -1,
    "trainer.val_tasks": 4,
}


@rollout
async def asks(task: Any, llm: LLM) -> None:
    """One call, graded by the reward of the trainer; some tasks it never ends."""
    await llm.chat(task["question"], max_tokens=4)
    if task.get("hangs"):
        await asyncio.sleep(60)


def run(folder: Path, reward: Any, test: list[dict[str, Any]]) -> tuple[Any, dict[str, Any], str]:
    """The result of one step, its `result.json`, and what `tutelage show` prints of the run."""
    rows = [{"question": f"a{i}", "worth": float(i % 2)} for i in range(4)]
    trainer = Trainer(
        algorithm=RL(KEYS),
        train_dataset=rows,
        val_dataset=[{"question": "v", "worth": 1.0}],
        test_dataset=[{"question": f"t{i}", **row} for i, row in enumerate(test)],
        policy=tiny_policy(),
        output_dir=folder / "run",
        reward=reward,
    )
    result = trainer.fit(asks)
    shown = CliRunner().invoke(build_app(), ["show", str(folder / "run")], env={"COLUMNS": "200"})
    stored = json.loads((folder / "run" / "result.json").read_text())
    return result, stored, " ".join(shown.output.split())


def down(worth: float) -> float:
    """A grader whose service is gone for some tasks."""
    if worth < 0:
        raise ConnectionError("the grader's service is gone")
    return worth


@pytest.mark.full
def test_no_rate_is_told_of_the_few_that_a_grader_judged(tmp_path: Path) -> None:
    """One of four was judged, and was right: that was told as 100 %."""
    result, stored, shown = run(tmp_path, down, [{"worth": w} for w in (1.0, -1.0, -1.0, -1.0)])
    assert (result.success_after, result.reward_after) == (None, None)
    assert (stored["success_after_sampled"], stored["reward_after_sampled"]) == (None, None)
    assert "1 of 4 judged" in shown
    assert "100.0 %" not in shown


def worth_of(worth: float) -> float:
    """As good as the task says."""
    return worth


@pytest.mark.full
def test_timeouts_are_named_where_the_rate_stands(tmp_path: Path) -> None:
    """They count as failures; neither the table nor the result named them."""
    rows = [{"worth": 1.0, "hangs": i < 2} for i in range(4)]
    result, stored, shown = run(tmp_path, worth_of, rows)
    assert result.success_after == stored["success_after_sampled"] == 0.5
    assert "2 timeout" in shown
    told = {key: value for key, value in stored.items() if key.endswith("_after_sampled")}
    assert "timeout" in json.dumps(told)


@pytest.mark.full
def test_a_graded_reward_is_told_by_its_mean(tmp_path: Path) -> None:
    """One of four earned full marks: that was told as a success rate of 25 %."""
    rows = [{"worth": worth} for worth in (0.5, 0.75, 1.0, 0.75)]
    result, stored, shown = run(tmp_path, worth_of, rows)
    assert result.reward_after == 0.75
    assert (result.success_after, stored["success_after_sampled"]) == (None, None)
    assert "0.75" in shown
    assert "25.0 %" not in shown
    low, high = stored["reward_after_sampled_interval"]
    assert low < 0.75 < high
