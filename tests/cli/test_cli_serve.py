"""`tutelage serve`: scripted replies and a policy over a real port, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tutelage.testing import tiny_policy

from .conftest import Tutelage


@contextmanager
def serving(*args: str, **environment: str) -> Generator[tuple[dict[str, str], Any]]:
    """The command in its own process, and what it printed."""
    # A shell's background job ignores Ctrl-C, and what it starts inherits that.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{heard}; from tutelage.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve", "--port", "0", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(4)]
        yield dict(line.removeprefix("export ").partition("=")[::2] for line in lines), process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ask(said: dict[str, str], key: str | None = None, **body: Any) -> httpx2.Response:
    return httpx2.post(
        said["OPENAI_BASE_URL"] + "/chat/completions",
        json={"model": "m", "messages": [{"role": "user", "content": "hi"}], **body},
        headers={"authorization": f"Bearer {key or said['OPENAI_API_KEY']}"},
        timeout=60,
    )


def told(stream: str) -> str:
    """The text of a streamed chat completion, in however many pieces it came."""
    lines = [line.removeprefix("data: ") for line in stream.splitlines() if line[:7] == "data: {"]
    choices = [choice for line in lines for choice in json.loads(line)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.full),
        pytest.param(signal.SIGHUP, marks=pytest.mark.full),
    ],
)
def test_a_script_is_served_recorded_and_stopped_by_a_signal(
    tmp_path: Path, number: signal.Signals
) -> None:
    script, record = tmp_path / "s.jsonl", tmp_path / "calls.jsonl"
    script.write_text('{"content": "one"}\n{"tool_calls": [{"name": "f"}]}\n')
    with serving("--scripted", str(script), "--record", str(record)) as (said, process):
        assert ask(said).json()["choices"][0]["message"]["content"] == "one"
        tools = [{"type": "function", "function": {"name": "f"}}]
        assert ask(said, stream=True, tools=tools).text.endswith("data: [DONE]\n\n")
        assert ask(said, key="wrong").status_code == 401
        process.send_signal(number)
        assert process.wait(60) == 128 + number
    first, second = map(json.loads, record.read_text().splitlines())
    assert first["reply"] == {"role": "assistant", "content": "one"}
    assert first["messages"] == [{"role": "user", "content": "hi"}]
    assert len(first["token_ids"]) == len(first["logprobs"]) == 4
    assert second["reply"]["tool_calls"][0]["function"]["name"] == "f"
    assert second["finish_reason"] == "tool_calls"


SPAN = {
    "traceId": "0123456789abcdef0123456789abcdef", "spanId": "0123456789abcdef", "name": "plan",
    "startTimeUnixNano": "1000", "endTimeUnixNano": "3000",
    "attributes": [{"key": "step", "value": {"intValue": "7"}}],
}  # fmt: skip


def test_spans_of_agents_are_taken_and_recorded(tmp_path: Path) -> None:
    script, record = tmp_path / "s.jsonl", tmp_path / "calls.jsonl"
    script.write_text('{"content": "one"}\n')
    with serving("--scripted", str(script), "--record", str(record)) as (said, process):
        answer = httpx2.post(
            said["OPENAI_BASE_URL"] + "/traces",
            json={"resourceSpans": [{"scopeSpans": [{"spans": [SPAN]}]}]},
            headers={"authorization": f"Bearer {said['OPENAI_API_KEY']}"},
            timeout=60,
        )
        assert answer.status_code == 200, answer.text
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    span = json.loads(record.read_text())["span"]
    assert (span["name"], span["attributes"], span["end_ns"]) == ("plan", {"step": 7}, 3000)


def test_requests_are_passed_on_to_another_server_and_recorded(tmp_path: Path) -> None:
    script, record = tmp_path / "s.jsonl", tmp_path / "calls.jsonl"
    script.write_text('{"content": "from afar", "match": "hi"}\n')
    with serving("--scripted", str(script)) as (far, _):
        given = ("org/far", "--upstream", far["OPENAI_BASE_URL"], "--record", str(record))
        with serving(*given, OPENAI_API_KEY=far["OPENAI_API_KEY"] + "\r\n") as (said, process):
            assert far["OPENAI_API_KEY"] != said["OPENAI_API_KEY"]
            assert ask(said, user="u").json()["choices"][0]["message"]["content"] == "from afar"
            assert told(ask(said, stream=True).text) == "from afar"
            key = {"authorization": f"Bearer {said['OPENAI_API_KEY']}"}
            models = httpx2.get(said["OPENAI_BASE_URL"] + "/models", headers=key).json()["data"]
            assert [model["id"] for model in models] == ["org/far"]
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        with serving(*given, OPENAI_API_KEY="wrong") as (said, _):
            assert ask(said).status_code >= 400
    first, _ = map(json.loads, record.read_text().splitlines())
    assert first["reply"] == {"role": "assistant", "content": "from afar"}
    # The other server is a gateway, which gives token ids when it is asked for them.
    assert bytes(first["token_ids"][:-1]) == b"from afar"
    assert len(first["logprobs"]) == len(first["token_ids"])
    assert first["usage"] == {"input_tokens": len("user: hi"), "output_tokens": 10}
    ids = {"return_token_ids": True, "logprobs": True}
    assert first["sent"] == {"model": "org/far", "user": "u", **ids}
    assert re.fullmatch("chatcmpl-main-[0-9a-f]{8}-1", first["response_id"]), "of this start"
    assert first["answered"]["usage"]["total_tokens"] == 18


def test_the_page_shows_what_is_printed(tmp_path: Path) -> None:
    script = tmp_path / "s.jsonl"
    script.write_text('{"content": "one"}\n')
    with serving("--scripted", str(script)) as (said, _):
        page = Path(__file__).parents[2].joinpath("docs/gateway.md").read_text(encoding="utf-8")
        (shown,) = re.findall(r"^(export OPENAI_BASE_URL.*?)^```", page, re.MULTILINE | re.DOTALL)
    port = said["ANTHROPIC_BASE_URL"].rpartition(":")[2]
    printed = "".join(f"export {name}={value}\n" for name, value in said.items())
    printed = printed.replace(f":{port}", ":8000")
    key = re.compile("sk-tutelage-[0-9a-f]{64}")
    assert key.sub("KEY", shown) == key.sub("KEY", printed)
    assert len(key.findall(shown)) == 2


@pytest.mark.full
def test_a_policy_is_served(tmp_path: Path, one_thread: None) -> None:
    tiny_policy().save(tmp_path / "policy")
    with serving(str(tmp_path / "policy"), "--slots", "2") as (said, _):
        answers = [ask(said, max_tokens=5, seed=3, logprobs=True).json() for _ in range(2)]
        streamed = ask(said, max_tokens=5, stream=True)
    assert answers[0]["usage"]["completion_tokens"] <= 5
    assert answers[0]["choices"] == answers[1]["choices"]
    assert streamed.text.endswith("data: [DONE]\n\n")


def test_what_cannot_be_served_is_a_users_error(
    tutelage: Tutelage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secrét")
    tmp_path.joinpath("bad.jsonl").write_text("{\n")
    tmp_path.joinpath("good.jsonl").write_text('{"content": "x"}\n')
    good, far = ("--scripted", "good.jsonl"), ("--upstream", "http://x/v1")
    for args, told in (
        ((), "pass either a run or model to serve"),
        (("x", "--scripted", "s.jsonl"), "--scripted FILE"),
        (("--scripted", "bad.jsonl"), "bad.jsonl:1"),
        ((*good, "--host", "0.0.0.0"), "secret"),
        ((*good, "--secret", "short"), "16"),
        ((*good, "--record", "no/where"), "cannot write"),
        ((*good, *far), "needs the name"),
        (("agent.py",), "'agent.py' cannot be served; pass a run, or a model"),
        (("model", "--upstream", "nowhere"), "--upstream: 'nowhere' is not a valid base URL"),
        (("model", *far), "invalid API key in OPENAI_API_KEY"),
    ):
        result = tutelage("serve", "--port", "0", *args)
        assert result.exit_code == 2, args
        assert told in result.stderr
        assert "Traceback" not in result.output
        assert "sk-secr" not in result.output
