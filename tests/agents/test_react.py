"""The ReAct agent over a scripted model: its form, its errors, and that it always answers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tutelage.agents.builtin import template_tools
from tutelage.agents.react import ReactAgent
from tutelage.agents.session import RolloutSession
from tutelage.config import RunConfig
from tutelage.engine.chat import ChatSession
from tutelage.policy.codec import Codec
from tutelage.rollouts.rows import build_rows
from tutelage.seeds import SeedTree
from tutelage.testing import ScriptedEngine
from tutelage.tools import Tool, resolve_tools, tool
from tutelage.types import Call, Sampling, Task


@tool(inline=True)
def add(a: int, b: int = 0) -> int:
    """Add two numbers.

    Args:
        a: One.
        b: Another.
    """
    return a + b


TOOLS: dict[str, Tool] = {"add": add, **resolve_tools(["calculator", "sum_1_to_n", "answer"])}
TASK = Task("t", {"question": "What is 17 * 23?"})
STOPS = ("answer", "max_turns", "token_budget", "context")


@pytest.fixture
def codec(tiny: Any) -> Codec:
    return tiny("qwen2").codec


async def play(
    codec: Codec, script: Sequence[str], **options: Any
) -> tuple[RolloutSession, list[Call], ScriptedEngine]:
    engine = ScriptedEngine(codec, script, max_length=1 << 20)
    chat = ChatSession(engine, codec, seeds=SeedTree(0), name="att")
    outcome = RolloutSession(TASK, chat)
    agent = ReactAgent(TOOLS, Sampling(max_tokens=2000), **options)
    await agent.play(TASK, outcome, outcome.resources)
    return outcome, chat.calls, engine


def action(name: str, given: str) -> str:
    return f"Thought: try\nAction: {name}\nAction Input: {given}"


async def test_it_acts_observes_and_answers(codec: Codec) -> None:
    script = [action("calculator", '{"expression": "17*23"}'), "Thought: done\nAnswer: 391"]
    outcome, calls, engine = await play(codec, script)
    assert (outcome.answer, outcome.stop) == ("391", "answer")
    observed = calls[1].messages[-1]
    assert (observed.role, observed.content) == ("user", "Observation: 391")
    assert engine.requests[0].sampling.stop == ("Observation:",)
    assert len(build_rows(calls)) == 1
    system = calls[0].messages[0]
    assert system.role == "system"
    assert "calculator" in (system.content or "")
    assert calls[0].tools == ()


@pytest.mark.parametrize(
    "given", ["17*23", '"17*23"', '{"expression": "17*23"}', "```\n17*23\n```"]
)
async def test_a_single_parameter_may_be_given_bare(codec: Codec, given: str) -> None:
    outcome, _, _ = await play(codec, [action("calculator", given), "Answer: 391"])
    assert [(r.text, r.error) for r in outcome.tool_results] == [("391", None)]


def test_a_bare_value_takes_the_type_of_its_parameter() -> None:
    def arguments(given: str, name: str) -> str:
        text = f"Action: {name}\nAction Input: {given}"
        (called,) = ReactAgent(TOOLS, Sampling()).read_text(text, "t").calls
        return called.arguments

    assert json.loads(arguments("12", "sum_1_to_n")) == {"n": 12}
    assert json.loads(arguments("12", "calculator")) == {"expression": "12"}
    assert json.loads(arguments("twelve", "sum_1_to_n")) == {"n": "twelve"}
    assert arguments("1, 2", "add") == "1, 2"
    assert arguments('{"n": 1}', "sum_1_to_n") == '{"n": 1}'
    assert arguments("x", "nobody") == "x"


async def test_several_actions_of_a_turn_are_observed_in_their_order(codec: Codec) -> None:
    both = action("add", '{"a": 1, "b": 2}') + "\n" + action("calculator", "5*5")
    outcome, calls, _ = await play(codec, [both, "Answer: 3"])
    assert [r.text for r in outcome.tool_results] == ["3", "25"]
    assert calls[1].messages[-1].content == "Observation 1: 3\nObservation 2: 25"


async def test_the_tool_answer_ends_the_episode_too(codec: Codec) -> None:
    outcome, calls, _ = await play(codec, [action("answer", "Paris")], max_turns=1)
    assert (outcome.answer, outcome.stop, len(calls)) == ("Paris", "answer", 1)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("It is 391.", "no action and no answer"),
        ("", "no action and no answer"),
        ("Thought: hm", "no action and no answer"),
        ("Action: calculater\nAction Input: 1", "did you mean 'calculator'"),
        ("Action: add\nAction Input: {bad", "JSON"),
        ("Action: add\nAction Input: {}", "a"),
        ("Action: add", "a"),
        ("Action:\nAction Input: 1", "names no tool"),
        ("Action Input: 1", "without 'Action:'"),
        (action("calculator", "1") + "\nAnswer: 1", "write one of them"),
        ("Answer: 1\nAnswer: 2", "2 answers"),
        (action("calculator", "1") + "\nObservation: 7\nThought: so", "come from the tools"),
    ],
)
async def test_what_cannot_be_obeyed_is_answered(codec: Codec, said: str, words: str) -> None:
    outcome, calls, _ = await play(codec, [said, "Answer: x"])
    observed = calls[1].messages[-1].content or ""
    assert observed.startswith("Observation: Error:")
    assert words.lower() in observed.lower()
    assert outcome.answer == "x"


PIECES = ["Thought:", "Action:", "Action Input:", "Answer:", "Final Answer:", "Observation:",
          "calculator", "add", "nothing", "{", "}", '{"a": 1}', "1+1", "```", "\n", "\n", " ",
          "<tool_call>", "</tool_call>", "null", "[" * 50, "\u0000", "é"]  # fmt: skip


@pytest.mark.full
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), min_size=3, max_size=3)
)
async def test_any_text_is_obeyed_or_answered(codec: Codec, script: list[str]) -> None:
    outcome, calls, _ = await play(codec, script, max_turns=3)
    assert outcome.stop in STOPS
    for before, after in itertools.pairwise(calls):
        assert after.messages[: len(before.messages) + 1] == (*before.messages, before.reply)
        more = after.messages[len(before.messages) + 1 :]
        assert len(more) == 1
        assert (more[0].content or "").startswith("Observation")


def test_its_tools_stand_in_the_prompt_and_the_chat_template_need_not_know_any() -> None:
    react = RunConfig.model_validate({"agent": {"agent_type": "react"}})
    assert template_tools(react, TOOLS) == []
    assert template_tools(RunConfig(), TOOLS) == [each.spec for each in TOOLS.values()]
