"""What a program that drives one client shares with the others: the conversation, the tools, and
the lines by which `matrix.py` asks for cells.

Such a program runs in the client's own environment, so nothing of tutelage is imported here. Each
line of its input is a cell; each line of its output says what the client was answered, turn by
turn, or how it failed.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

INSTRUCTIONS = "You are careful: ask the tools, then answer in one sentence."
QUESTIONS = (
    "How is the weather in Zürich? Schreib auf Deutsch.",
    "And “tomorrow”, in São Paulo?",
    "Show me\n\tthe code: x < y && y > 'z' \\ {}",
    "Thanks 🙏 — is that all?",
)
LIMIT = 200
"""Tokens a reply may have."""


@dataclass(frozen=True)
class Cell:
    """One conversation of four turns: whom to ask, and how."""

    id: str
    api: str
    """The function of the client that is called, such as `chat`."""
    stream: bool
    tools: bool
    base_url: str
    api_key: str
    by_hand: bool = False
    """Whether a stream is read without the client's helper, where that refuses replies which end at
    the limit of tokens."""
    prefix: str = ""
    """What stands before the model's name, where a client picks its provider by that."""

    @property
    def model(self) -> str:
        """The model's name."""
        return f"{self.prefix}policy"

    @property
    def root(self) -> str:
        """The base URL as clients of Anthropic's API take it."""
        return self.base_url.removesuffix("/v1")


@dataclass(frozen=True)
class Turn:
    """What a client understood of one reply."""

    text: str
    calls: tuple[tuple[str, Any], ...] = ()
    """Name and arguments of each tool call."""


Play = Callable[[Cell], Any]
"""Plays a cell, async or not, and returns its turns."""


# ---------------------------------------------------------------- tools


def lookup(city: str, day: str) -> str:
    """Look up the weather.

    Args:
        city: Its name.
        day: Which day.
    """
    return f"{city}, {day}: 21 °C, “sunny” ☀"


def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: Such as 12*(3+4).
    """
    return {"12*(3+4)": "84"}.get(expression, "error: it cannot be read")


def now() -> str:
    """Tell the time."""
    return "2026-11-24T02:00:00+01:00"


TOOLS = (lookup, calculator, now)


def run_tool(name: str, arguments: Any) -> str:
    """What a tool says to a call."""
    found = {tool.__name__: tool for tool in TOOLS}[name]
    return found(**(json.loads(arguments or "{}") if isinstance(arguments, str) else arguments))


def schema(tool: Callable[..., str]) -> dict[str, Any]:
    """A tool's parameters as JSON schema."""
    names = list(inspect.signature(tool).parameters)
    return {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "required": names,
        "additionalProperties": False,
    }


def described(tool: Callable[..., str]) -> dict[str, Any]:
    """A tool as a function of OpenAI's APIs."""
    words = (tool.__doc__ or "").split("\n")[0]
    return {"name": tool.__name__, "description": words, "parameters": schema(tool)}


CHAT_TOOLS = [{"type": "function", "function": described(tool)} for tool in TOOLS]
FLAT_TOOLS = [{"type": "function", "strict": False, **described(tool)} for tool in TOOLS]
MESSAGES_TOOLS = [
    {
        "name": tool.__name__,
        "description": described(tool)["description"],
        "input_schema": schema(tool),
    }
    for tool in TOOLS
]


def asked_of(cell: Cell, turn: int) -> str | None:
    """What the user says at a turn; None where it is the tools' turn to speak."""
    return None if cell.tools and turn else QUESTIONS[turn]


def arguments_of(text: str) -> Any:
    """A call's arguments, which some clients show as JSON."""
    return json.loads(text or "{}")


# ---------------------------------------------------------------- the lines


def answer_cells(play: Mapping[str, Play], *packages: str) -> None:
    """Say the versions of `packages`, then answer each cell of the input, by the player of its
    `api`, until the input ends."""
    print("versions " + json.dumps({name: version(name) for name in packages}), flush=True)
    for line in sys.stdin:
        cell = Cell(**json.loads(line))
        told: dict[str, Any] = {"id": cell.id, "error": None, "turns": []}
        try:
            turns = play[cell.api](cell)
            if inspect.isawaitable(turns):
                turns = asyncio.run(_waited(turns))
            told["turns"] = [[turn.text, turn.calls] for turn in turns]
        except Exception as error:
            first = (str(error).splitlines() or [""])[0]
            told["error"] = f"{type(error).__name__}: {first}"[:300]
        print("cell " + json.dumps(told), flush=True)


async def _waited(turns: Any) -> Any:
    return await asyncio.wait_for(turns, 60)
