"""Play an agent through the gateway with scripted replies, and keep what was recorded.

The agent, the gateway, the session and the codec are the real ones; only the model is replaced, by
an engine that knows each task's gold tool call and answer. What comes back are rollouts whose calls
have token ids, so `build_rows` makes training rows of them: exactly the tokens that this
framework's requests would be trained on. What is played is a `Player`: one of the frameworks
here, or an example of its own such as `examples/agno_math`. `try_all.py` prints a table of them,
`cold_start.py` trains on them.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import distributions
from types import ModuleType
from typing import Any, Protocol

from calculator import Server

from tutelage.agents.function import as_agent
from tutelage.engine.protocol import Request
from tutelage.gateway import Gateway
from tutelage.policy.codec import Codec
from tutelage.resources import LLM, POLICY, NamedResources, Roles
from tutelage.rewards import resolve_reward
from tutelage.rollouts.models import GatewayModelProvider, PolicySource
from tutelage.rollouts.runner import RolloutSpec, Runner, RunnerSettings
from tutelage.seeds import SeedTree
from tutelage.tasks.arithmetic import make_tasks
from tutelage.testing import ScriptedEngine
from tutelage.types import Mode, Rollout, Sampling, Task

Script = Callable[[Task, int], str]
"""What the model says to a task in its n-th call of a rollout."""


class Player(Protocol):
    """An agent with tasks, and what a good model and a lazy one would say to them."""

    @property
    def name(self) -> str:
        """What its seeds are drawn by."""
        ...

    def agent(self, api: str, stream: bool) -> Callable[..., Any]:
        """The agent, as `Trainer` takes it."""
        ...

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """Tasks for it."""
        ...

    def gold(self) -> Script:
        """The right tool call, then the answer."""
        ...

    def lazy(self, rng: random.Random) -> Script:
        """An answer without a tool."""
        ...


@dataclass(frozen=True)
class Framework:
    """One of them: its example's module, what must be installed, and what it can do."""

    name: str
    module: str
    packages: tuple[str, ...]
    """What must be installed."""
    apis: tuple[str, ...] = ("chat", "responses")
    final: str | None = None
    """The tool by which it wants the answer to be given; None for plain text."""

    def installed(self) -> bool:
        """Whether they all are."""
        return all(any(distributions(name=package)) for package in self.packages)

    def load(self) -> ModuleType:
        """The example."""
        return importlib.import_module(self.module)

    def agent(self, api: str = "chat", stream: bool = False) -> Callable[..., Any]:
        """The example's agent, asking that way where its framework has the choice."""
        module = self.load()
        if asyncio.iscoroutinefunction(module.solve):

            async def agent(task: dict[str, Any], llm: LLM) -> str:
                return await module.solve(task["question"], _server(llm, api, stream))
        else:

            def agent(task: dict[str, Any], llm: LLM) -> str:
                return module.solve(task["question"], _server(llm, api, stream))

        return agent

    def tasks(self, split: str, n: int, seed: int = 0) -> list[Task]:
        """Calculations."""
        return calculations(split, n, seed)

    def gold(self) -> Script:
        """The calculator, then the answer."""
        return gold(self)

    def lazy(self, rng: random.Random) -> Script:
        """A guess."""
        return guesses(self, rng)


FRAMEWORKS = {
    f.name: f
    for f in (
        Framework("openai", "openai_agent", ("openai",)),
        Framework("anthropic", "anthropic_agent", ("anthropic",), ("messages",)),
        Framework("agno", "agno_agent", ("agno", "openai")),
        Framework("openai-agents", "openai_agents_agent", ("openai-agents",)),
        Framework("agent-framework", "agent_framework_agent", ("agent-framework-openai",)),
        Framework("langgraph", "langgraph_agent", ("langgraph", "langchain-openai")),
        Framework("pydantic-ai", "pydantic_ai_agent", ("pydantic-ai-slim", "openai")),
        Framework(
            "smolagents", "smolagents_agent", ("smolagents", "openai"), ("chat",), "final_answer"
        ),
    )
}


def calculations(split: str, n: int, seed: int = 0) -> list[Task]:
    """Tasks of the embedded job that need the calculator alone, such as `What is 17 * 23?`."""
    drawn = make_tasks("default", split, 5 * n // 2 + 50, seed)  # pyright: ignore[reportArgumentType]
    return [t for t in drawn if t.fields["family"] == "arithmetic"][:n]


def call_text(name: str, **arguments: Any) -> str:
    """A tool call as a model of the Hermes format writes it."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def gold(framework: Framework) -> Script:
    """The task's own tool call, then its answer."""

    def say(task: Task, turn: int) -> str:
        if turn == 0:
            (call,) = task.fields["calls"]
            return call_text(call["name"], **call["arguments"])
        return answer_text(framework, task.fields["answer"])

    return say


def guesses(framework: Framework, rng: random.Random) -> Script:
    """A number of the right length, without asking the calculator: what a lazy policy does."""

    def say(task: Task, turn: int) -> str:
        answer = task.fields["answer"]
        sign, digits = ("-", answer[1:]) if answer.startswith("-") else ("", answer)
        low = 10 ** (len(digits) - 1) if len(digits) > 1 else 0
        return answer_text(framework, sign + str(rng.randint(low, 10 ** len(digits) - 1)))

    return say


def answer_text(framework: Framework, answer: str) -> str:
    """The final answer in the form that the framework wants."""
    return call_text(framework.final, answer=answer) if framework.final else answer


async def play(
    player: Player,
    tasks: Sequence[Task],
    codec: Codec,
    script: Script,
    *,
    api: str = "chat",
    stream: bool = False,
    at_once: int = 16,
    max_length: int = 8192,
    resources: Mapping[str, Any] | None = None,
) -> list[Rollout]:
    """Play each task once and return the rollouts, rewarded and with all calls on record.

    `resources` are what the agent is given beside its LLM. All of a program should play in one
    event loop: frameworks keep their HTTP clients.
    """
    seeds = SeedTree(0).child("gather", player.name, api, stream)
    specs = [RolloutSpec(t, Mode.TRAIN, t.id, 0, seeds.child(i)) for i, t in enumerate(tasks)]
    of_attempt = {s.seeds.child("attempt", 0).id("att"): s.task for s in specs}
    turns: Counter[str] = Counter()

    def reply(request: Request) -> str:
        attempt = request.session.split("/")[0]
        turns[attempt] += 1
        return script(of_attempt[attempt], turns[attempt] - 1)

    engine = ScriptedEngine(codec, reply, max_length=max_length)
    given = NamedResources({"llm": LLM(trainable=True), **(resources or {})})
    source = PolicySource(engine, codec, Sampling(), POLICY)
    with Gateway() as gateway:
        models = GatewayModelProvider(
            gateway, given, Roles({"llm": POLICY}, (), {}), {"llm": source}
        )
        runner = Runner(
            as_agent(player.agent(api, stream)),
            models,
            RunnerSettings("gather", timeout=60, attempts=1, concurrency=at_once),
            reward=resolve_reward("math"),
            resources=given,
        )
        return await runner.run(specs)


def _server(llm: LLM, api: str, stream: bool) -> Server:
    return replace(Server.of(llm), api=api, stream=stream)
