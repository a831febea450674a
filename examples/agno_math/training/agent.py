"""The agent: Agno with two tools, whose prompt is a list of instructions, as a rollout.

`AgentManager` makes an Agno agent from a prompt and a model. `solve` is the rollout: the agent
answers the task's question, the answer is graded, and the reward is returned. Which model answers
is not its business: a prompt search gives it the endpoint of `.env`, training of weights gives it
the policy, each through Tutelage's gateway, which records every call.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any
from weakref import WeakKeyDictionary

from agno.agent import Agent
from agno.db.base import BaseDb
from agno.models.openai import OpenAILike
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from training.config import SEED_PROMPT
from training.grader import grade
from tutelage import LLM, PromptTemplate, Rollout, ToolError, rollout
from tutelage.tools import builtin

_MARK = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")


_CLIENTS: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = WeakKeyDictionary()


def http_client() -> Any:
    """One HTTP client for all rollouts of an event loop: making one costs 20 ms of processor time,
    most of it for reading root certificates."""
    loop = asyncio.get_running_loop()
    if loop not in _CLIENTS:
        _CLIENTS[loop] = DefaultAsyncHttpxClient()
    return _CLIENTS[loop]


def sum_1_to_n(n: int) -> str:
    """Add up the integers from 1 to n.

    Args:
        n: The last integer of the sum.
    """
    try:
        return str(builtin.sum_1_to_n(n))
    except ToolError as error:
        return f"error: {error}"


def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: Numbers with + - * / and parentheses, such as 17*23+5.
    """
    try:
        return str(builtin.calculator(expression))
    except ToolError as error:
        return f"error: {error}"


def parse_instructions(prompt: str) -> list[str]:
    """A prompt as the list of instructions that Agno takes: one a line or sentence."""
    lines = (_MARK.sub("", line).strip() for line in prompt.splitlines())
    return [part for line in lines if line for part in _SENTENCE.split(line)]


class AgentManager:
    """Makes agents; one for each rollout, since eight of them play at once."""

    def __init__(self, database: BaseDb | None = None, *, max_turns: int = 4, most: int = 2000):
        """`most` rollouts get a session in the database."""
        self.database, self.max_turns, self.left = database, max_turns, most

    def __repr__(self) -> str:
        # Part of the search's fingerprint: what changes an answer stands here, and nothing else.
        return f"AgentManager(max_turns={self.max_turns})"

    def agent(self, prompt: str, llm: LLM, session: str) -> Agent:
        """An agent with a prompt and a model. Rollouts of one event loop share connections."""
        client = AsyncOpenAI(
            base_url=llm.endpoint, api_key=llm.api_key or "none", http_client=http_client()
        )
        kept = self.database if self.left > 0 else None
        self.left -= 1
        return Agent(
            model=OpenAILike(id=llm.model or llm.name, async_client=client),
            instructions=parse_instructions(prompt),
            tools=[sum_1_to_n, calculator],
            tool_call_limit=self.max_turns - 1,
            db=kept,
            session_id=session,
            telemetry=False,
        )


def resources(prompt: str = SEED_PROMPT, manager: AgentManager | None = None) -> dict[str, Any]:
    """What the rollout is given beside its model."""
    return {
        "prompt_template": PromptTemplate(prompt),
        "manager": AgentManager() if manager is None else manager,
    }


@rollout
async def solve(
    task: dict[str, Any],
    llm: LLM,
    prompt_template: PromptTemplate,
    manager: AgentManager,
    rollout: Rollout,
) -> dict[str, float]:
    """Play a task, grade the answer, return the reward."""
    agent = manager.agent(prompt_template.format(), llm, rollout.attempt_id)
    reply = str((await agent.arun(task["question"])).content or "")
    found = grade(reply, task["expected_answer"])
    rollout.answer, rollout.feedback = reply, found.feedback
    return {"reward": found.reward, "exact": found.exact}
