"""examples/own_tasks: its parts, its files, and its command with a model made on the spot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tutelage.agents.tool_calling import ToolCallingAgent
from tutelage.rewards import RewardFunction, check, resolve_reward
from tutelage.rollouts.models import EngineModelProvider
from tutelage.rollouts.runner import RolloutSpec, Runner, RunnerSettings
from tutelage.seeds import SeedTree
from tutelage.tasks.dataset import Dataset
from tutelage.testing import ScriptedEngine, tiny_policy
from tutelage.tools import Tool, resolve_tools
from tutelage.types import Mode, Rollout, Sampling, Task

HERE = Path(__file__).parents[2] / "examples" / "own_tasks"
CODE = HERE / "tools_and_reward.py"
BAGS = {"question": "What do 3 bags cost?", "total": 42}


@pytest.fixture(scope="module")
def tools() -> dict[str, Tool]:
    return resolve_tools(["calculator", f"{CODE}:lookup"])


@pytest.fixture(scope="module")
def reward() -> RewardFunction:
    return resolve_reward(f"{CODE}:right_total")


async def play(
    tiny: Any, tools: dict[str, Tool], reward: RewardFunction, script: list[str]
) -> Rollout:
    """One rollout of the bags task in which the model says `script`."""
    engine = ScriptedEngine(tiny("qwen2").codec, script)
    models, agent = (
        EngineModelProvider(engine, tiny("qwen2").codec),
        ToolCallingAgent(tools, Sampling()),
    )
    runner = Runner(agent, models, RunnerSettings("test"), reward=reward)
    spec = RolloutSpec(Task("bags", BAGS), Mode.VAL, "g", 0, SeedTree(0))
    return (await runner.run([spec]))[0]


def call(name: str, **arguments: Any) -> str:
    """A turn that calls a tool."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.mark.parametrize(
    ("script", "value", "asked"),
    [
        ([call("lookup", item="bag"), call("calculator", expression="3*14"), "42"], 1.0, 1.0),
        ([call("lookup", item="bag"), "41"], 0.1, 1.0),
        ([call("lookup", item="tank"), "41"], 0.0, 0.0),
        (["42"], 1.0, 0.0),
        (["41"], 0.0, 0.0),
    ],
)
async def test_what_an_episode_earns(
    tiny: Any,
    tools: dict[str, Tool],
    reward: RewardFunction,
    script: list[str],
    value: float,
    asked: float,
) -> None:
    rollout = await play(tiny, tools, reward, script)
    assert rollout.reward is not None
    assert rollout.reward.value == pytest.approx(value)
    assert rollout.reward.parts == {"right": float(value == 1.0), "asked": asked}


def test_the_files_of_tasks_agree_with_the_price_list(
    tools: dict[str, Tool], reward: RewardFunction
) -> None:
    train, val = Dataset.load(HERE / "train.jsonl"), Dataset.load(HERE / "val.jsonl")
    for task in (*train, *val):
        _, _, count, plural, _ = task.fields["question"].split()
        item = plural.removesuffix("es") if plural == "boxes" else plural.removesuffix("s")
        assert task.fields["total"] == int(count) * tools["lookup"](item)
    assert not {t.fields["question"] for t in train} & {t.fields["question"] for t in val}
    check(reward, train)


def test_the_files_are_what_the_script_writes(tmp_path: Path) -> None:
    for name in ("make_tasks.py", "tools_and_reward.py"):
        tmp_path.joinpath(name).write_text(HERE.joinpath(name).read_text())
    subprocess.run([sys.executable, "make_tasks.py"], cwd=tmp_path, check=True, timeout=120)
    for name in ("train.jsonl", "val.jsonl"):
        assert tmp_path.joinpath(name).read_bytes() == HERE.joinpath(name).read_bytes()


@pytest.mark.full
def test_the_command_of_the_readme_trains_a_model_made_on_the_spot(tmp_path: Path) -> None:
    tiny_policy().save(tmp_path / "model")
    readme = (HERE / "README.md").read_text()
    lines = readme.replace("\\\n", " ").splitlines()
    words = next(line for line in lines if "--model runs/start/policy" in line).split()
    places = {"runs/start/policy": tmp_path / "model", "runs/shop": tmp_path / "run"}
    args = [{"30": "2"}.get(word, str(places.get(word, word))) for word in words[1:]]
    small = ["batch_size=2", "num_chains=2", "trainer.val_tasks=4", "trainer.test_freq=-1"]
    main = "from tutelage.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", main, *args, *small],
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["status"], result["rl_steps"]) == ("finished", 2)
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    first = next(line for line in map(json.loads, metrics) if line["phase"] == "rl")
    assert {"reward/mean", "reward/right", "reward/asked"} <= set(first)
    assert (tmp_path / "run" / "policy" / "model.safetensors").is_file()
