"""Spans of instrumented agents find their rollouts, in whatever order they arrive."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from tutelage.tracing import Identity, SpanRecord, TraceIngest, names
from tutelage.tracing.join import MAX_TRACES, TraceJoiner
from tutelage.tracing.otlp import PROTOBUF, OtlpError, encode_protobuf, response_body

from .samples import foreign

ONE = Identity("run", "roll_1", "att_1")
ALL = [
    foreign(0, rollout_id=None),
    foreign(1, parent=0, rollout_id=None, attributes={names.RESPONSE_ID: "chat_9"}),
    foreign(2, parent=1, rollout_id=None),
    foreign(3, parent=0, rollout_id=None),
]


def find(response_id: str) -> Identity | None:
    return ONE if response_id == "chat_9" else None


def placed(spans: Sequence[SpanRecord]) -> dict[str, tuple[str | None, str | None]]:
    return {s.name: (s.rollout_id, s.attempt_id) for s in spans}


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_one_known_call_places_its_whole_trace(order: tuple[int, ...]) -> None:
    joiner = TraceJoiner(find)
    out = [s for i in order for s in joiner.add([ALL[i]])]
    assert placed(out) == {f"foreign {i}": ("roll_1", "att_1") for i in range(4)}
    assert len(out) == 4


def test_attributes_of_the_span_and_of_the_resource() -> None:
    own = {names.ROLLOUT_ID: "roll_2", names.ATTEMPT_ID: "att_2"}
    joiner = TraceJoiner()
    assert placed(joiner.add([foreign(0, rollout_id=None, attributes=own)])) == {
        "foreign 0": ("roll_2", "att_2")
    }
    other = foreign(1, rollout_id=None, trace_id="1" * 32, resource={names.ROLLOUT_ID: "roll_3"})
    assert placed(joiner.add([other])) == {"foreign 1": ("roll_3", None)}


def test_a_trace_of_two_rollouts_is_divided() -> None:
    """One program plays both in one trace: what stands above both belongs to neither."""
    a, b = ({names.ROLLOUT_ID: f"roll_{i}"} for i in "ab")
    spans = [
        foreign(0, rollout_id=None),
        foreign(1, parent=0, rollout_id=None, attributes=a),
        foreign(2, parent=0, rollout_id=None, attributes=b),
        foreign(3, parent=1, rollout_id=None),
        foreign(4, parent=2, rollout_id=None),
    ]
    joiner = TraceJoiner()
    assert {n: r for n, (r, _) in placed(joiner.add(spans)).items()} == {
        "foreign 1": "roll_a", "foreign 3": "roll_a", "foreign 2": "roll_b", "foreign 4": "roll_b",
    }  # fmt: skip


def test_old_names_are_joined_and_made_modern() -> None:
    old = foreign(0, rollout_id=None, attributes={"llm.response.id": "chat_9"})
    (span,) = TraceJoiner(find).add([old])
    assert span.attributes[names.RESPONSE_ID] == "chat_9"


def test_memory_is_bounded() -> None:
    joiner = TraceJoiner()
    for i in range(MAX_TRACES + 10):
        joiner.add([foreign(0, rollout_id=None, trace_id=f"{i + 1:032x}")])
    assert joiner.forgotten == 10
    for i in range(2000):
        joiner.add([foreign(i, rollout_id=None, trace_id="f" * 32)])
    assert joiner.forgotten > 900


def test_a_body_goes_to_the_sink() -> None:
    got: list[tuple[str, Sequence[SpanRecord]]] = []
    ingest = TraceIngest(lambda run, spans: got.append((run, spans)), "run", find)
    answer = ingest(encode_protobuf(ALL), PROTOBUF)
    assert answer == response_body(PROTOBUF)
    ((run, spans),) = got
    assert (run, len(spans), ingest.joined, ingest.rejected) == ("run", 4, 4, 0)
    with pytest.raises(OtlpError):
        ingest(b"\xff", PROTOBUF)
    ingest(encode_protobuf([foreign(9, rollout_id=None, trace_id="9" * 32)]), PROTOBUF)
    assert len(got) == 1


def test_a_key_of_one_attempt_writes_into_that_one_only() -> None:
    got: list[SpanRecord] = []
    ingest = TraceIngest(lambda run, spans: got.extend(spans), "run")
    spans = [
        foreign(0, rollout_id=None),
        foreign(1, rollout_id=None, attributes={names.ROLLOUT_ID: "roll_1"}),
        foreign(2, rollout_id=None, attributes={names.ROLLOUT_ID: "roll_2"}),
        foreign(3, rollout_id=None, resource={names.ATTEMPT_ID: "att_7"}),
    ]
    answer = ingest(encode_protobuf(spans), PROTOBUF, only=ONE)
    assert answer == response_body(PROTOBUF, 2)
    assert placed(got) == {f"foreign {i}": ("roll_1", "att_1") for i in range(2)}
