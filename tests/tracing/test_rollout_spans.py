"""The spans that a rollout's record gives, and the trees they make with spans of others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutelage.tracing import SpanRecord, names, rollout_spans, rollout_trees, whole_trace
from tutelage.types import FailureCause, Message

from .samples import attempt, call, failed, foreign, orphans, rollout

OURS = ["invoke_agent main", "chat policy", "execute_tool calculator", "chat policy"]


def walked(tree: Any, depth: int = 0) -> list[tuple[int, SpanRecord]]:
    """All spans of a tree with their depths, each before its children."""
    below = [pair for child in tree.children for pair in walked(child, depth + 1)]
    return [(depth, tree.span), *below]


def lines(tree: Any) -> list[tuple[int, str]]:
    return [(depth, span.name) for depth, span in walked(tree)]


def assert_complete(spans: list[SpanRecord]) -> None:
    """One root a trace, every parent there and before its children, every child within it."""
    assert orphans(spans) == []
    seen: dict[tuple[str, str], SpanRecord] = {}
    for span in spans:
        assert (span.trace_id, span.span_id) not in seen
        if span.parent_id is not None:
            assert (span.trace_id, span.parent_id) in seen
        seen[span.trace_id, span.span_id] = span
    roots = [span.trace_id for span in spans if span.parent_id is None]
    assert sorted(roots) == sorted({span.trace_id for span in spans})


def test_the_tree_of_an_attempt() -> None:
    (tree,) = rollout_trees(rollout())
    assert lines(tree) == [(0, OURS[0]), (1, OURS[1]), (1, OURS[2]), (1, OURS[3])]
    root, first, tool, second = [span for _, span in walked(tree)]
    assert first.kind == "client"
    assert {s.trace_id for s in (root, first, tool, second)} == {root.trace_id}
    assert {**first.attributes, names.FINISH_REASONS: None} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "tutelage",
        "gen_ai.agent.name": "main",
        "gen_ai.request.model": "policy",
        "gen_ai.response.model": "policy",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.stop_sequences": ["</s>"],
        "gen_ai.response.id": "chat_0",
        "gen_ai.response.finish_reasons": None,
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 2,
        "tutelage.policy_version": 3,
        "tutelage.rollout_id": "roll_0",
        "tutelage.attempt_id": "att_0",
    }
    assert first.attributes[names.FINISH_REASONS] == ["tool_calls"]
    assert second.attributes[names.FINISH_REASONS] == ["stop"]
    assert (first.start_ns, first.seconds) == (1_700_000_000 * 10**9, 0.25)
    assert (tool.attributes[names.TOOL], tool.attributes[names.TOOL_CALL_ID]) == (
        "calculator",
        "t0",
    )
    assert (root.seconds, root.status) == (3.0, "ok")
    assert root.resource == {"service.name": "tutelage", "tutelage.run_id": "run"}


def test_rewards_are_events_of_the_root() -> None:
    root = rollout_spans(rollout())[0]
    assert [(e.name, dict(e.attributes)) for e in root.events] == [
        ("gen_ai.evaluation.result",
         {"gen_ai.evaluation.name": name, "gen_ai.evaluation.score.value": 1.0})
        for name in ("reward", "reward.exact")
    ]  # fmt: skip


def test_a_failure_is_the_status_of_the_root() -> None:
    first, second = rollout_trees(rollout(failed(), attempt(call(0), index=1)))
    root = first.span
    assert (root.status, root.status_message) == ("error", "it was stopped")
    assert root.attributes[names.ERROR_TYPE] == FailureCause.TIMEOUT.value
    (event,) = root.events
    assert event.attributes["exception.stacktrace"] == "Traceback ..."
    assert second.span.trace_id != root.trace_id


def test_content_is_left_out_unless_asked_for() -> None:
    given = rollout()
    assert "Secret" not in json.dumps([dict(s.attributes) for s in rollout_spans(given)])
    root, first, tool, second = rollout_spans(given, content=True)
    asked = json.loads(first.attributes[names.INPUT_MESSAGES])
    text = {"type": "text", "content": "What is 1 + 1? Secret."}
    assert asked == [{"role": "user", "parts": [text]}]
    (said,) = json.loads(first.attributes[names.OUTPUT_MESSAGES])
    part = {"type": "tool_call", "id": "t0", "name": "calculator",
            "arguments": '{"expression": "1+1"}'}  # fmt: skip
    assert said == {"role": "assistant", "parts": [part], "finish_reason": "tool_calls"}
    assert tool.attributes[names.TOOL_RESULT] == "2"
    assert json.loads(second.attributes[names.OUTPUT_MESSAGES])[0]["finish_reason"] == "stop"
    assert json.loads(root.attributes[names.OUTPUT_MESSAGES])[0]["parts"][0]["content"] == "2"


def test_several_agents_have_spans_of_their_own() -> None:
    calls = (call(0), call(1, agent="user"), call(2, tool=True))
    (tree,) = rollout_trees(rollout(attempt(*calls)))
    assert lines(tree) == [
        (0, "invoke_workflow rollout"),
        (1, "invoke_agent main"),
        (2, "chat policy"),
        (2, "execute_tool calculator"),
        (2, "chat policy"),
        (1, "invoke_agent user"),
        (2, "chat policy"),
    ]


def test_a_call_that_trains_nothing_names_another_model() -> None:
    calls = (call(0), call(1, policy=None), call(2, policy="judge"))
    (tree,) = rollout_trees(rollout(attempt(*calls)))
    assert [name for _, name in lines(tree)][1:] == ["chat policy", "chat other", "chat judge"]


def test_a_call_to_a_server_has_its_model_its_usage_and_the_tools_that_a_framework_ran() -> None:
    asking = call(0, policy=None, tool=True, prompt_ids=(), model="gpt", answered_by="gpt-1",
                  usage=(70, 8))  # fmt: skip
    answer = Message("tool", "2", tool_call_id="t0")
    telling = call(1, policy=None, messages=(*asking.messages, asking.reply, answer))
    played = attempt(asking, telling, tool_results=())
    root, first, tool, second = rollout_spans(rollout(played), content=True)
    assert first.name == "chat gpt"
    models = (first.attributes[names.REQUEST_MODEL], first.attributes[names.RESPONSE_MODEL])
    assert models == ("gpt", "gpt-1")
    assert (first.attributes[names.INPUT_TOKENS], first.attributes[names.OUTPUT_TOKENS]) == (70, 8)
    assert root.attributes[names.INPUT_TOKENS] == 70 + second.attributes[names.INPUT_TOKENS]
    assert (tool.name, tool.parent_id) == ("execute_tool calculator", root.span_id)
    assert (tool.attributes[names.TOOL_CALL_ID], tool.attributes[names.TOOL_RESULT]) == ("t0", "2")
    assert tool.attributes[names.TOOL_ARGUMENTS] == '{"expression": "1+1"}'
    assert tool.seconds == pytest.approx(0.75)  # until the next request
    theirs = {names.OPERATION: names.EXECUTE_TOOL, names.TOOL: "calculator"}
    (tree,) = rollout_trees(rollout(played), [foreign(0, name="their tool", attributes=theirs)])
    assert sorted(name for _, name in lines(tree)) == [
        "chat gpt",
        "chat other",
        "invoke_agent main",
        "their tool",
    ]


def test_ids_repeat_and_differ_between_runs_and_attempts() -> None:
    assert rollout_spans(rollout()) == rollout_spans(rollout())
    traces = {
        span.trace_id
        for given in (rollout(), rollout(name="roll_1"), rollout(run_id="other"))
        for span in rollout_spans(given)
    }
    assert len(traces) == 3


# ---------------------------------------------------------------- with spans of others


def test_other_spans_stand_under_their_parent_or_the_root() -> None:
    (tree,) = rollout_trees(rollout(), [foreign(0), foreign(1, parent=0), foreign(2, parent=99)])
    assert lines(tree)[-3:] == [(1, "foreign 0"), (2, "foreign 1"), (1, "foreign 2")]
    spans = whole_trace(rollout(), [foreign(0), foreign(1, parent=0), foreign(2, parent=99)])
    assert_complete(spans)
    assert {span.trace_id for span in spans} == {tree.span.trace_id}


@given(st.lists(st.tuples(st.integers(0, 12), st.none() | st.integers(0, 12), st.booleans())))
def test_any_spans_make_complete_trees(parts: list[tuple[int, int | None, bool]]) -> None:
    chat = {names.OPERATION: "chat", names.RESPONSE_ID: "chat_1"}
    extra = [
        foreign(number, parent, attributes=chat if same else {}) for number, parent, same in parts
    ]
    spans = whole_trace(rollout(), extra)
    assert_complete(spans)
    others = {n for n, _, same in parts if not same} - {n for n, _, same in parts if same}
    assert {f"foreign {n}" for n in others} <= {s.name for s in spans}


# ---------------------------------------------------------------- names of yesterday


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"gen_ai.system": "openai"}, {names.PROVIDER: "openai"}),
        ({"gen_ai.usage.prompt_tokens": 3}, {names.INPUT_TOKENS: 3}),
        ({"llm.token_count.completion": 4}, {names.OUTPUT_TOKENS: 4}),
        ({"openinference.span.kind": "LLM"}, {names.OPERATION: "chat"}),
        ({"traceloop.span.kind": "tool"}, {names.OPERATION: "execute_tool"}),
        ({"gen_ai.response.finish_reason": "stop"}, {names.FINISH_REASONS: ["stop"]}),
        ({"gen_ai.system": "old", names.PROVIDER: "new"}, {names.PROVIDER: "new"}),
    ],
)  # fmt: skip
def test_old_names_are_read(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert names.normalize_names(old) == old | new
