"""Any program: the task comes in, an answer or a reward comes out, and nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from tutelage.agents.agent import AgentFailedError
from tutelage.agents.external import ExternalAgent
from tutelage.agents.session import RolloutSession
from tutelage.errors import ConfigError
from tutelage.resources import LLM, NamedResources
from tutelage.types import Mode, Task

TASK = Task("t1", {"question": "6 * 7?", "answer": "42"})


def context(**env: str) -> RolloutSession:
    return RolloutSession(
        rollout_id="roll_1",
        attempt_id="att_1",
        attempt=0,
        task_record=TASK,
        mode=Mode.VAL,
        step=0,
        resources=NamedResources(main=LLM("label", model="main")),
        limit=60,
        policy="main",
        env=env,
    )


async def played(program: ExternalAgent, session: RolloutSession) -> Any:
    return await program.play(TASK, session, session.resources)


def agent(tmp_path: Path, code: str, *, arguments: tuple[str, ...] = (), **options: Any) -> Any:
    path = tmp_path / "agent.py"
    path.write_text(textwrap.dedent(code))
    return ExternalAgent([sys.executable, str(path), *arguments], **options)


async def gone(pid: int) -> bool:
    """Whether a process has ended; a zombie has."""
    for _ in range(300):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        await asyncio.sleep(0.01)
    return False


async def test_the_task_and_the_model_come_in_and_the_answer_comes_out(tmp_path: Path) -> None:
    program = agent(
        tmp_path,
        """
        import json, os, sys
        task = json.load(sys.stdin)
        assert task == json.load(open(os.environ["TUTELAGE_TASK_FILE"]))
        names = ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL", "TUTELAGE_ROLLOUT_ID",
                 "TUTELAGE_ATTEMPT_ID", "TUTELAGE_MODE", "MINE")
        print(json.dumps([task["id"], task["question"]] + [os.environ[n] for n in names]))
        """,
        env={"MINE": "here"},
    )
    rollout = context(OPENAI_BASE_URL="http://session/v1", OPENAI_API_KEY="sk")
    answer = await played(program, rollout)
    assert json.loads(answer) == [
        "t1", "6 * 7?", "http://session/v1", "sk", "main", "roll_1", "att_1", "val", "here",
    ]  # fmt: skip
    assert rollout.answer == answer
    assert program.name == "agent.py"


async def test_the_task_as_a_file_in_the_command(tmp_path: Path) -> None:
    code = """
    import json, sys
    assert sys.stdin.read() == ""
    print(json.load(open(sys.argv[1]))["answer"])
    """
    program = agent(tmp_path, code, arguments=("{task}",), task="file")
    assert await played(program, context()) == "42"


@pytest.mark.parametrize(
    ("output", "text", "expected", "answer"),
    [
        ("answer", "thinking\n 42 \n", "thinking\n 42", "thinking\n 42"),
        ("reward", "thinking\n0.5\n\n", 0.5, None),
        ("reward", '{"reward": 1, "style": 0.2}', {"reward": 1, "style": 0.2}, None),
        ("json", 'x\n{"answer": "42"}', "42", "42"),
        ("json", '{"answer": 42, "reward": 0.25}', 0.25, "42"),
        (
            "json",
            '{"answer": "a\u2028b\u2029c\x85d"}',
            "a\u2028b\u2029c\x85d",
            "a\u2028b\u2029c\x85d",
        ),
        ("json", '{"answer": "half \\ud83d"}', "half \ufffd", "half \ufffd"),
    ],
)
async def test_what_the_output_means(
    output: Any, text: str, expected: Any, answer: str | None, tmp_path: Path
) -> None:
    program = agent(tmp_path, f"print({text!r})", output=output)
    rollout = context()
    assert await played(program, rollout) == expected
    assert rollout.answer == answer


@pytest.mark.parametrize(
    ("output", "code", "words"),
    [
        ("reward", "print('well')", "not 'well'"),
        ("json", "print('[1]')", "'answer' or 'reward'"),
        ("reward", "pass", "not ''"),
        ("answer", "import sys; sys.exit('no luck')", "exit status 1: no luck"),
        ("answer", "import os; os.kill(os.getpid(), 11)", "signal SIGSEGV"),
    ],
)
async def test_a_failing_program_is_told_with_its_words(
    output: Any, code: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(AgentFailedError) as caught:
        await played(agent(tmp_path, code, output=output), context())
    assert words in str(caught.value)


async def test_a_stopped_program_is_ended_with_everything_it_started(tmp_path: Path) -> None:
    """Also what ignores SIGTERM."""
    code = f"""
    import os, signal, subprocess, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c",
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
    open({str(tmp_path / "pids")!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
    time.sleep(600)
    """
    work = asyncio.create_task(played(agent(tmp_path, code), context()))
    pids: list[int] = []
    while len(pids) < 2:
        await asyncio.sleep(0.02)
        if (tmp_path / "pids").is_file():
            pids = [int(p) for p in (tmp_path / "pids").read_text().split()]
    start = time.monotonic()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert time.monotonic() - start < 20
    assert all([await gone(pid) for pid in pids])


async def test_what_a_program_leaves_behind_is_ended_when_it_is_done(tmp_path: Path) -> None:
    code = """
    import subprocess, sys
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(child.pid)
    """
    answer = await asyncio.wait_for(played(agent(tmp_path, code), context()), 60)
    assert await gone(int(answer))


def test_a_program_that_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    for command in ([], ["no-such-program-anywhere"], [str(tmp_path / "none")]):
        with pytest.raises(ConfigError):
            ExternalAgent(command)
    with pytest.raises(ConfigError, match="folder"):
        ExternalAgent([sys.executable], cwd=tmp_path / "none")
    assert ExternalAgent(f"{sys.executable} 'my agent.py'").command == [
        sys.executable,
        "my agent.py",
    ]
