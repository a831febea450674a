"""Which component a failed rollout blames: failing tools, spans, named rewards, texts in force."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.builders import make_attempt, make_call, make_rollout

from tutelage.prompts.agent import components_of, tool_resources
from tutelage.prompts.episode import episode_of, suspected_components
from tutelage.resources import NamedResources, PromptTemplate
from tutelage.tools.builtin import calculator, sum_1_to_n
from tutelage.tracing import SpanRecord
from tutelage.types import (
    Call,
    Message,
    Mode,
    Reward,
    Sampled,
    StopReason,
    ToolCall,
    ToolResult,
)

RESOURCES = NamedResources(
    planner=PromptTemplate("You plan the work for {name}."),
    writer=PromptTemplate("You write the answer down."),
    **tool_resources({"calculator": calculator, "sum_1_to_n": sum_1_to_n}),
)
COMPONENTS = components_of(RESOURCES, (), tools=True)
SAID = Sampled((), (), (), StopReason.STOP, 0)


def call(system: str, agent: str = "main", tools: Sequence[str] = ()) -> Call:
    asked = tuple(ToolCall(f"c{i}", name, "{}") for i, name in enumerate(tools))
    messages = (Message("system", system), Message("user", "go"))
    told = (calculator.spec, sum_1_to_n.spec)
    reply = Message("assistant", "x", asked)
    return make_call(agent=agent, messages=messages, sampled=SAID, reply=reply, tools=told)


def found(
    *calls: Call,
    results: Sequence[ToolResult] = (),
    parts: dict[str, float] | None = None,
    spans: Sequence[SpanRecord] = (),
) -> list[str]:
    attempt = make_attempt(*calls, tool_results=tuple(results), reward=None)
    return [*suspected_components(attempt, parts or {}, COMPONENTS, RESOURCES, spans)]


PLANS, WRITES = call("You plan the work for Ann."), call("You write the answer down.")
ALL_TOOLS = ("calculator", "sum_1_to_n")


def test_the_last_call_has_the_prompt_that_gave_the_answer() -> None:
    names = found(PLANS, call("You write the answer down.", tools=ALL_TOOLS))
    assert names == ["writer"]


def test_a_template_is_known_by_its_text_around_the_placeholders() -> None:
    assert found(call("You plan the work for Ann.", tools=ALL_TOOLS)) == ["planner"]


def test_the_call_that_asked_for_a_failing_tool_is_the_failing_one() -> None:
    plans = call("You plan the work for Ann.", tools=ALL_TOOLS)
    broken = ToolResult("c0", "calculator", "{}", "no", error="invalid_arguments")
    assert found(plans, WRITES, results=[broken])[:2] == ["tool_calculator", "planner"]


def test_tools_that_were_offered_and_never_called_come_last() -> None:
    assert found(WRITES) == ["writer", "tool_calculator", "tool_sum_1_to_n"]
    assert found(call("You write the answer down.", tools=["calculator"])) == [
        "writer",
        "tool_sum_1_to_n",
    ]


def test_a_failing_span_and_a_bad_part_blame_the_component_of_their_name() -> None:
    span = SpanRecord("t", "s", None, "planner", 0, 1, status="error")
    calm = SpanRecord("t", "s2", None, "writer", 0, 1)
    assert found(spans=[span, calm]) == ["planner"]
    assert found(parts={"planner": 1.0, "writer": 0.0}) == ["writer"]


def test_an_agents_name_is_a_components_name() -> None:
    assert found(call("Something else.", agent="planner", tools=ALL_TOOLS)) == ["planner"]


def test_one_component_is_never_blamed_and_right_answers_blame_nobody() -> None:
    def episode(value: float, components: dict[str, str]) -> Any:
        rollout = make_rollout("r", make_attempt(WRITES, reward=Reward(value)), mode=Mode.VAL)
        return episode_of(rollout, components, RESOURCES, (), "", None)

    assert episode(0.0, {"writer": "You write the answer down."}).blame == ()
    assert episode(0.0, dict(COMPONENTS)).blame[0] == "writer"
    assert episode(1.0, dict(COMPONENTS)).blame == ()
