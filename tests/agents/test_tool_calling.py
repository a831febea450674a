"""The tool-calling agent, over a scripted model: every way in which an episode goes on or ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tutelage.agents.session import RolloutSession
from tutelage.agents.tool_calling import ToolCallingAgent
from tutelage.engine.chat import ChatSession
from tutelage.policy.codec import Codec
from tutelage.rollouts.rows import build_rows
from tutelage.seeds import SeedTree
from tutelage.testing import ScriptedEngine
from tutelage.tools import Tool, ToolError, tool
from tutelage.types import Call, Constraint, Sampling, Task

ran: list[Any] = []


@tool(inline=True)
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: One.
        b: Another.
    """
    ran.append((a, b))
    return a + b


@tool(inline=True)
def fail() -> int:
    """Fail."""
    raise ToolError("the sky fell")


@tool(inline=True, terminal=True)
def answer(text: str) -> str:
    """Give the answer.

    Args:
        text: The answer.
    """
    return text


TOOLS: dict[str, Tool] = {t.name: t for t in (add, fail, answer)}
TASK = Task("t", {"question": "What is 1 + 2?"})


def call_of(name: str, arguments: str = "{}") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


ADD = call_of("add", '{"a": 1, "b": 2}')


@pytest.fixture
def codec(tiny: Any) -> Codec:
    ran.clear()
    return tiny("qwen2").codec


async def play(
    codec: Codec,
    script: Sequence[Any],
    *,
    max_length: int = 4096,
    task: Task = TASK,
    max_tokens: int = 200,
    **options: Any,
) -> tuple[RolloutSession, list[Call], ScriptedEngine]:
    engine = ScriptedEngine(codec, script, max_length=max_length)
    chat = ChatSession(engine, codec, seeds=SeedTree(0), name="att")
    agent = ToolCallingAgent(TOOLS, Sampling(max_tokens=max_tokens), **options)
    outcome = RolloutSession(task, chat)
    await agent.play(task, outcome, outcome.resources)
    return outcome, chat.calls, engine


async def test_it_calls_a_tool_observes_and_answers(codec: Codec) -> None:
    outcome, calls, _ = await play(codec, [ADD, "It is 3"])
    assert (outcome.answer, outcome.stop) == ("It is 3", "answer")
    assert [(r.name, r.text, r.error) for r in outcome.tool_results] == [("add", "3", None)]
    observed = calls[1].messages[-1]
    assert (observed.role, observed.content, observed.name) == ("tool", "3", "add")
    assert observed.tool_call_id == calls[0].reply.tool_calls[0].id
    assert len(build_rows(calls)) == 1


async def test_it_shows_the_model_its_tools_and_its_system_prompt(codec: Codec) -> None:
    _, calls, _ = await play(codec, ["3"], system_prompt="Be brief.")
    shown = codec.decode(calls[0].prompt_ids)
    assert "Be brief." in shown
    assert "add(a, b) fail() answer(text)" in shown
    assert "What is 1 + 2?" in shown


async def test_calls_of_one_turn_are_observed_in_their_order(codec: Codec) -> None:
    both = ADD + call_of("add", '{"a": 5, "b": 6}')
    outcome, calls, _ = await play(codec, [both, "done"])
    assert [r.text for r in outcome.tool_results] == ["3", "11"]
    assert [m.content for m in calls[1].messages[-2:]] == ["3", "11"]


async def test_it_stops_at_the_turn_limit_without_running_tools_in_vain(codec: Codec) -> None:
    outcome, calls, _ = await play(codec, [ADD] * 5, max_turns=3)
    assert (outcome.answer, outcome.stop) == (None, "max_turns")
    assert len(calls) == 3
    assert len(ran) == 2


async def test_a_terminal_tool_gives_the_answer(codec: Codec) -> None:
    outcome, calls, _ = await play(codec, [call_of("answer", '{"text": "three"}'), "more"])
    assert (outcome.answer, outcome.stop) == ("three", "answer")
    assert len(calls) == 1


async def test_a_terminal_tool_counts_in_the_last_turn_too(codec: Codec) -> None:
    outcome, _, _ = await play(codec, [call_of("answer", '{"text": "three"}')], max_turns=1)
    assert (outcome.answer, outcome.stop) == ("three", "answer")
    outcome, calls, _ = await play(codec, [call_of("answer", '{"txt": 3}')] * 2, max_turns=1)
    assert (outcome.answer, outcome.stop) == (None, "max_turns")
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("said", "error", "words"),
    [
        (call_of("ad"), "unknown_tool", "'add'"),
        (call_of("add", '{"a": 1}'), "invalid_arguments", "b"),
        (call_of("add", '"{not json"'), "invalid_arguments", "JSON"),
        (call_of("fail"), "raised", "the sky fell"),
    ],
)
async def test_a_mistake_is_told_to_the_model_and_the_episode_goes_on(
    said: str, error: str, words: str, codec: Codec
) -> None:
    outcome, calls, _ = await play(codec, [said, "sorry"])
    assert [r.error for r in outcome.tool_results] == [error]
    observed = calls[1].messages[-1].content
    assert observed is not None
    assert observed.startswith("Error")
    assert words in observed
    assert outcome.answer == "sorry"


@pytest.mark.parametrize(
    "said", ["<tool_call>{add 1 2}</tool_call>", '<tool_call>{"name": "add"', "3</tool_call>"]
)
async def test_an_unreadable_call_is_answered_with_what_was_wrong(said: str, codec: Codec) -> None:
    outcome, calls, _ = await play(codec, [said, "3"])
    assert outcome.answer == "3"
    assert outcome.tool_results == []
    observed = calls[1].messages[-1]
    assert observed.role == "tool"
    assert observed.content == f"Error: {calls[0].parse_errors[0]}"
    assert len(build_rows(calls)) == 1


async def test_the_token_budget_bounds_the_whole_episode(codec: Codec) -> None:
    cost = len(codec.encode(ADD)) + 1
    outcome, calls, engine = await play(codec, [ADD] * 9, token_budget=2 * cost + 5, max_turns=9)
    assert outcome.stop == "token_budget"
    assert len(calls) == 3
    assert [r.sampling.max_tokens for r in engine.requests] == [
        min(200, 2 * cost + 5 - n * cost) for n in range(3)
    ]
    assert sum(len(c.sampled.token_ids) for c in calls) == 2 * cost + 5


async def test_a_turn_that_was_cut_off_ends_the_episode(codec: Codec) -> None:
    outcome, calls, _ = await play(codec, [ADD, "x"], max_tokens=4)
    assert (outcome.answer, outcome.stop) == (None, "token_budget")
    assert len(calls) == 1


async def test_a_context_that_is_full_ends_the_episode(codec: Codec) -> None:
    first = codec.render(TASK.messages(), [t.spec for t in TOOLS.values()])
    room = len(first) + len(codec.encode(ADD)) + 1 + 5
    outcome, calls, _ = await play(codec, [ADD, "3"], max_length=room)
    assert (outcome.answer, outcome.stop) == (None, "context")
    assert len(calls) == 1
    assert [r.text for r in outcome.tool_results] == ["3"]


async def test_a_task_may_bring_messages(codec: Codec) -> None:
    given = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    _, calls, _ = await play(codec, ["x"], task=Task("t", {"messages": given}))
    assert [m.content for m in calls[0].messages] == ["S", "U"]


# ---------------------------------------------------------------- tool_choice


async def test_a_turn_that_calls_ends_the_constraint(codec: Codec) -> None:
    session, calls, _ = await play(codec, [ADD, "It is 3."], tool_choice="required")
    assert [c.constraint for c in calls] == [Constraint("required"), None]
    assert session.answer == "It is 3."
