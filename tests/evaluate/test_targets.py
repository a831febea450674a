"""Anything is evaluated without training: an agent's file, a server, two of them; and its cost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from tests.loopback import listening
from typer.testing import CliRunner

from tutelage.cli import build_app
from tutelage.errors import ConfigError
from tutelage.evaluate.config import AskConfig
from tutelage.evaluate.targets import ask
from tutelage.runs.folder import RunFolder
from tutelage.testing import tiny_policy

AGENT = """
from tutelage import LLM, PromptTemplate, rollout

prompt_template = PromptTemplate("Add the numbers.")


@rollout
async def adder(task, llm: LLM, prompt_template: PromptTemplate):
    said = await llm.chat(f"{prompt_template.format()} {task['question']}", max_tokens=16)
    return float(said.reply.content == str(task["answer"]))
"""
REWARD = """
from tutelage import reward


@reward(isolation="none")
def exact(prediction, answer):
    return float(prediction == str(answer))
"""
TASKS = [{"question": f"{i} + 1", "answer": i + 1} for i in range(6)]
ENDPOINT = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL")


class Adder(BaseHTTPRequestHandler):
    """Two models: `even` adds up even numbers only, `sure` all."""

    models = ("even", "sure")
    key: str | None = None
    asked = 0

    def do_GET(self) -> None:
        if self.path != "/v1/models":
            self.answer({"error": {"message": "Not Found"}}, 404)
            return
        if self.key is not None and self.headers.get("authorization") != f"Bearer {self.key}":
            self.answer({"error": {"message": "Incorrect API key"}}, 401)
            return
        self.answer({"data": [{"id": name} for name in self.models]})

    def do_POST(self) -> None:
        type(self).asked += 1
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        number = int(body["messages"][-1]["content"].split("+")[0].split()[-1])
        right = body["model"] == "sure" or number % 2 == 0
        message = {"role": "assistant", "content": str(number + 1 if right else 0)}
        if os.environ.get("KILL_AT") == str(type(self).asked):
            os.kill(os.getpid(), signal.SIGKILL)
        self.answer(
            {
                "choices": [{"message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 10, "completion_tokens": 2},
            }
        )

    def answer(self, told: Any, status: int = 200) -> None:
        data = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    Adder.asked = 0
    with listening(Adder) as base:
        yield f"{base}/v1"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an agent, a reward, tasks and prices; no endpoint in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for name in ENDPOINT:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "r.py").write_text(REWARD)
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in TASKS))
    (tmp_path / "prices.toml").write_text('[models]\n"even" = { input = 1.0, output = 2.0 }\n')
    return tmp_path


def command(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(build_app(), [str(word) for word in words])
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else " ".join(done.output.split())


def told(*words: object) -> dict[str, Any]:
    return json.loads(command("eval", *words, "--test", "t.jsonl", "--json"))


def test_an_agents_file_plays_with_a_servers_model(place: Path, url: str) -> None:
    found = told("agent.py", "--endpoint", url, "--model", "even", "--samples", "2")
    assert found["success"] == 0.5
    low, high = found["interval"]
    assert 0 < low < 0.5 < high < 1
    assert found["rollouts"] == 12
    cost = {"calls": 12, "prompt_tokens": 120, "completion_tokens": 24, "unknown": 0}
    assert found["cost"] == cost | {"dollars": pytest.approx(12 * (10 * 1.0 + 2 * 2.0) / 1e6)}
    sure = told("agent.py:adder", "--endpoint", url, "--model", "sure")
    assert sure["success"] == 1.0
    assert sure["cost"]["dollars"] == 0.0  # a server on this machine is paid by no token


def test_the_environment_names_a_server_too(
    place: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    monkeypatch.setenv("OPENAI_MODEL", "sure")
    assert told("agent.py")["success"] == 1.0
    assert told("agent.py", "--model", "even")["success"] == 0.5


def test_the_built_in_agent_plays_against_a_url(
    place: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graded = ("--reward", "r.py:exact")
    assert told(url, "--model", "even", *graded)["success"] == 0.5
    assert "--model NAME: even, sure" in command("eval", url, "--test", "t.jsonl", *graded, code=2)
    monkeypatch.setattr(Adder, "models", ("sure",))
    assert told(url, *graded)["success"] == 1.0  # the only one that it has


def test_two_targets_are_paired_by_task(place: Path, url: str) -> None:
    words = ("agent.py", "agent.py", "--endpoint", url, "--model", "even", "--model", "sure")
    found = told(*words)
    assert [one["success"] for one in found["targets"]] == [0.5, 1.0]
    pair = found["pair"]
    assert (pair["tasks"], pair["reward"]["mean"]) == (len(TASKS), 0.5)
    assert pair["reward"]["low"] < 0.5 < pair["reward"]["high"]
    assert (pair["reward"]["wins"], pair["reward"]["losses"]) == (3, 0)
    shown = command("eval", *words, "--test", "t.jsonl")
    assert "agent.py with even" in shown
    assert "below 50 tasks the exact sign test gives the verdict." in shown
    assert "+0.500" in shown
    assert sorted(p.name for p in place.iterdir() if p.is_dir() and p.name != "__pycache__") == []


def test_two_targets_are_kept_as_two_runs_that_compare_knows(place: Path, url: str) -> None:
    words = ("agent.py", "agent.py", "--endpoint", url, "--model", "even", "--model", "sure")
    found = told(*words, "--output", "runs/pair")
    again = json.loads(command("compare", "pair-1", "pair-2", "--json"))
    assert again["pairs"][0]["reward"] == found["pair"]["reward"]
    cost = again["runs"][0]["run"]["spent"]
    assert (cost["calls"], cost["tokens"]) == (6, 72)
    assert cost["dollars"] == pytest.approx(6 * 14 / 1e6)
    asked = Adder.asked
    assert told(*words, "--output", "runs/pair") == found  # both have ended: nothing is asked
    assert Adder.asked == asked
    (place / "agent.py").write_text(AGENT.replace("Add", "Sum"))
    refused = command("eval", *words, "--test", "t.jsonl", "--output", "runs/pair", code=2)
    assert "agent.py (target) changed" in refused


def test_killed_and_resumed_it_asks_for_what_is_left(place: Path, url: str) -> None:
    words = ("agent.py", "--endpoint", url, "--model", "even", "--samples", "2", "--runners", "1")
    whole = told(*words, "--output", "runs/whole")
    killing = AGENT.replace(
        "    said =", "    if (await kill_at(10)):\n        pass\n    said ="
    ).replace("@rollout", KILLING + "@rollout")
    (place / "agent.py").write_text(killing)
    line = [sys.executable, "-m", "tutelage", "eval", *words, "--test", "t.jsonl"]
    line += ["--output", "runs/cut"]
    done = subprocess.run(line, env=os.environ | {"KILL": "1"}, capture_output=True, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr
    before = len(RunFolder(place / "runs" / "cut").read_costs())
    assert 0 < before < 12
    Adder.asked = 0
    command("resume", "cut")
    assert 2 < Adder.asked < 12
    cut, same = (RunFolder(place / "runs" / n).read_result() for n in ("cut", "whole"))
    assert cut is not None
    assert same is not None
    assert cut | {"wall_seconds": 0} == same | {"wall_seconds": 0}
    assert cut["cost"] == whole["cost"]


KILLING = """
import os
import signal

plays = 0


async def kill_at(number):
    global plays
    plays += 1
    if plays == number and "KILL" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)


"""


def test_what_is_wrong_is_said_before_anything_loads(place: Path, url: str) -> None:
    (place / "plain.py").write_text("x = 1\n")
    (place / "empty.jsonl").write_text("")
    nowhere = "http://127.0.0.1:9/v1"
    graded = ("--test", "t.jsonl", "--reward", "math")
    for words, said in (
        (("nothing", *graded), "no run 'nothing'"),
        (("plain.py", *graded), "has no agent; decorate one function with @rollout"),
        (("agent.py", *graded), "no LLM is configured for 'main' of the agent 'adder'"),
        (("agent.py", "--test", "empty.jsonl", "--endpoint", url), "empty.jsonl"),
        (("agent.py", *graded, "--tools", "calculator"), "--tools cannot be used with"),
        (("agent.py", *graded, "--endpoint", "ftp://x"), "not a valid base URL"),
        ((nowhere, "--test", "t.jsonl"), "and has no reward; pass one with --reward"),
        ((nowhere, *graded), f"no answer from '{nowhere}'"),
        ((url, "--endpoint", url, *graded), "the target is already a server"),
        ((url.removesuffix("/v1"), *graded), f"add /v1: {url}"),
        (("a", "b", "c", *graded), "targets can be compared, got 3"),
        (("a", "--model", "b", "--model", "c", *graded), "--model is set 2 times"),
    ):
        assert said in command("eval", *words, code=2)
    assert Adder.asked == 0


def test_a_key_that_is_refused_is_said(
    place: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Adder, "key", "right")
    refused = command("eval", "agent.py", "--endpoint", url, "--test", "t.jsonl", code=2)
    assert "rejected the API key (status 401)" in refused
    monkeypatch.setenv("OPENAI_API_KEY", "right")
    assert told("agent.py", "--endpoint", url, "--model", "sure")["success"] == 1.0


def test_an_agents_file_and_a_server_are_asked(place: Path, url: str) -> None:
    on = ("--endpoint", url, "--model", "sure")
    (place / "open.py").write_text(AGENT[: AGENT.index("    return")])
    command("ask", "agent.py", "3 + 1", *on, code=1)
    assert "Add the numbers. 3 + 1" in command("ask", "agent.py", "3 + 1", "answer=4", *on)
    shown = command("ask", "open.py", "3 + 1", *on)
    assert "Add the numbers. 3 + 1" in shown
    assert "turn 1  stop\n  4\n" in shown  # a server told no token ids
    assert "3 + 1" in command("ask", url, "3 + 1", "--model", "sure")
    refused = command("ask", "open.py", "3 + 1", *on, "--tools", "calculator", code=2)
    assert "--tools cannot be used with 'open.py'" in refused


def test_a_folder_answers_an_agent_of_ones_own(place: Path, one_thread: None) -> None:
    tiny_policy(max_positions=256).save(place / "model")
    found = told("agent.py", "--model", "model", "--samples", "2")
    assert found["rollouts"] == 12
    assert found["success"] == 0.0
    assert found["cost"]["calls"] == 12
    assert found["cost"]["completion_tokens"] > 12
    assert found["cost"]["dollars"] == 0.0
    assert told("agent.py", "--model", "model", "--samples", "2") == found


@pytest.mark.parametrize("target", ["smollm2", "http://127.0.0.1:9"])
def test_a_field_of_a_question_that_nothing_reads_is_refused(target: str) -> None:
    with pytest.raises(ConfigError, match=r"the field 'prices' is not used: .* has no tools"):
        ask(target, "What do 12 lamps cost?", AskConfig(), {"prices": {"lamp": 23}})
