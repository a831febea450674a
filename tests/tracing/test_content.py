"""What leaves for a collector when content was not asked for, and that nothing leaves twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.collector import Collector

from tutelage.store import export_rows, open_store
from tutelage.tracing import SpanRecord, rollout_spans
from tutelage.tracing.export import OtlpExporter
from tutelage.tracing.otlp import encode_json
from tutelage.tracing.records import SpanEvent
from tutelage.types import Failure, FailureCause, Rollout, RolloutStatus, ToolCall, ToolResult

from .samples import START, attempt, call, foreign, rollout

SAID = "Secret"
TEXT = f"What is the {SAID} answer, 42?"
MESSAGES = f'[{{"role": "user", "content": "{TEXT}"}}]'

FRAMEWORKS: dict[str, dict[str, Any]] = {
    "genai": {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "policy",
        "gen_ai.input.messages": MESSAGES,
        "gen_ai.output.messages": MESSAGES,
        "gen_ai.system_instructions": TEXT,
        "gen_ai.tool.definitions": MESSAGES,
        "gen_ai.evaluation.explanation": TEXT,
    },
    "openinference": {
        "openinference.span.kind": "LLM",
        "input.value": TEXT,
        "output.value": TEXT,
        "llm.input_messages.0.message.content": TEXT,
        "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": MESSAGES,
        "llm.prompt_template.template": TEXT,
        "llm.invocation_parameters": f'{{"temperature": 0.5, "user": "{SAID}"}}',
        "metadata": MESSAGES,
    },
    "agno": {
        "openinference.span.kind": "AGENT",
        "agno.run.input": TEXT,
        "session.id": SAID,
        "user.id": SAID,
        "tool_call.function.arguments": MESSAGES,
        "llm.token_ids": [83, 101],
        TEXT: 1,
    },
}


def theirs(number: int, attributes: dict[str, Any]) -> SpanRecord:
    """A span of a framework that writes what was said wherever it can."""
    event = SpanEvent("gen_ai.content.prompt", 1, {"gen_ai.prompt": TEXT})
    raised = SpanEvent(
        "exception",
        2,
        {"exception.type": "Error", "exception.message": TEXT, "exception.stacktrace": TEXT},
    )
    return foreign(
        number,
        name=TEXT,
        attributes=attributes,
        events=(event, raised, SpanEvent(TEXT, 3, {})),
        status="error",
        status_message=TEXT,
        resource={"service.name": "agent", "process.command_line": TEXT},
    )


def ours() -> Rollout:
    """A rollout that failed on what was said, and whose model named a tool by it."""
    reply = call(0, tool=True)
    made = ToolCall("t0", TEXT, "{}")
    asked = replace(reply, reply=replace(reply.reply, tool_calls=(made,)))
    failure = Failure(FailureCause.AGENT_ERROR, f"ValueError: {TEXT}", f"Traceback {TEXT}")
    return rollout(
        attempt(
            asked,
            status=RolloutStatus.FAILED,
            failure=failure,
            tool_results=(ToolResult("t0", TEXT, "{}", TEXT, error=TEXT),),
        )
    )


ALL = [theirs(i, attributes) for i, attributes in enumerate(FRAMEWORKS.values())]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


def sent(collector: Collector, *lots: Sequence[Any], content: bool = False) -> list[SpanRecord]:
    with OtlpExporter(collector.url, warn=pytest.fail, content=content, extra_headers={}) as out:
        for lot in lots:
            out.submit(lot)
            assert out.flush(30)
    return list(collector.spans)


@pytest.mark.parametrize("rollout_first", [True, False])
@pytest.mark.parametrize("content", [False, True])
def test_nothing_that_was_said_leaves_unless_it_is_asked_for(
    collector: Collector, rollout_first: bool, content: bool
) -> None:
    lots = ([ours()], ALL) if rollout_first else (ALL, [ours()])
    spans = sent(collector, *lots, content=content)
    assert len(spans) >= len(ALL)
    assert (SAID in repr(encode_json(spans))) is content


def test_what_is_exported_from_a_store_has_no_content_either(tmp_path: Path) -> None:
    with open_store(tmp_path / "store.db") as store:
        store.put_run(
            "run", name="r", recipe="math", algorithm="rl", config={}, seed=1, folder="x",
            status="running",
        )  # fmt: skip
        store.put_rollouts([ours()], {"run": ALL})
        told, whole = (
            repr([*export_rows(store, "run", "otlp", content=content)]) for content in (False, True)
        )
    assert SAID in whole
    assert SAID not in told
    for kept in ("execute_tool", "agent_error", "openinference.span.kind", "exception.type"):
        assert kept in told


# ---------------------------------------------------------------- nothing twice


def chat(number: int, position: int, parent: int, *, known: bool = True) -> SpanRecord:
    """A framework's span of one of our calls, a little longer than it."""
    attributes: dict[str, Any] = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    if known:
        attributes["gen_ai.response.id"] = f"chat_{position}"
    start = int((START + position - 0.01) * 1e9)
    return foreign(
        number, parent, attributes=attributes, start_ns=start, end_ns=start + int(0.27e9)
    )


def agent(number: int, name: str, parent: int | None = None) -> SpanRecord:
    attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}
    return foreign(number, parent, attributes=attributes)


def operations(spans: Sequence[SpanRecord]) -> Counter[str]:
    return Counter(str(s.attributes.get("gen_ai.operation.name")) for s in spans)


@pytest.mark.parametrize("known", [True, False], ids=["response id", "by time"])
def test_calls_that_a_framework_traced_too_are_sent_once(collector: Collector, known: bool) -> None:
    """36 calls of an instrumented agent: 36 chat spans and not 72."""
    played = rollout(attempt(*(call(i) for i in range(36))))
    traced = [agent(0, "Assistant"), *(chat(i + 1, i, 0, known=known) for i in range(36))]
    spans = sent(collector, traced, [played])
    assert operations(spans) == {"invoke_agent": 1, "chat": 36}
    assert {s.trace_id for s in spans} == {rollout_spans(played)[0].trace_id}
    ids = {s.span_id for s in spans}
    assert [s.span_id for s in spans if s.parent_id not in ids] == [spans[0].span_id]
