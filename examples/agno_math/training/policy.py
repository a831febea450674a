"""The small policy that sft and rl train where nobody brings a model; it speaks this agent's
requests.

Real models know how to read an Agno request; one of 0.6 M parameters, made here, knows nothing. So
it is cold-started as the frameworks' examples are (`examples/frameworks/cold_start.py`): the agent
plays with scripted replies through the gateway, and what was recorded is what the policy learns,
first right calls, then mostly guesses without a tool. `sft` and `rl` both begin with it.
`demonstrations` writes what `sft` learns from: the same kind of record, of training tasks, without
the guesses.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "frameworks"))

from cold_start import Recipe, cold_start, with_template
from gather import Script, play

from training.agent import resources, solve
from training.dataset import MathTask, generate
from tutelage.errors import ModelError
from tutelage.files import describe_folder
from tutelage.policy.codec import Codec
from tutelage.testing import tiny_policy
from tutelage.types import Call, Task

RECORD = "cold_start.json"


class AgnoMath:
    """This agent as `gather.play` and `cold_start` play it, with the seed prompt."""

    name = "agno_math"

    def agent(self, api: str = "chat", stream: bool = False) -> Callable[..., Any]:
        """The rollout itself."""
        return solve

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """Problems of this example, drawn by another seed; none of them is a test task."""
        return [
            Task(made.id, {**made.as_task().fields, "call": [made.tool, made.arguments]})
            for made in generate(split, n, seed + 1_000_000)
        ]

    def gold(self) -> Script:
        """The task's tool call, then the number."""

        def say(task: Task, turn: int) -> str:
            if turn == 0:
                name, arguments = task.fields["call"]
                return _call(name, arguments)
            return str(task.fields["expected_answer"])

        return say

    def lazy(self, rng: random.Random) -> Script:
        """A number of the right length, without any tool."""

        def say(task: Task, turn: int) -> str:
            digits = len(str(abs(int(task.fields["expected_answer"]))))
            return str(rng.randint(10 ** (digits - 1), 10**digits - 1))

        return say


async def base_policy(
    place: Path, *, seed: int = 0, recipe: Recipe | None = None, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Make the policy in a folder, unless it is there; returns what is known of its making.

    Raises `ModelError` for a folder that holds something else.
    """
    record = place / RECORD
    if not record.is_file():
        if (content := describe_folder(place)) is not None:
            raise ModelError(
                f"no policy can be made in {str(place)!r}: {content}; name another folder"
            )
        say(f"making the policy that sft and rl begin with, once, in {place}")
        started = await cold_start(AgnoMath(), recipe, seed=seed, say=say, resources=resources())
        started.policy.save(place)
        told = {
            "max_len": started.max_len,
            "prompt_tokens": started.prompt_tokens,
            "steps": started.steps,
            "known": started.known,
            "calls": started.calls,
        }
        record.write_text(json.dumps(told, indent=2) + "\n")
    return json.loads(record.read_text())


def any_codec() -> Codec:
    """For demonstrations of a model of any template: their rows are messages, not tokens."""
    return with_template(tiny_policy(max_positions=16384)).codec


async def demonstrations(tasks: Sequence[MathTask], codec: Codec, file: Path) -> Path:
    """Play each task with its right tool call and write what was said as chat rows."""
    shown = [Task(t.id, {**t.as_task().fields, "call": [t.tool, t.arguments]}) for t in tasks]
    player = AgnoMath()
    played = await play(player, shown, codec, player.gold(), resources=resources())
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = [_row(r.last.calls[-1]) for r in played if r.last.calls]
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return file


def _call(name: str, arguments: dict[str, Any]) -> str:
    """A tool call to the letter as the chat template writes one, so that what the policy samples
    and a demonstration that is rendered are the same tokens."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _row(last: Call) -> dict[str, Any]:
    """The whole conversation, as Agno sent it and as it was answered."""
    messages = [message.to_dict() for message in (*last.messages, last.reply)]
    return {"messages": messages, "tools": [tool.to_dict() for tool in last.tools]}
