"""Which planner plans: the trained one where it is sure, else a language model, else nobody."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tutelage.errors import ConfigError
from tutelage.gateway import ScriptedClient
from tutelage.orchestration.data.synthetic import builtin_graph
from tutelage.orchestration.execution.config import ExecutionConfig
from tutelage.orchestration.plan.dag import Node, NoPlanError, Plan
from tutelage.orchestration.planner import choose
from tutelage.orchestration.planner.choose import catalog_tools, choose_plan
from tutelage.orchestration.planner.llm import LLMPlanner
from tutelage.orchestration.planner.model import PlanPrediction
from tutelage.tools.tool import tool


@dataclass
class Planner:
    """A trained planner of one plan."""

    confidence: float

    def plan_all(self, texts: Sequence[str]) -> list[PlanPrediction]:
        plan = Plan(texts[0], (Node("summarize_text"),))
        return [PlanPrediction(plan, None, True, self.confidence, 0.4)]


@pytest.fixture
def sure_by(monkeypatch: pytest.MonkeyPatch) -> Any:
    def patch(confidence: float) -> None:
        made = (Planner(confidence), "of a test")
        monkeypatch.setattr(choose, "trained_planner", lambda *_: made)

    return patch


def model(*nodes: dict[str, Any]) -> tuple[LLMPlanner, ScriptedClient]:
    client = ScriptedClient([json.dumps({"nodes": nodes})])
    tools = catalog_tools(builtin_graph().catalog)
    return LLMPlanner(lambda: client, tools, constrained=False), client


def test_a_sure_trained_planner_plans_and_says_how_sure_it_is(sure_by: Any) -> None:
    sure_by(0.62)
    llm, client = model()
    chosen = choose_plan(ExecutionConfig(), "Summarise it", None, {}, llm)
    assert [node.tool for node in chosen.plan.nodes] == ["summarize_text"]
    assert (chosen.source, chosen.llm) == ("of a test", llm)
    assert (chosen.confidence, chosen.min_confidence) == (0.62, 0.4)
    assert not client.calls
    lower = ExecutionConfig(min_confidence=0.25)
    assert choose_plan(lower, "Summarise it", None, {}, None).min_confidence == 0.25


def test_an_unsure_one_goes_to_the_language_model_or_names_both_ways(sure_by: Any) -> None:
    sure_by(0.1)
    with pytest.raises(NoPlanError, match=r"is 10 %.*--endpoint URL.*--plan FILE"):
        choose_plan(ExecutionConfig(), "Buy bread", None, {}, None)
    llm, client = model({"tool": "translate_text", "arguments": {"input": "the letter"}})
    chosen = choose_plan(ExecutionConfig(model="m"), "Translate the letter", None, {}, llm)
    assert chosen.plan.nodes == (Node("translate_text", {"input": "the letter"}),)
    assert (chosen.source, chosen.confidence) == ("of the language model m", None)
    assert "- translate_text(input?: string): " in (client.calls[0].messages[0].content or "")


@pytest.mark.parametrize("planner", ["auto", "trained"])
def test_tools_of_ones_own_need_a_language_model(planner: Any) -> None:
    @tool
    def say(text: str) -> str:
        """Say it."""
        return text

    with pytest.raises(ConfigError, match=r"need a language model as planner\. Pass"):
        choose_plan(ExecutionConfig(planner=planner), "Say it", None, {"say": say}, None)
    with pytest.raises(ConfigError, match="--planner llm needs a language model"):
        choose_plan(ExecutionConfig(planner="llm"), "Say it", None, {}, None)
