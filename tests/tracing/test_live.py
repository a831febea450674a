"""Live spans: each lands in the attempt in whose context it began, whatever runs beside it."""

from __future__ import annotations

import asyncio
import random
import threading
from contextvars import copy_context
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import propagation

from tutelage.tracing import (
    Identity,
    SpanRecord,
    emit_evaluation,
    instrument,
    names,
    span,
    trace_attempt,
    whole_trace,
)

from .samples import attempt, call, orphans, rollout

ONE = Identity("run", "roll_0", "att_0")


def identity(i: int) -> Identity:
    return Identity("run", f"roll_{i}", f"att_{i}")


def test_spans_of_an_attempt_join_its_tree() -> None:
    with trace_attempt(ONE) as found, span("plan", {"n": 1}), span("think"):
        pass
    inner, outer = found.records
    assert (inner.name, inner.parent_id) == ("think", outer.span_id)
    assert (outer.parent_id, outer.trace_id) == (found.root_id, found.trace_id)
    assert outer.attributes == {"n": 1, names.ROLLOUT_ID: "roll_0", names.ATTEMPT_ID: "att_0"}
    assert (outer.rollout_id, outer.attempt_id) == ("roll_0", "att_0")
    spans = whole_trace(rollout(), found.records)
    assert orphans(spans) == []
    by_name = {s.name: s for s in spans}
    assert by_name["plan"].parent_id == by_name["invoke_agent main"].span_id


def test_a_repeat_has_the_same_identifiers() -> None:
    def once() -> list[tuple[str, str]]:
        with trace_attempt(ONE) as found, span("a"), span("b"):
            pass
        return [(s.trace_id, s.span_id) for s in found.records]

    assert once() == once()


async def test_two_hundred_attempts_at_once_keep_their_spans_apart() -> None:
    draw = random.Random(0)
    provider = TracerProvider(shutdown_on_exit=False)
    instrument(provider)
    framework = provider.get_tracer("framework")

    async def play(i: int) -> tuple[SpanRecord, ...]:
        with trace_attempt(identity(i)) as found:
            for turn in range(3):
                with span(f"turn {turn} of {i}"):
                    await asyncio.sleep(draw.random() * 0.01)
                    await asyncio.gather(*(tool(i, k) for k in range(2)))
        with span("after") as nothing:
            assert not nothing.is_recording()
        return found.records

    async def tool(i: int, k: int) -> None:
        with framework.start_as_current_span(f"tool {k} of {i}"):
            await asyncio.sleep(draw.random() * 0.01)
            await asyncio.to_thread(in_a_thread, i)

    def in_a_thread(i: int) -> None:
        with span(f"thread of {i}"):
            pass

    for i, records in enumerate(await asyncio.gather(*(play(i) for i in range(200)))):
        assert len(records) == 3 * (1 + 2 * 2)
        assert {s.rollout_id for s in records} == {f"roll_{i}"}
        assert all(s.name.endswith(f" of {i}") for s in records)
        assert len({s.trace_id for s in records}) == 1
        whole = whole_trace(rollout(attempt(call(0)), name=f"roll_{i}"), records)
        assert orphans(whole) == []


def test_what_is_still_open_at_the_end_is_ended() -> None:
    def leak() -> Any:
        with trace_attempt(ONE) as found:
            leaked.append(span("leaked"))
            leaked[0].__enter__()
            with span("inside"):
                pass
        return found

    leaked: list[Any] = []
    found = copy_context().run(leak)  # whoever leaks a span leaves its context behind, too
    assert [(s.name, s.status) for s in found.records] == [("inside", "unset"), ("leaked", "error")]
    before = found.records
    assert found.records == before


def test_what_comes_after_the_end_is_dropped() -> None:
    go, contexts = threading.Event(), []
    with trace_attempt(ONE) as found:
        contexts.append(copy_context())

    def late() -> None:
        go.wait(5)
        with span("late"):
            pass

    thread = threading.Thread(target=contexts[0].run, args=(late,))
    thread.start()
    go.set()
    thread.join()
    assert found.records == ()


def test_an_error_is_on_the_span_and_goes_on() -> None:
    with trace_attempt(ONE) as found, pytest.raises(KeyError), span("fails"):
        raise KeyError("x")
    (record,) = found.records
    assert record.status == "error"
    assert [e.name for e in record.events] == ["exception"]


def test_scores_are_events() -> None:
    with trace_attempt(ONE) as found:
        with span("judge"):
            emit_evaluation("helpful", 0.5, label="fair", response_id="chat_1")
        emit_evaluation("alone", 1)
    judge, alone = found.records
    assert judge.events[0].attributes == {
        names.EVALUATION_NAME: "helpful",
        names.SCORE: 0.5,
        names.SCORE_LABEL: "fair",
        names.RESPONSE_ID: "chat_1",
    }
    assert (alone.name, alone.events[0].attributes[names.SCORE]) == ("evaluate alone", 1.0)


def test_outside_of_a_rollout_nothing_happens() -> None:
    with span("nobody's") as made:
        emit_evaluation("x", 1.0)
        assert not made.is_recording()
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_the_context_goes_to_other_programs() -> None:
    with trace_attempt(ONE) as found:
        assert baggage.get_baggage(names.ROLLOUT_ID) == "roll_0"
        carrier: dict[str, str] = {}
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        TraceContextTextMapPropagator().inject(carrier)
        assert carrier["traceparent"] == f"00-{found.trace_id}-{found.root_id}-01"
    assert propagation.get_current_span() is trace.INVALID_SPAN
