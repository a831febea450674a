"""Agents in processes of their own: what comes back, and how a bad one ends."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent.parent / "rollouts"))  # their parts are shared

from isolated_agents import Counts, bad, blocking, speaks
from live_parts import play, specs

from tutelage import rollout
from tutelage.agents.function import as_agent
from tutelage.agents.isolated import IsolatedAgent
from tutelage.agents.loading import load_agent
from tutelage.errors import ConfigError
from tutelage.gateway import Gateway
from tutelage.tools.loading import load_file
from tutelage.types import FailureCause, Task


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway() as made:
        yield made


@pytest.fixture
def apart() -> Iterator[Any]:
    """Makes isolated agents, and ends their workers."""
    made: list[IsolatedAgent] = []

    def make(agent: Any) -> IsolatedAgent:
        made.append(IsolatedAgent(as_agent(agent)))
        return made[-1]

    yield make
    for agent in made:
        agent.close()


async def test_rewards_marks_and_answers_come_back_and_workers_are_used_again(
    apart: Any, gateway: Gateway, tiny: Any, tmp_path: Path
) -> None:
    other = tmp_path / "reward_of_another_run.py"
    other.write_text("")
    load_file(str(other), "reward")
    other.write_text("changed = True\n")  # which is nothing to this agent
    codec = tiny("qwen2").codec
    played = await play(gateway, codec, apart(blocking), 6, concurrency=2, timeout=120)
    assert [r.reward and r.reward.value for r in played] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert all(dict(r.reward.parts) == {"extra": 0.25, "own": 1.0} for r in played if r.reward)
    processes = {r.last.answer for r in played}
    assert len(processes) == 2
    assert str(os.getpid()) not in processes


@pytest.mark.full
async def test_calls_from_another_process_are_recorded(
    apart: Any, gateway: Gateway, tiny: Any
) -> None:
    codec = tiny("qwen2").codec
    played = await play(gateway, codec, apart(speaks), 3, timeout=120)
    for i, done in enumerate(played):
        assert done.reward is not None, done.last.failure
        assert done.reward.value == 1.0
        assert [c.reply.content for c in done.last.calls] == [f"a{i}"]


async def test_a_crash_an_error_an_exit_and_a_hang_end_alone(
    apart: Any, gateway: Gateway, tiny: Any, tmp_path: Path
) -> None:
    codec = tiny("qwen2").codec
    await play(gateway, codec, apart(blocking), 1, timeout=120)  # importing takes its time
    file = tmp_path / "pids"
    chosen = [
        replace(s, task=Task(s.task.id, {**s.task.fields, "answer_file": str(file)}))
        for s in specs(6)
    ]
    agent = apart(bad)
    first = [s for s in chosen if s.task.id not in ("t3", "t5")]
    last = [s for s in chosen if s.task.id in ("t3", "t5")]
    played = await play(gateway, codec, agent, chosen=first, concurrency=3, timeout=120)
    played += await play(gateway, codec, agent, chosen=last, concurrency=2, timeout=6)
    played.sort(key=lambda r: r.task.id)
    failures = [r.last.failure for r in played]
    assert [f and f.cause for f in failures] == [
        FailureCause.AGENT_ERROR,
        FailureCause.AGENT_ERROR,
        FailureCause.AGENT_ERROR,
        FailureCause.TIMEOUT,
        None,
        None,
    ]
    words = ["exited during the rollout", "ValueError: in the other process", "SystemExit: 3"]
    for word, failure in zip(words, failures, strict=False):
        assert failure is not None
        assert word in failure.message
    assert failures[1] is not None
    assert "in bad" in (failures[1].traceback or "")
    for pid in file.read_text().split():
        for _ in range(300):
            try:
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except FileNotFoundError:
                break
            if state == "Z":
                break
            await asyncio.sleep(0.01)
        else:
            pytest.fail(f"process {pid} is still there")


@pytest.mark.full
async def test_a_class_is_sent_with_its_state(apart: Any, gateway: Gateway, tiny: Any) -> None:
    played = await play(
        gateway, tiny("qwen2").codec, apart(Counts(10)), 2, concurrency=1, timeout=120
    )
    assert [r.reward and r.reward.value for r in played] == [11.0, 12.0]


def test_an_agent_that_cannot_be_sent_is_refused() -> None:
    @rollout
    def local(task: Any) -> float:
        return 1.0

    class Holds(Counts):
        def __init__(self) -> None:
            self.lock = __import__("threading").Lock()

    with pytest.raises(ConfigError, match="in a separate process"):
        IsolatedAgent(as_agent(Holds()))
    with pytest.raises(ConfigError, match="inside a function"):
        IsolatedAgent(as_agent(local))


FILE = """
from tutelage import rollout
from {beside} import WORTH

@rollout(isolation="process")
def agent(task):
    return WORTH
"""


@pytest.mark.full
async def test_an_agent_of_a_file_is_played_apart(
    apart: Any, gateway: Gateway, tiny: Any, tmp_path: Path
) -> None:
    """Its module is one that no import finds, in the worker too."""
    codec = tiny("qwen2").codec
    (tmp_path / "beside_it.py").write_text("WORTH = 0.5\n")
    file = tmp_path / "my_agent.py"
    file.write_text(FILE.format(beside="beside_it"))
    agent = apart(load_agent(str(file))[0])
    played = await play(gateway, codec, agent, 2, timeout=120)
    assert [r.reward and r.reward.value for r in played] == [0.5, 0.5]
    agent.close()
    file.write_text(file.read_text() + "\n")
    (done,) = await play(gateway, codec, agent, 1, timeout=120, attempts=1)
    assert done.last.failure is not None
    assert f"{file} has changed since the run started" in done.last.failure.message
