"""Live spans: each lands in the attempt in whose context it began, whatever runs beside it."""

from __future__ import annotations

import pytest
from opentelemetry import baggage, trace
from opentelemetry.trace import propagation

from tutelage.tracing import (
    Identity,
    emit_evaluation,
    names,
    span,
    trace_attempt,
    whole_trace,
)

from .samples import orphans, rollout

ONE = Identity("run", "roll_0", "att_0")


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
