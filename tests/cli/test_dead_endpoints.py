"""A server that is not there ends a command with its words, and is never a wrong answer.

Each role that a model may play, through the public command: nothing listens at the address, or what
listens refuses every request.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.marks import long
from tests.prompts.prompt_parts import WORDS, refusing_server
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


JUDGED = '''
from tutelage.rewards import reward
from tutelage.rewards.judge import llm_judge
from tutelage.tools import ToolOptions

judge = llm_judge(ToolOptions(judge_base_url="{url}", judge_model="m"))

@reward
async def judged(answer, task):
    """Asks about something that was said, whatever the model was able to say."""
    return await judge.fn("four", answer, task)
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


@pytest.mark.parametrize("algorithm", ["apo", *long("screen", "reflect", "gepa")])
def test_a_player_that_is_refused_stops_a_search(
    alone: Path, refusing: str, algorithm: str
) -> None:
    given = ["train", "prompt", "agent.py", "--train", "tasks.json", "--algorithm", algorithm]
    ended(command(*given, *SMALL, "--output", "run", **player(refusing)))
    assert not (alone / "run" / "result.json").exists()


def test_a_player_that_is_not_there_stops_a_search(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.01)
    given = ["train", "prompt", "agent.py", "--train", "tasks.json", "--algorithm", "screen"]
    done = command(*given, *SMALL, "--output", "run", **player("http://127.0.0.1:9/v1"))
    ended(done, "cannot reach the server 'http://127.0.0.1:9/v1/chat/completions'")


def test_a_judge_that_is_refused_ends_an_evaluation(alone: Path, refusing: str, tiny: Any) -> None:
    tiny("qwen2").save(alone / "model")
    (alone / "judged.py").write_text(JUDGED.format(url=refusing))
    given = ["eval", "model", "--test", "tasks.json", "--limit", "2"]
    ended(command(*given, "--reward", "judged.py:judged"))


def test_workers_that_are_refused_end_a_collection_and_are_not_logged(
    alone: Path, refusing: str
) -> None:
    worker = {"name": "w", "capabilities": ["*"], "price_in": 1, "price_out": 1}
    served = {**worker, "endpoint": refusing, "latency": {"seconds": 0.1}}
    (alone / "workers.json").write_text(json.dumps({"workers": [served]}))
    given = ["orchestrate", "collect", "--num-executions", "2", "--output-dir", "logs"]
    ended(command(*given, "--pool", "openai", "--workers", "workers.json"))
    logs = [path.read_text() for path in (alone / "logs").glob("*.jsonl")]
    assert not any(text.strip() for text in logs)


def test_another_agents_model_that_is_refused_ends_a_measurement(
    alone: Path, refusing: str
) -> None:
    """The simulated user of an agent whose weights are trained, in the test before training."""
    from tutelage import LLM, RL, Trainer, rollout
    from tutelage.errors import FailureBudgetError
    from tutelage.testing import tiny_policy

    @rollout
    async def agent(task: Any, main: LLM, user: LLM) -> float:
        await main.chat(task["question"], max_tokens=2)
        try:
            return float(bool((await user.chat("well?")).reply.content))
        except Exception:
            return 0.0

    tasks = json.loads((alone / "tasks.json").read_text())
    trainer = Trainer(
        algorithm=RL({"steps": 1, "rollout.max_len": 128, "agent.max_tokens_per_turn": 2}),
        train_dataset=tasks[:4],
        test_dataset=tasks[4:6],
        resources={"main": LLM(trainable=True), "user": LLM("user", endpoint=refusing)},
        policy=tiny_policy(),
        output_dir="run",
    )
    with pytest.raises(FailureBudgetError, match=WORDS):
        trainer.fit(agent)
    assert not (alone / "run" / "checkpoints" / "000002").exists()
    assert json.loads((alone / "run" / "result.json").read_text())["status"] == "failed"
