"""A server that is not there ends a command with its words, and is never a wrong answer.

Each role that a model may play, through the public command: nothing listens at the address, or what
listens refuses every request.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.train.prompt_parts import WORDS, refusing_server
from typer.testing import CliRunner, Result

from tutelage.cli import build_app

ENDPOINT = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL")
ROLES = ("TASK", "GRADIENT", "EDIT", "JUDGE")
SMALL = ["--train-size", "4", "--val-size", "4", "--test-size", "6", "--rollouts", "120"]
SWALLOWS = '''
from tutelage import LLM, PromptTemplate, rollout

prompt = PromptTemplate("Solve it.")

@rollout
async def solve(task, llm: LLM, prompt: PromptTemplate):
    """As Agno and others do, it makes an error of the model an answer."""
    try:
        said = (await llm.chat(prompt.format() + task["question"])).reply.content
    except Exception as error:
        said = str(error)
    return float(said == task["answer"])
'''


@pytest.fixture(scope="module")
def refusing() -> Iterator[str]:
    """The address of a server that refuses."""
    with refusing_server() as url:
        yield url


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Path:
    """An empty working folder, no endpoint in the environment, an agent and its tasks."""
    monkeypatch.chdir(tmp_path)
    for name in ENDPOINT:
        monkeypatch.delenv(name, raising=False)
    for role in ROLES:
        for part in ("BASE_URL", "API_KEY", "MODEL"):
            monkeypatch.delenv(f"TUTELAGE_{role}_{part}", raising=False)
    (tmp_path / "agent.py").write_text(SWALLOWS)
    rows = [{"question": f"{i} + {i}?", "answer": str(2 * i)} for i in range(30)]
    (tmp_path / "tasks.json").write_text(json.dumps(rows))
    return tmp_path


def command(*arguments: str, **env: str) -> Result:
    return CliRunner().invoke(build_app(), list(arguments), env=env)


def player(url: str) -> dict[str, str]:
    return {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "k", "OPENAI_MODEL": "m"}


def ended(done: Result, words: str = WORDS) -> str:
    """What a command said that ended with the server's words, and with no result."""
    said = " ".join(done.output.split())
    assert done.exit_code not in (0, 3, 4), said
    assert words in said
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize("algorithm", ["screen", "grips", "apo", "gepa"])
def test_a_player_that_is_refused_stops_a_search(
    alone: Path, refusing: str, algorithm: str
) -> None:
    given = ["train", "prompt", "agent.py", "--train", "tasks.json", "--algorithm", algorithm]
    ended(command(*given, *SMALL, "--output", "run", **player(refusing)))
    assert not (alone / "run" / "result.json").exists()


def test_a_player_that_is_not_there_stops_a_search(alone: Path) -> None:
    given = ["train", "prompt", "agent.py", "--train", "tasks.json", "--algorithm", "screen"]
    done = command(*given, *SMALL, "--output", "run", **player("http://127.0.0.1:9/v1"))
    ended(done, "cannot reach the server 'http://127.0.0.1:9/v1/chat/completions'")


def test_a_dry_run_against_a_dead_endpoint_exits_1(alone: Path, refusing: str) -> None:
    given = ["train", "prompt", "agent.py", "--train", "tasks.json", "--algorithm", "screen"]
    done = command(*given, *SMALL, "--dry-run", **player(refusing))
    assert done.exit_code == 1, done.output
    assert WORDS in " ".join(done.output.split())
