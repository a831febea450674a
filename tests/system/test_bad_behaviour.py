"""Rewards, tools and prompts that misbehave while a run is running."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from weights.parrot import rows, write_rows

from tutelage.types import FailureCause, Rollout

from .command import Command
from .conftest import REWARDS
from .outcome import assert_equal, outcome, stored
from .reference import Reference

Arguments = Callable[..., list[str]]


@pytest.mark.full
def test_a_broken_reward_stops_the_run_and_a_mended_one_finishes_it(
    references: dict[str, Reference], with_tools: Arguments, tutelage: Command
) -> None:
    """It is named with its task; nothing is trained on the rest; all that was done is kept."""
    broken = REWARDS.replace("vary(prediction, trajectory)", "vary(prediction, trajectory, task)")
    broken = broken.replace(
        "    if next(calls)", '    if task.id == "q5":\n        return None\n    if next(calls)'
    )
    (tutelage.cwd / "rewards.py").write_text(broken)
    job = tutelage(*with_tools(reward="rewards.py:vary")).check(2)
    assert "returned None; return a bool, an int, a float" in job.err
    assert "'q5'" in job.err
    assert "tutelage resume run --allow-changes" in job.err
    run = tutelage.cwd / "run"
    assert json.loads((run / "result.json").read_text())["status"] == "failed"
    kept = stored(run)
    lost = [r for r in kept if r.last.failure is not None]
    assert {r.task.id for r in lost} == {"q5"}
    assert all(r.last.failure.cause is FailureCause.REWARD_ERROR for r in lost if r.last.failure)
    assert all(r.reward is None and r.last.calls for r in lost)
    steps = (run / "metrics.jsonl").read_text().splitlines() if len(kept) > 8 + 16 else []
    assert all(json.loads(line).get("rollout/failed", 0) == 0 for line in steps)

    (tutelage.cwd / "rewards.py").write_text(REWARDS)
    tutelage("resume", "run", "--allow-changes").check()
    assert_equal(outcome(run), references["with_tools"].outcome)


TOOL = '''
import time

from tutelage.tools import tool


@tool(timeout=0.5)
def calculator(expression: str) -> str:
    """Work something out.

    Args:
        expression: what to work out
    """
    {body}
'''

BROKEN_TOOLS = {
    "raises": ('raise ValueError("no such day")', "raised", "ValueError: no such day"),
    "hangs": ("time.sleep(1000)", "timeout", "calculator took longer than 0.5 seconds"),
}


@pytest.mark.parametrize("kind", BROKEN_TOOLS)
def test_a_broken_tool_is_observed_and_the_run_goes_on(
    with_tools: Arguments, tutelage: Command, kind: str
) -> None:
    body, error, told = BROKEN_TOOLS[kind]
    (tutelage.cwd / "tools.py").write_text(TOOL.replace("{body}", body))
    keys = {
        "trainer.val_before_train": "false",
        "trainer.test_freq": -1,
        "agent.num_chains": 8,
        "actor.ppo_mini_batch_size": "null",
    }
    tutelage(*with_tools(keys, tools="tools.py:calculator", steps="1")).check()
    found = [(r, t) for r in stored(tutelage.cwd / "run") for t in r.last.tool_results]
    ran = [(r, t) for r, t in found if t.error not in ("invalid_arguments", "unknown_tool")]
    assert ran
    assert {t.error for _, t in ran} == {error}
    assert all(told in t.text for _, t in ran)
    rollout = ran[0][0]
    assert told in shown(tutelage, rollout)
    turns = [r for r, _ in ran if len(r.last.calls) > 1]
    assert turns, "the model sees the observation and goes on"


def shown(command: Command, rollout: Rollout) -> str:
    """What `tutelage show` says of a rollout."""
    return command("show", rollout.id, "--run", "run").check().out


def test_when_every_prompt_is_too_long_the_run_says_so(
    with_tools: Arguments, tutelage: Command
) -> None:
    tasks = [{**row, "question": "very" * 900 + row["question"]} for row in rows(0, 4)]
    write_rows(tutelage.cwd / "tasks.jsonl", tasks)
    keys = {"rollout.max_len": 240}
    job = tutelage(*with_tools(keys, train="tasks.jsonl", steps="2")).check(1)
    assert "none of 16 rollouts of a step sampled a token (16 x context)" in job.err
    assert "tutelage resume run" in job.err or "tutelage show" in job.err
    assert len([r for r in stored(tutelage.cwd / "run") if r.mode == "train"]) == 16
