"""How long a reply may be where nobody says it, what is said of it, and what a stop leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from tests.loopback import listening
from typer.testing import CliRunner

from tutelage.cli import build_app
from tutelage.testing import tiny_policy

AGENT = """
from tutelage import rollout

@rollout
async def talk(task, llm):
    return (await llm.chat(task["question"])).reply.content or ""
"""
REWARD = """
from tutelage import reward

@reward(isolation="none")
def short(prediction):
    return float(len(prediction) < 3)
"""


class Server(BaseHTTPRequestHandler):
    """Keeps what it is asked; its replies are cut off, and every one after `quick` waits."""

    asked: list[Any] = []  # noqa: RUF012
    quick = 1 << 30

    def do_GET(self) -> None:
        self.answer({"data": [{"id": "m"}]})

    def do_POST(self) -> None:
        self.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        if len(self.asked) > self.quick:
            time.sleep(60)
        message = {"role": "assistant", "content": "hm"}
        self.answer({"choices": [{"message": message, "finish_reason": "length"}]})

    def answer(self, told: Any) -> None:
        data = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an agent, a reward, five tasks and a model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "r.py").write_text(REWARD)
    rows = (json.dumps({"question": f"{i}?"}) + "\n" for i in range(5))
    (tmp_path / "t.jsonl").write_text("".join(rows))
    Server.asked, Server.quick = [], 1 << 30
    return tmp_path


def words(target: str, *more: str) -> list[str]:
    return ["eval", target, "--test", "t.jsonl", "--reward", "r.py:short", *more]


def test_a_server_gets_a_limit_only_from_the_user_and_cut_replies_are_counted(place: Path) -> None:
    with listening(Server) as base:
        url = f"{base}/v1"
        targets = (words("agent.py", "--endpoint", url), words(url))
        asks = (["ask", "agent.py", "1?", "--endpoint", url], ["ask", url, "1?"])
        for given in (*targets, *asks):
            for more, limit in (([], None), (["--max-tokens", "77"], 77)):
                Server.asked.clear()
                done = CliRunner().invoke(build_app(), [*given, *more])
                assert done.exit_code == 0, done.output
                sent = {
                    body.get("max_tokens", body.get("max_completion_tokens"))
                    for body in Server.asked
                }
                assert sent == {limit}
                what = "none" if limit is None else "77 a reply"
                assert f"tokens  limit sent to the server: {what}" in done.stderr
                if given[0] == "eval":
                    assert "cut off   5 of 5 replies, by a limit of tokens" in done.stdout
        record = json.loads(CliRunner().invoke(build_app(), [*words(url), "--json"]).stdout)
    assert record["cost"]["completion_tokens"] < 1000  # of replies that the server did not count


@pytest.mark.full
def test_a_model_on_a_cpu_stops_at_512_tokens_unless_told_otherwise(
    place: Path, one_thread: None
) -> None:
    tiny_policy(max_positions=1024).save(place / "model")
    own = words("agent.py", "--model", "model", "--limit", "1")
    for more, most in (([], 512), (["--max-tokens", "5"], 5)):
        done = CliRunner().invoke(build_app(), [*own, *more])
        assert done.exit_code == 0, done.output
        assert f"tokens  at most {most} a reply, context 1,024" in done.stderr
        assert "cut off   1 of 1 replies, by a limit of tokens" in done.stdout
    built_in = CliRunner().invoke(build_app(), words("model", "--limit", "1"))
    assert "tokens  at most 256 a reply, context 1,024" in built_in.stderr


@pytest.mark.full
@pytest.mark.parametrize(
    ("number", "kept"),
    [
        (signal.SIGINT, ("--output", "run")),
        pytest.param(signal.SIGTERM, (), marks=pytest.mark.full),
    ],
)
def test_a_stop_shows_what_was_played(
    place: Path, kept: tuple[str, ...], number: signal.Signals
) -> None:
    Server.quick = 3
    with listening(Server) as base:
        given = words("agent.py", "--endpoint", f"{base}/v1", "--runners", "1", *kept)
        child = subprocess.Popen(
            [sys.executable, "-m", "tutelage", *given],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ),
        )  # fmt: skip
        end = time.monotonic() + 120
        while len(Server.asked) < 4 and time.monotonic() < end:
            time.sleep(0.1)
        child.send_signal(number)
        out, err = child.communicate(timeout=60)
    assert child.returncode == 128 + number, err
    assert "Stopped after 3 of 5 rollouts:" in out
    assert "rollouts  3 of 3 judged" in out
    assert ("resume run" in err) == bool(kept)
