"""How far a training step is from its command and from what it calls, and that the step stands on
one page in its order."""

from __future__ import annotations

import ast
import asyncio
import itertools
import sys
from collections.abc import Coroutine
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from contract.source_tree import modules, tree
from typer.testing import CliRunner

import tutelage
from tutelage.cli import build_app
from tutelage.engine.protocol import Request
from tutelage.rollouts import runner
from tutelage.testing import ScriptedEngine
from tutelage.weights import placement
from tutelage.weights.loop import TrainingLoop

from .tiny_job import material, overrides

SOURCE = str(Path(tutelage.__file__).parent)
MOST_FRAMES = {"sample": 7, "reward": 6, "backward": 4, "optimizer": 3}
"""Inside the package, between the step and what it calls in the end."""
MOST_FROM_THE_COMMAND = 8
"""Between the function of `tutelage train` and the step."""
MOST_FILES, MOST_LINES_OF_FILES = 15, 3_970
"""On all these stacks."""
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
        """The package's code from a frame up to the command, the innermost first."""
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
def stacks(
    one_thread: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, list[CodeType]]:
    """What leads from the command to the engine's `sample`, the reward, `backward` and the
    optimizer's `step` in a small run, the innermost first."""
    chains, seen, step = Chains(), dict[str, list[CodeType]](), TrainingLoop.step.__code__
    words = itertools.cycle(["It is 42", "It is 4", "No"])

    def record(name: str) -> None:
        codes = chains.upward(sys._getframe(2))
        if step in codes:
            seen.setdefault(name, codes)

    def recording(place: Any, name: str, attribute: str) -> None:
        known = getattr(place, attribute)

        def called(*arguments: Any, **options: Any) -> Any:
            record(name)
            return known(*arguments, **options)

        monkeypatch.setattr(place, attribute, called)

    def answer(_: Request) -> str:
        record("sample")
        return next(words)

    def looped() -> asyncio.AbstractEventLoop:
        made: Any = new_loop()
        made.set_task_factory(chains.factory)
        return made

    new_loop = asyncio.events.new_event_loop
    monkeypatch.setattr(asyncio.events, "new_event_loop", looped)
    monkeypatch.setattr(
        placement, "make_engine", lambda policy, **_: ScriptedEngine(policy.codec, answer)
    )
    recording(runner, "reward", "compute_reward")
    recording(torch.Tensor, "backward", "backward")
    recording(torch.optim.AdamW, "optimizer", "step")
    source = tmp_path / "source"
    source.mkdir()
    keys = overrides(material(source), trainer__total_training_steps=1)
    done = CliRunner().invoke(
        build_app(), ["train", "math", "--output", str(tmp_path / "r"), *keys]
    )
    assert done.exit_code == 0, done.output
    return seen


def test_between_the_command_the_step_and_what_it_calls_there_are_few_calls(
    stacks: dict[str, list[CodeType]],
) -> None:
    assert stacks.keys() == MOST_FRAMES.keys()
    files: set[str] = set()
    for name, codes in stacks.items():
        named = [f"{Path(code.co_filename).name}: {code.co_qualname}" for code in codes]
        step, command = named.index("loop.py: TrainingLoop.step"), named.index("train.py: train")
        below = step - 1 if name == "sample" else step
        assert below <= MOST_FRAMES[name], "\n".join(named)
        assert command - step - 1 <= MOST_FROM_THE_COMMAND, "\n".join(named)
        files |= {code.co_filename for code in codes[: command + 1]}
    lines = {file: len(Path(file).read_text().splitlines()) for file in files}
    assert len(files) <= MOST_FILES, lines
    assert sum(lines.values()) <= MOST_LINES_OF_FILES, lines


def test_the_step_stands_on_one_page_in_its_order() -> None:
    module = "tutelage.weights.loop"
    assert len(modules()[module].read_text().splitlines()) <= MOST_LINES
    functions = (n for n in ast.walk(tree(module)) if isinstance(n, ast.FunctionDef))
    (step,) = (n for n in functions if n.name == "step")
    calls = [node for node in ast.walk(step) if isinstance(node, ast.Call)]
    calls.sort(key=lambda node: (node.lineno, node.col_offset))
    names = [ast.unparse(node.func).rpartition(".")[2] for node in calls]
    assert [name for name in names if name in PAGE] == PAGE
