"""What the agents share: a tool, an instruction, a server to ask, and a way to be a program.

Nothing here belongs to a framework. Each `<name>_agent.py` has a `solve` that plays one question
with its framework's own agent, and an `agent` that `Trainer` can train. Read `openai_agent.py`
first.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from tutelage.tools.expression import ExpressionError, evaluate, format_number

INSTRUCTIONS = (
    "You are a careful assistant. Use the calculator for every calculation, "
    "then answer with the number alone."
)
MAX_TURNS = 4


def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: Numbers with + - * and parentheses, such as 17*23+5.
    """
    try:
        return format_number(evaluate(expression))
    except ExpressionError as error:
        return f"error: {error}"


@dataclass(frozen=True)
class Server:
    """An OpenAI-compatible server, and how it is asked."""

    base_url: str
    api_key: str
    model: str = "policy"
    api: str = "chat"
    """`chat` (Chat Completions) or `responses`, where the framework has both."""
    stream: bool = False

    @staticmethod
    def of(llm: Any) -> Server:
        """The server behind the `llm` that a rollout is given."""
        return Server(llm.endpoint, llm.api_key, llm.model)

    @staticmethod
    def from_env(api: str = "chat", stream: bool = False) -> Server:
        """The server that OPENAI_BASE_URL and OPENAI_API_KEY name."""
        env = os.environ
        model = env.get("OPENAI_MODEL", "policy")
        return Server(env["OPENAI_BASE_URL"], env["OPENAI_API_KEY"], model, api, stream)


_CLIENTS: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()


def http_client(make: Callable[[], Any] | None = None) -> Any:
    """One HTTP client for all rollouts of an event loop, as `make` makes it.

    A client of its own costs each rollout 20 ms of processor time, most of it for reading root
    certificates: more than everything else that a framework does in a rollout.
    """
    loop = asyncio.get_running_loop()
    if loop not in _CLIENTS:
        if make is None:
            from openai import DefaultAsyncHttpxClient as make
        _CLIENTS[loop] = make()
    return _CLIENTS[loop]


def program(solve: Callable[..., Any]) -> None:
    """Be a program: a question on the command line, or as JSON on standard input; an answer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("question", nargs="?", help='without it: {"question": ...} on stdin')
    parser.add_argument("--api", choices=("chat", "responses"), default="chat")
    parser.add_argument("--stream", action="store_true")
    args = parser.parse_args()
    question = args.question or json.load(sys.stdin)["question"]
    answer = solve(question, Server.from_env(args.api, args.stream))
    print(asyncio.run(answer) if inspect.iscoroutine(answer) else answer)
