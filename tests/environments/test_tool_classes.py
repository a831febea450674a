"""State of a rollout: opened once, shared by its tools and its reward, closed whatever happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tutelage.agents.tool_calling import ToolCallingAgent
from tutelage.environments import rollout_environments
from tutelage.errors import ConfigError, ToolDefinitionError
from tutelage.rewards import reward
from tutelage.rollouts.models import EngineModelProvider
from tutelage.rollouts.runner import RolloutSpec, Runner, RunnerSettings
from tutelage.seeds import SeedTree
from tutelage.testing import ScriptedEngine
from tutelage.tools import execute_tool_calls, resolve_tools, tool
from tutelage.tools.tool import environment_tools
from tutelage.types import Mode, Sampling, Task, ToolCall

events: list[str] = []
TASK = Task("t", {"question": "q", "stock": 3})


class Shop:
    """A shop with that many pens."""

    def __init__(self, task: Task) -> None:
        self.left: int = task.fields.get("stock", 0)

    async def __aenter__(self) -> Shop:
        events.append("open")
        return self

    async def __aexit__(self, *_: object) -> None:
        events.append(f"close {self.left}")

    @tool(inline=True)
    def buy(self, count: int) -> str:
        """Buy pens."""
        self.left -= count
        return f"{self.left} left"

    @tool(inline=True)
    def look(self) -> int:
        """Look at what is left."""
        return self.left


@pytest.fixture(autouse=True)
def forget() -> None:
    events.clear()


async def test_tools_of_one_class_share_one_environment_for_each_rollout() -> None:
    tools = {t.name: t for t in environment_tools(Shop)}
    assert list(tools) == ["buy", "look"]
    assert tools["buy"].parameters["required"] == ["count"]
    for _ in range(2):
        async with rollout_environments(TASK) as environments:
            bound = await environments.bind(tools)
            calls = [ToolCall("1", "buy", '{"count": 2}'), ToolCall("2", "look", "{}")]
            assert [r.text for r in await execute_tool_calls(calls, bound)] == ["1 left", "1"]
            async with rollout_environments(TASK) as inner:
                assert inner is environments
    assert events == ["open", "close 1", "open", "close 1"]


@pytest.mark.parametrize("fails", [False, True])
async def test_the_reward_sees_the_environment_which_is_closed_also_when_it_raises(
    tiny: Any, fails: bool
) -> None:
    codec = tiny("qwen2").codec

    @reward
    def left(context: dict[str, Any]) -> float:
        events.append("reward")
        if fails:
            raise ValueError("no")
        return context["Shop"].left

    said = '<tool_call>{"name": "buy", "arguments": {"count": 1}}</tool_call>'
    models = EngineModelProvider(ScriptedEngine(codec, [said, "done"]), codec)
    agent = ToolCallingAgent({t.name: t for t in environment_tools(Shop)}, Sampling(max_tokens=200))
    spec = RolloutSpec(TASK, Mode.TRAIN, "g", 0, SeedTree(0))
    rollout = (await Runner(agent, models, RunnerSettings("r"), reward=left).run([spec]))[0]
    assert events == ["open", "reward", "close 2"]
    if not fails:
        assert rollout.reward is not None
        assert rollout.reward.value == 2.0


def test_a_class_in_a_file_brings_all_its_tools(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text(
        "from tutelage import tool\n"
        "class Shop:\n"
        "    async def __aenter__(self): return self\n"
        "    async def __aexit__(self, *_): pass\n"
        "    @tool\n"
        "    def buy(self, count: int) -> int:\n        return count\n"
        "class Empty:\n"
        "    async def __aenter__(self): return self\n"
        "    async def __aexit__(self, *_): pass\n"
        "class Plain: pass\n"
    )
    assert list(resolve_tools([f"{file}:Shop"])) == ["buy"]
    with pytest.raises(ToolDefinitionError, match="has no tools"):
        resolve_tools([f"{file}:Empty"])
    with pytest.raises(ConfigError, match="environment class"):
        resolve_tools([f"{file}:Plain"])
