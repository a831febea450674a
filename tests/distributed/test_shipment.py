"""What cannot be sent to a worker, or loaded there, is refused by its name."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.distributed.ray_parts import ray_session

from tutelage import LLM, RL, Trainer, rollout
from tutelage.distributed.shipment import (
    check_versions,
    load_shipment,
    put_inputs,
    put_part,
    versions,
)
from tutelage.errors import ConfigError
from tutelage.resources import POLICY
from tutelage.testing import tiny_policy
from tutelage.tools.loading import load_attribute
from tutelage.weights.kinds import make_job

ROWS = [{"id": str(n), "question": f"{n}?"} for n in range(8)]


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with ray_session() as started:
        yield started


def sent(agent: Any, **arguments: Any) -> dict[str, tuple[str, list[Any]]]:
    """What a worker would get of a training of an agent."""
    algorithm = RL()
    trainer: Any = Trainer(
        algorithm=algorithm, policy=tiny_policy(), train_dataset=ROWS, output_dir="out", **arguments
    )
    resolved, _, given = trainer._prepare(algorithm, agent, None, None, Path("out"))
    return dict(put_inputs(make_job(resolved, given).make_inputs()))


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None, ray: Any) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_agent_arrives_with_its_resources_and_policies() -> None:
    bonus = 0.5

    @rollout
    async def solve(task: Any, llm: LLM, extra: float) -> float:
        return bonus + extra

    parts = asyncio.run(load_shipment(sent(solve, resources={"extra": 0.25}), "here"))
    assert parts.agent is not None
    assert parts.agent.name == "solve"
    assert parts.resources["extra"] == 0.25
    assert parts.play == (64, "none", True)
    assert parts.config.rollout.max_len, "memory of the worker does not decide"
    assert parts.policies[POLICY].count() == tiny_policy().count()


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ("agent", r"cannot send the agent 'solve', in 'gate',.*lock"),
        ("resource", r"cannot send the resource 'client'.*placement=local"),
        ("reward", r"cannot send the reward 'careful', in 'gate',"),
    ],
)
def test_what_cannot_be_sent_is_named(part: str, told: str) -> None:
    gate = threading.Lock()

    @rollout
    async def solve(task: Any, llm: LLM) -> float:
        with gate:
            return 1.0

    @rollout
    async def plain(task: Any, llm: LLM, client: Any = None) -> str:
        return "1"

    def careful(prediction: str) -> float:
        with gate:
            return 1.0

    more = {"resource": {"resources": {"client": gate}}, "reward": {"reward": careful}}
    with pytest.raises(ConfigError, match=told):
        sent(solve if part == "agent" else plain, **more.get(part, {}))


def test_a_function_of_a_file_arrives_with_its_code(
    ray: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker could import the module that was made of the file."""
    (place / "own.py").write_text("FACTOR = 3\n\n\ndef triple(x):\n    return FACTOR * x\n")
    function: Any = load_attribute(f"{place / 'own.py'}:triple", "function")
    reference = put_part("it", function)
    monkeypatch.delitem(sys.modules, function.__module__)
    assert ray.get(reference)(5) == 15


def test_a_module_that_is_not_there_is_said_with_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("only_here")
    exec("class Thing:\n    pass\n", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    shipment = {"agent": ("the agent 'a'", [put_part("it", module.Thing())])}
    monkeypatch.delitem(sys.modules, "only_here")
    with pytest.raises(ConfigError, match=r"'node7' cannot load the agent 'a'.*only_here.*Install"):
        asyncio.run(load_shipment(shipment, "node7"))


def test_another_python_is_refused() -> None:
    check_versions(versions(), "node7")
    name = "python"
    with pytest.raises(ConfigError, match=f"'node7' has {name} .* this run has 0.1, .*install"):
        check_versions({**versions(), name: "0.1"}, "node7")
