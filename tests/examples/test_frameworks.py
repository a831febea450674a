"""examples/frameworks: real SDKs and frameworks through the gateway, and one of them trained.

Those that are not installed are skipped; `examples/frameworks/requirements.txt` installs all.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.marks import long

from tutelage.engine.script import ScriptedReply
from tutelage.gateway import Gateway, ScriptedClient
from tutelage.rollouts.rows import build_rows

HERE = Path(__file__).parents[2] / "examples" / "frameworks"
NAMES = (
    "openai", "anthropic", "agno", "openai-agents", "agent-framework", "langgraph", "pydantic-ai",
    "smolagents",
)  # fmt: skip
APIS = {"anthropic": ["messages"]}
CASES = [(name, api) for name in NAMES for api in APIS.get(name, ["chat", "responses"])]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Any:
    """`example("gather")`: a module of the example's folder."""
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
    return importlib.import_module


def need(framework: Any) -> None:
    """Skip, in words, where a framework is not installed."""
    if not framework.installed():
        words = " and ".join(framework.packages)
        pytest.skip(f"{words} not installed: examples/frameworks/requirements.txt")


@pytest.mark.parametrize("stream", [True, *long(False)], ids=["whole", "streamed"])
@pytest.mark.parametrize(("name", "api"), CASES)
async def test_every_call_is_recorded_with_its_tokens_and_joined_to_its_rollout(
    example: Any, name: str, api: str, stream: bool
) -> None:
    gather, try_all = example("gather"), example("try_all")
    framework = gather.FRAMEWORKS[name]
    need(framework)
    if api not in framework.apis:
        with pytest.raises(ValueError, match="Responses"):
            framework.load().solve("?", example("calculator").Server("", "", api=api))
        return
    tasks = gather.calculations("val", 3)
    codec, script = try_all.codec_for([]), gather.gold(framework)
    rollouts = await gather.play(framework, tasks, codec, script, api=api, stream=stream)
    try_all.check(rollouts)
    assert [len(r.last.calls) for r in rollouts] == [2, 2, 2]
    # smolagents writes a call back as a text of its own: each of its calls is a row.
    rows = 2 if name == "smolagents" else 1
    assert [len(build_rows(r.last.calls)) for r in rollouts] == [rows] * 3


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.full] * (n != "openai-agents")) for n in NAMES],
)
def test_it_runs_as_a_program_by_two_environment_variables(name: str, example: Any) -> None:
    framework = example("gather").FRAMEWORKS[name]
    need(framework)
    call = ScriptedReply(tool_calls=(("calculator", '{"expression":"12+34"}'),))
    final = ScriptedReply("46")
    if framework.final:
        final = ScriptedReply(tool_calls=((framework.final, '{"answer": "46"}'),))
    client = ScriptedClient([call, final])
    with Gateway() as gateway:
        attempt_session = gateway.open("r", "a", client)
        done = subprocess.run(
            [sys.executable, f"{framework.module}.py"],
            input=json.dumps({"question": "What is 12 + 34?"}),
            cwd=HERE,
            env={**os.environ, **attempt_session.env()},
            capture_output=True,
            text=True,
            timeout=250,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["46"]
    first, second = client.calls
    assert "What is 12 + 34?" in (first.messages[-1].content or "")
    assert "46" in (second.messages[-1].content or "")
    assert "calculator" in [tool.name for tool in first.tools]
