"""Built-in agents drive an environment; rewards of turns are on record and in the rows."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.store import samples
from tests.weights.samples import config

from tutelage.agents.react import ReactAgent
from tutelage.agents.tool_calling import ToolCallingAgent
from tutelage.engine.driver import EngineDriver
from tutelage.environments import EnvironmentFactory, Observation, Step, as_factory
from tutelage.rollouts.models import EngineModelProvider, ModelProvider
from tutelage.rollouts.rows import build_rows
from tutelage.rollouts.runner import RolloutSpec, Runner, RunnerSettings
from tutelage.seeds import SeedTree
from tutelage.statistics.outcome import Success, is_success
from tutelage.store import open_store
from tutelage.testing import ScriptedEngine, tiny_engine, tiny_policy
from tutelage.tools import resolve_tools
from tutelage.tracing.rollout import rollout_spans
from tutelage.types import Failure, FailureCause, Message, Mode, Reward, Rollout, Sampling, Task
from tutelage.weights.batch import make_rows

from .samples import TASK, Counter, Guess, factory

SAMPLING = Sampling(max_tokens=200)


async def play(
    agent: Any, models: ModelProvider, environment: EnvironmentFactory, **settings: Any
) -> Rollout:
    runner = Runner(agent, models, RunnerSettings("r", **settings), environment=environment)
    (rollout,) = await runner.run([RolloutSpec(TASK, Mode.TRAIN, "g", 0, SeedTree(5))])
    return rollout


def scripted(tiny: Any, *replies: Any) -> EngineModelProvider:
    codec = tiny("qwen2").codec
    return EngineModelProvider(ScriptedEngine(codec, replies), codec)


def call_text(name: str, arguments: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


async def test_replies_are_steps_until_the_end(tiny: Any) -> None:
    rollout = await play(ToolCallingAgent({}, SAMPLING), scripted(tiny, *"999"), factory(Guess))
    attempt = rollout.last
    shown = [m.content for m in attempt.calls[-1].messages if m.role == "user"]
    assert shown == ["Guess my number.", "From 1 to 5.", "no", "no"]
    assert [c.reward for c in attempt.calls] == [-0.1] * 3
    assert [c.info for c in attempt.calls] == [{"turn": i, "success": False} for i in (1, 2, 3)]
    assert attempt.info == {"start": True, "turn": 3, "success": False}
    assert (attempt.stop, attempt.answer, attempt.failure) == ("truncated", "9", None)
    assert rollout.reward == Reward(sum([-0.1] * 3), {"exact": 0.0})
    assert not is_success(rollout)
    assert not is_success(rollout, Success.parse(">=-5")), "the environment says what success is"


async def test_all_calls_of_a_reply_are_one_step(tiny: Any) -> None:
    reply = call_text("buy", '{"count": 1}') + call_text("buy", '{"count": 2}')
    models = scripted(tiny, call_text("buy", "{}"), reply)
    rollout = await play(ToolCallingAgent({}, SAMPLING), models, as_factory(Counter))
    first, second = rollout.last.calls
    assert [spec.name for spec in first.tools] == ["buy"]
    assert [m.content for m in first.messages if m.role == "user"][-1] == "Buy 3 pens."
    errors = [r.error for r in rollout.last.tool_results]
    assert errors == ["invalid_arguments", None, None]
    assert second.messages[-1].role == "tool"
    assert (first.reward, second.reward) == (0.0, 0.3)
    assert rollout.last.stop == "terminated"


async def test_own_tools_of_the_agent_are_no_step(tiny: Any) -> None:
    models = scripted(
        tiny,
        call_text("calculator", '{"expression": "1+2"}'),
        call_text("buy", '{"count": 3}'),
    )
    agent = ToolCallingAgent(resolve_tools(["calculator"]), SAMPLING)
    rollout = await play(agent, models, as_factory(Counter))
    assert [r.text for r in rollout.last.tool_results] == ["3", "3 bought"]
    assert [c.reward for c in rollout.last.calls] == [None, 0.3]
    assert {s.name for s in rollout.last.calls[0].tools} == {"calculator", "buy"}


async def test_react_reads_and_words_the_environments_tools(tiny: Any) -> None:
    models = scripted(tiny, "Action: buy\nAction Input: 1", "Action: buy\nAction Input: 5")
    rollout = await play(ReactAgent({}, SAMPLING), models, as_factory(Counter))
    system, *_, last = rollout.last.calls[1].messages
    assert "- buy: Buy pens. Arguments: count." in (system.content or "")
    assert last == Message("user", "Observation: 1 bought")
    assert rollout.reward is not None
    assert rollout.reward.value == pytest.approx(0.6)


class Doors:
    """Offers actions, of which the last ends it."""

    async def reset(self, task: Task, seed: int) -> Observation:
        return Observation((Message("user", "Where?"),), ("open the door", "wait"))

    async def step(self, action: Message) -> Step:
        right = action.content == "open the door"
        assert right or action.content == "wait"
        shown = Observation((Message("user", "It is shut."),), ("open the door", "wait"))
        return Step(shown, float(right), right)

    async def close(self) -> None: ...


async def test_offered_actions_are_a_grammar() -> None:
    policy = tiny_policy(max_positions=1024)
    models = EngineModelProvider(EngineDriver(tiny_engine(policy)), policy.codec)
    rollout = await play(ToolCallingAgent({}, SAMPLING, max_turns=8), models, factory(Doors))
    assert rollout.last.failure is None
    replies = [c.answer.strip() for c in rollout.last.calls]
    assert set(replies) <= {"open the door", "wait"}
    (row,) = build_rows(rollout.last.calls)
    assert row.narrowed
    assert sum(row.mask) < sum(len(c.sampled.token_ids) for c in rollout.last.calls)


class Slow(Guess):
    """Takes another time for each step."""

    async def step(self, action: Message) -> Step:
        await asyncio.sleep(0.02 * random.random())
        return await Guess.step(self, replace(action, content=str(len(action.content or "") % 5)))


async def test_an_equal_seed_is_an_equal_rollout_bit_for_bit() -> None:
    policy = tiny_policy(max_positions=1024)

    async def once() -> list[Rollout]:
        models = EngineModelProvider(EngineDriver(tiny_engine(policy)), policy.codec)
        agent = ToolCallingAgent({}, Sampling(max_tokens=8))
        runner = Runner(agent, models, RunnerSettings("r"), environment=factory(Slow))
        return await runner.run(
            [RolloutSpec(TASK, Mode.TRAIN, "g", i, SeedTree(5).child(i)) for i in range(6)]
        )

    first, second = await once(), await once()
    assert [r.last.failure for r in first] == [None] * 6
    assert [r.last.calls for r in first] == [r.last.calls for r in second]
    assert [(r.reward, r.last.info) for r in first] == [(r.reward, r.last.info) for r in second]


# ---------------------------------------------------------------- rows, store, trace


async def test_a_turns_reward_is_on_the_last_trained_token_of_its_turn(tiny: Any) -> None:
    rollout = await play(ToolCallingAgent({}, SAMPLING), scripted(tiny, *"999"), factory(Guess))
    batch = make_rows([rollout, replace(rollout, id="other", index=1)], config())
    (row,) = build_rows(rollout.last.calls)
    ends = [len(c.prompt_ids) + len(c.sampled.token_ids) - 1 for c in rollout.last.calls]
    assert [column for column, _ in row.rewards] == ends
    expected = torch.zeros(len(row.ids))
    expected[ends] = -0.1
    assert torch.allclose(batch.rewards_BT[0], expected, atol=1e-6)
    assert all(row.mask[column] == 1 for column, _ in row.rewards)


async def test_what_a_failure_earns_is_on_the_last_turn(tiny: Any) -> None:
    rollout = await play(ToolCallingAgent({}, SAMPLING), scripted(tiny, *"999"), factory(Guess))
    failed = replace(rollout.last, reward=Reward(-0.3 - 1.0))
    failed = replace(failed, failure=Failure(FailureCause.AGENT_ERROR, "x"))
    batch = make_rows([replace(rollout, attempts=(failed,))] * 2, config())
    (row,) = build_rows(failed.calls)
    (a, _), (b, _), (c, _) = row.rewards
    values = batch.rewards_BT[0]
    assert [float(values[i]) for i in (a, b, c)] == pytest.approx([-0.1, -0.1, -1.1], abs=1e-6)


async def test_a_reward_function_is_on_the_last_token_alone(tiny: Any) -> None:
    rollout = await play(ToolCallingAgent({}, SAMPLING), scripted(tiny, *"999"), factory(Guess))
    graded = replace(rollout.last, reward=Reward(0.7))
    batch = make_rows([replace(rollout, attempts=(graded,))] * 2, config())
    assert batch.rewards_BT[0].nonzero().tolist() == [[len(batch.rows[0].ids) - 1]]
    assert float(batch.rewards_BT[0].sum()) == pytest.approx(0.7)


async def test_store_and_trace_keep_turns(tiny: Any, tmp_path: Path) -> None:
    rollout = await play(ToolCallingAgent({}, SAMPLING), scripted(tiny, *"999"), factory(Guess))
    spans = rollout_spans(rollout, content=True)
    chats = [s.attributes for s in spans if s.name.startswith("chat")]
    assert [a["tutelage.turn.reward"] for a in chats] == [-0.1] * 3
    assert "success" in str(chats[0]["tutelage.turn.info"])
    with open_store(tmp_path / "store.db") as store:
        store.put_run("r", **samples.RUN)
        store.put_rollouts([rollout])
        (kept,) = store.rollouts("r")
    assert kept == rollout
    assert kept.last.info == rollout.last.info
    assert [(c.reward, c.info) for c in kept.last.calls] == [
        (c.reward, c.info) for c in rollout.last.calls
    ]
