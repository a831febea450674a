"""Rewards, tools and prompts that misbehave while a run is running."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from weights.parrot import rows, write_rows

from tutelage.types import FailureCause, Rollout

from .command import Command
from .conftest import REWARDS
from .outcome import assert_equal, outcome, stored
from .reference import Reference

Arguments = Callable[..., list[str]]

BROKEN_REWARDS = {
    "none": ("return None", "returned None; return a bool, an int, a float"),
    "text": ('return "good"', "returned 'good'; return a bool"),
}


@pytest.mark.full
@pytest.mark.parametrize("kind", ["none", pytest.param("text", marks=pytest.mark.full)])
def test_a_broken_reward_stops_the_run_and_a_mended_one_finishes_it(
    references: dict[str, Reference], with_tools: Arguments, tutelage: Command, kind: str
) -> None:
    """It is named with its task; nothing is trained on the rest; all that was done is kept."""
    body, told = BROKEN_REWARDS[kind]
    broken = REWARDS.replace("vary(prediction, trajectory)", "vary(prediction, trajectory, task)")
    broken = broken.replace(
        "    if next(calls)", f'    if task.id == "q5":\n        {body}\n    if next(calls)'
    )
    (tutelage.cwd / "rewards.py").write_text(broken)
    job = tutelage(*with_tools(reward="rewards.py:vary")).check(2)
    assert told in job.err
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


RAISING_REWARD = """
def raising(prediction, task):
    if task.id == "q5":
        raise SystemExit(3)
    if task.id == "q6":
        raise ConnectionRefusedError("the judge is down")
    return {"reward": float(len(prediction) % 2), "part": float("inf" if task.id == "q7" else 1)}
"""


@pytest.mark.full
def test_a_reward_that_raises_on_an_answer_counts_it_wrong_and_the_run_goes_on(
    with_tools: Arguments, tutelage: Command
) -> None:
    """Its own trouble leaves the rollout out; both are counted, and said with the first reason."""
    (tutelage.cwd / "rewards.py").write_text(RAISING_REWARD)
    keys = {"trainer.val_before_train": "false", "trainer.test_freq": -1}
    keys["actor.ppo_mini_batch_size"] = "null"
    job = tutelage(*with_tools(keys, reward="rewards.py:raising", steps="4")).check()
    run = tutelage.cwd / "run"
    played = [r for r in stored(run) if r.task.id in ("q5", "q6", "q7")]
    assert {r.task.id for r in played} == {"q5", "q6", "q7"}
    wrong, lost = FailureCause.ANSWER_ERROR, FailureCause.GRADER_ERROR
    for rollout in played:
        failure = rollout.last.failure
        assert failure is not None
        assert failure.cause is (lost if rollout.task.id == "q6" else wrong)
        earned = None if rollout.reward is None else rollout.reward.value
        assert earned == (None if rollout.task.id == "q6" else 0.0)
    result = json.loads((run / "result.json").read_text())
    counted = Counter(r.last.failure.cause.value for r in played if r.last.failure)
    assert result["failures"] == counted
    assert "ConnectionRefusedError: the judge is down" in result["first_failures"]["grader_error"]
    assert "first failure (grader error): " in job.err
    assert "the judge is down" in job.out
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for cause in counted:
        assert any(line.get(f"rollout/{cause}", 0) > 0 for line in lines)


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
    "exits": ("raise SystemExit(3)", "raised", "SystemExit: 3"),
    "base": ('raise BaseException("gone")', "raised", "BaseException: gone"),
    "hangs": ("time.sleep(1000)", "timeout", "calculator took longer than 0.5 seconds"),
    "bytes": ('return b"42"', "bad_result", "it returned bytes; decode it to text first"),
    "none": ("return None", "bad_result", "it returned None"),
    "nan": ('return float("nan")', "bad_result", "no usable result"),
    "object": ("return object()", "bad_result", "it returned an instance of object"),
    "surrogate": (r'return "4\udc802"', None, r"4\udc802"),
    "megabyte": ('return "4" * 1_000_000', None, "characters cut"),
}


LIKE_ANOTHER = ("exits", "base", "bytes", "none", "nan", "object", "surrogate", "megabyte")
"""Those that a run treats like `raises`; `tools/test_execute.py` tells them apart."""


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.full] if kind in LIKE_ANOTHER else [])
        for kind in BROKEN_TOOLS
    ],
)
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
    if kind != "megabyte":
        turns = [r for r, _ in ran if len(r.last.calls) > 1]
        assert turns, "the model sees the observation and goes on"


def shown(command: Command, rollout: Rollout) -> str:
    """What `tutelage show` says of a rollout."""
    return command("show", rollout.id, "--run", "run").check().out


@pytest.mark.full
def test_long_prompts_overflow_and_the_run_goes_on(
    with_tools: Arguments, tutelage: Command
) -> None:
    tasks = rows(0, 4)
    tasks[1]["question"] += " really" * 400
    write_rows(tutelage.cwd / "tasks.jsonl", tasks)
    keys = {"rollout.max_len": 240, "agent.max_turns": 3}
    job = tutelage(*with_tools(keys, train="tasks.jsonl", steps="2")).check()
    told = "Warning: the prompt of task 'q1' is longer than the context of 240 tokens, so it is not"
    assert " ".join(job.err.split()).count(told) == 1, job.err
    train = [r for r in stored(tutelage.cwd / "run") if r.mode == "train"]
    lost = [r for r in train if r.task.id == "q1"]
    assert len(lost) == 8
    for rollout in train:
        overflowed = rollout.last.stop == "context"
        assert overflowed == (rollout.task.id == "q1")
        assert bool(rollout.last.calls) != overflowed
    assert "context" in shown(tutelage, lost[0])


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


@pytest.mark.full
def test_an_agent_without_tools_is_one_turn(with_tools: Arguments, tutelage: Command) -> None:
    keys = {"agent.use_agent": "false"}
    job = tutelage(*with_tools(keys, tools=None, steps="2")).check()
    assert "tools   none" in job.err
    kept = stored(tutelage.cwd / "run")
    assert kept
    assert all(len(r.last.calls) == 1 and not r.last.tool_results for r in kept)


@pytest.mark.full
def test_tasks_given_as_messages(with_tools: Arguments, tutelage: Command) -> None:
    """A row may bring a whole conversation instead of a question."""
    tasks = [
        {
            "id": row["id"],
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": row["question"]},
            ],
            "answer": row["answer"],
        }
        for row in rows(0, 8)
    ]
    write_rows(tutelage.cwd / "tasks.jsonl", tasks)
    keys = {"trainer.test_freq": -1}
    tutelage(*with_tools(keys, train="tasks.jsonl", steps="2")).check()
    train = [r for r in stored(tutelage.cwd / "run") if r.mode == "train"]
    assert len(train) == 32
    assert {r.last.calls[0].messages[0].content for r in train} == {"Be brief."}


@pytest.mark.full
def test_validation_tasks_are_split_off_when_none_are_given(
    with_tools: Arguments, material: Path, tutelage: Command
) -> None:
    keys = {"trainer.val_tasks": 4}
    tutelage(*with_tools(keys, val=None, steps="4")).check()
    kept = stored(tutelage.cwd / "run")
    trained = {r.task.id for r in kept if r.mode == "train"}
    held = {r.task.id for r in kept if r.mode != "train"}
    assert held
    assert not trained & held
    assert trained | held == {f"q{i}" for i in range(16)}
