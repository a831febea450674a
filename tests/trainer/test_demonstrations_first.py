"""`tutelage train AGENT.py --demonstrations FILE|RUN`: the rewarded rollouts of a strong model are
learned first, then rewards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tutelage import RL, Trainer
from tutelage.cli import build_app
from tutelage.config import RunConfig
from tutelage.engine.script import ScriptedReply
from tutelage.gateway import Gateway, ScriptedClient
from tutelage.runs.folder import RunFolder
from tutelage.runs.inputs import load_demonstration_rows
from tutelage.store import open_store
from tutelage.testing import tiny_policy

AGENT = '''
from tutelage import LLM, Message, rollout
from tutelage.tools import tool
from tutelage.tools.execute import execute_tool_calls

AGES = {"ann": 31, "bob": 42, "cid": 53, "dora": 64}


@tool
def age(name: str) -> str:
    """How old somebody is."""
    return str(AGES[name])


@rollout
async def ages(task, llm: LLM):
    messages = [Message("user", task["name"])]
    for _ in range(2):
        reply = (await llm.chat(messages, tools=[age.spec])).reply
        messages.append(reply)
        for done in await execute_tool_calls(reply.tool_calls, {"age": age}):
            messages.append(Message("tool", done.text, tool_call_id=done.call_id, name=done.name))
        if not reply.tool_calls:
            break
    return float((reply.content or "").strip() == str(AGES[task["name"]]))
'''
AGES = {"ann": "31", "bob": "42", "cid": "53", "dora": "64"}
WRONG = "cid"
KEYS = (
    "lr=1e-3", "steps=2", "data.train_batch_size=2", "num_chains=2", "rollout.max_len=512",
    "sft.lr=1e-2", "sft.batch_size=2", "sft.max_steps=4", "sft.cooldown_steps=2",
    "trainer.save_freq=1", "actor.use_kl_loss=false", "agent.max_tokens_per_turn=32",
)  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Iterator[Path]:
    """A folder with an agent, its tasks, a model, and the evaluation of a strong model, which is
    wrong in one task of four."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    tiny_policy(max_positions=1024).save(tmp_path / "model")
    (tmp_path / "agent.py").write_text(AGENT)
    rows = [json.dumps({"id": name, "name": name}) + "\n" for name in AGES]
    (tmp_path / "all.jsonl").write_text("".join(rows))
    (tmp_path / "train.jsonl").write_text("".join(rows[2:]))
    (tmp_path / "test.jsonl").write_text("".join(rows[:2]))
    script = [ScriptedReply(None, (("age", f'{{"name": "{name}"}}'),), match=name) for name in AGES]
    script += [ScriptedReply("0" if n == WRONG else a, match=a) for n, a in AGES.items()]
    with Gateway() as gateway:
        teacher = gateway.open("teacher", "main", ScriptedClient(script))
        monkeypatch.setenv("OPENAI_API_KEY", teacher.api_key)
        command(
            "eval", "agent.py", "--endpoint", teacher.base_url, "--model", "strong",
            "--test", "all.jsonl", "--output", "runs/teacher",
        )  # fmt: skip
        yield tmp_path


def command(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(build_app(), [str(word) for word in words])
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


TRAIN = (
    "train", "agent.py", "--model", "model", "--train", "train.jsonl", "--val", "test.jsonl", *KEYS
)  # fmt: skip


def test_the_rows_are_the_rewarded_calls_with_their_tools(place: Path) -> None:
    shown = load_demonstration_rows(
        RunConfig.model_validate({"data": {"demonstrations": "teacher"}})
    )
    with open_store(place / "runs/teacher/store.db", create=False) as store:
        won = [r for r in store.rollouts("teacher") if r.reward is not None and r.reward.value == 1]
    assert sorted(r.task.id for r in won) == sorted(AGES.keys() - {WRONG})
    assert [task.id for task in shown.solved] == [r.task.id for r in won]
    for row, rollout in zip(shown.rows, won, strict=True):
        first, last = rollout.last.calls
        assert row.messages == (*last.messages, last.reply)
        assert row.messages[1].tool_calls == first.reply.tool_calls
        assert row.tools == last.tools != ()
    assert shown.origin.startswith("3 of 4 rollouts (6 calls) of runs/teacher, which cost 8 calls")


def test_nothing_demonstrations_alone_and_rl_are_measured(place: Path) -> None:
    said = command(*TRAIN, "--demonstrations", "runs/teacher", "--output", "runs/a")
    assert "demonstrations 3 of 4 rollouts (6 calls) of runs/teacher" in said
    assert "2 of 2 test tasks are also training tasks" in said, "they were demonstrated"
    assert " success, 2 tasks nothing demonstrations alone with RL change" in said
    folder = RunFolder(place / "runs" / "a")
    result = folder.read_result()
    assert result is not None
    assert [*result["phases"]] == ["before", "cold_start", "demonstrations", "rl", "after"]
    assert (result["cold_start_steps"], result["rl_steps"], result["demonstrations"]) == (6, 2, 3)
    for side in ("before", "demonstrations", "after"):
        assert {f"success_{side}_sampled", f"success_{side}_greedy"} <= {*result}


def resumed(place: Path, name: str, phase: str, step: int) -> dict[str, Any]:
    """The result of a run that was killed after a step of a phase."""
    stopping = f"""
import os, signal
from tutelage.cli import main
from tutelage.runs.lifecycle import Run

log = Run.log

def stopping(run, line):
    log(run, line)
    if (line["phase"], line["step"]) == ({phase!r}, {step}):
        os.kill(os.getpid(), signal.SIGKILL)

Run.log = stopping
main()
"""
    words = (*TRAIN, "--demonstrations", "teacher", "--output", f"runs/{name}")
    line = [sys.executable, "-c", stopping, *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, env=os.environ)
    assert done.returncode == -signal.SIGKILL, done.stderr
    command("resume", name)
    return RunFolder(place / "runs" / name).read_result() or {}


@pytest.mark.full
def test_a_killed_run_goes_on_to_the_same_weights(place: Path) -> None:
    command(*TRAIN, "--demonstrations", "teacher", "--output", "runs/whole")
    whole = RunFolder(place / "runs" / "whole")
    for name, phase, step in (("a", "cold_start", 3), ("b", "rl", 1)):
        result = resumed(place, name, phase, step)
        weights = [
            (place / "runs" / n / "policy/model.safetensors").read_bytes() for n in (name, "whole")
        ]
        assert weights[0] == weights[1], phase
        known = whole.read_result() or {}
        for key in ("rollouts", "tokens", "success_demonstrations_sampled", "max_dlogp"):
            assert result[key] == known[key], (phase, key)


@pytest.mark.full
def test_a_file_is_learned_in_passes_and_from_python(place: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": n}, {"role": "assistant", "content": age}]}
        for n, age in AGES.items()
    ]
    (place / "demos.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keys = {"steps": 0, "sft.batch_size": 2, "sft.lr": 1e-2, "rollout.response_length": 64}
    keys |= {"sft.max_steps": -1, "sft.cooldown_steps": -1}
    result = Trainer(
        algorithm=RL(demonstrations="demos.jsonl", **keys),
        train_dataset="train.jsonl",
        test_dataset="test.jsonl",
        val_dataset="test.jsonl",
        policy=tiny_policy(max_positions=1024),
        output_dir="runs/python",
    ).fit("agent.py")
    assert result.details["cold_start_steps"] == 6, "three passes over four rows"
    assert "success_demonstrations_greedy" in result.details


def test_bad_demonstrations_are_refused_before_a_model_loads(place: Path) -> None:
    (place / "model" / "model.safetensors").unlink()
    (place / "bad.jsonl").write_text(
        '{"question": "a", "answer": "b"}\n{"messages": [{"role": "user", "content": 1}]}\n'
    )
    command("eval", "agent.py", "--model", "model", "--test", "test.jsonl", code=2)
    for given, words in (
        ("bad.jsonl", "bad.jsonl:2: field 'messages[0].content'"),
        ("none.jsonl", "dataset 'none.jsonl' does not exist"),
        ("nobody", "no run 'nobody'"),
    ):
        said = command(*TRAIN, "--demonstrations", given, "--output", "runs/a", code=2)
        assert words in said
        assert not (place / "runs" / "a").exists()
    rule = ("--success", ">=2")
    said = command(*TRAIN, "--demonstrations", "teacher", *rule, "--output", "runs/a", code=2)
    assert "'runs/teacher' has no demonstrations: 0 of its 4 rollouts succeeded" in said
