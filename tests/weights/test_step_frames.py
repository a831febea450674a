"""How far a training step is from its engine, and that the step stands on one page in its order."""

from __future__ import annotations

import ast
import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from contract.source_tree import modules, tree

import tutelage
from tutelage.engine.protocol import Request
from tutelage.runs import lifecycle
from tutelage.runs.folder import create
from tutelage.runs.progress import Progress
from tutelage.testing import ScriptedEngine
from tutelage.weights import inputs
from tutelage.weights.config import resolve
from tutelage.weights.kinds import training
from tutelage.weights.loop import TrainingLoop

from .samples import LAPTOP
from .tiny_job import material, overrides

SOURCE = str(Path(tutelage.__file__).parent)
MOST_FRAMES = 9
"""Inside the package, between the step and the engine's `sample`."""
MOST_LINES = 120
PAGE = [
    "play_groups",
    "free",
    "make_rows",
    "estimate_advantages",
    "optimize",
    "hand_over_weights",
    "record",
]
"""Play the groups, free what engines hold, make rows, estimate advantages, loss and optimizer step,
hand the weights to the engine, record."""


class Chains:
    """The frames that led to a call: up its own task, and on from what created that task."""

    def __init__(self) -> None:
        self._created: dict[asyncio.Task[Any], list[CodeType]] = {}

    def factory(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        """Makes the loop's tasks, and remembers from where."""
        task = asyncio.Task(work, loop=loop, **options)
        self._created[task] = self.upward(sys._getframe(1))
        return task

    def upward(self, frame: FrameType | None) -> list[CodeType]:
        """The package's code from a frame up to the step, the innermost first."""
        found: list[CodeType] = []
        while frame is not None:
            code = frame.f_code
            if code is asyncio.Handle._run.__code__:
                task = asyncio.current_task()
                return found if task is None else found + self._created[task]
            if code.co_filename.startswith(SOURCE):
                found.append(code)
            frame = frame.f_back
        return found


@pytest.fixture
def chain(one_thread: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[CodeType]:
    """From the engine's `sample` up to the step of a small run."""
    chains, seen = Chains(), list[list[CodeType]]()

    def answer(_: Request) -> str:
        seen.append(chains.upward(sys._getframe(1)))
        return "It is 42"

    monkeypatch.setattr(
        inputs, "make_engine", lambda policy, **_: ScriptedEngine(policy.codec, answer)
    )
    source = tmp_path / "source"
    source.mkdir()
    keys = overrides(material(source), trainer__total_training_steps=1)
    run = training(resolve("math", keys, machine=LAPTOP))
    run.loop.get_loop().set_task_factory(chains.factory)
    lifecycle.start(run, create(tmp_path / "run"), Progress())
    step = TrainingLoop.step.__code__
    (found, *_) = [codes[: codes.index(step) + 1] for codes in seen if step in codes]
    return found


def test_between_a_step_and_its_engine_there_are_few_calls(chain: list[CodeType]) -> None:
    names = [code.co_qualname for code in chain]
    assert names[0] == "ScriptedEngine.sample"
    assert names[-1] == "TrainingLoop.step"
    assert len(names) - 2 <= MOST_FRAMES, "\n".join(names)


def test_the_step_stands_on_one_page_in_its_order() -> None:
    module = "tutelage.weights.loop"
    assert len(modules()[module].read_text().splitlines()) <= MOST_LINES
    (step,) = (n for n in ast.walk(tree(module)) if isinstance(n, ast.FunctionDef))
    calls = [ast.unparse(node.func) for node in ast.walk(step) if isinstance(node, ast.Call)]
    names = [call.rpartition(".")[2] for call in calls]
    assert [name for name in names if name != "child"] == PAGE
