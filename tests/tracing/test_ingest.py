"""Spans of instrumented agents are kept for the attempt whose key they came with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from tutelage.tracing import Identity, SpanRecord, names
from tutelage.tracing.ingest import ingest_traces
from tutelage.tracing.otlp import PROTOBUF, OtlpError, encode_protobuf, response_body

from .samples import foreign

ONE = Identity("run", "roll_1", "att_1")


def placed(spans: Sequence[SpanRecord]) -> dict[str, tuple[str | None, str | None]]:
    return {s.name: (s.rollout_id, s.attempt_id) for s in spans}


def test_a_body_goes_to_the_sink() -> None:
    got: list[tuple[str, Sequence[SpanRecord]]] = []
    ingest = partial(ingest_traces, lambda run, spans: got.append((run, spans)), "run")
    old = foreign(1, parent=0, rollout_id=None, attributes={"llm.response.id": "chat_9"})
    answer = ingest(encode_protobuf([foreign(0, rollout_id=None), old]), PROTOBUF, owner=ONE)
    assert answer == response_body(PROTOBUF)
    ((run, spans),) = got
    assert (run, placed(spans)) == ("run", {f"foreign {i}": ("roll_1", "att_1") for i in range(2)})
    assert spans[1].attributes[names.RESPONSE_ID] == "chat_9"  # by the present name
    with pytest.raises(OtlpError):
        ingest(b"\xff", PROTOBUF, owner=ONE)
    other = foreign(9, rollout_id=None, attributes={names.ROLLOUT_ID: "roll_2"})
    ingest(encode_protobuf([other]), PROTOBUF, owner=ONE)
    assert len(got) == 1


def test_a_key_of_one_attempt_writes_into_that_one_only() -> None:
    got: list[SpanRecord] = []
    ingest = partial(ingest_traces, lambda run, spans: got.extend(spans), "run")
    spans = [
        foreign(0, rollout_id=None),
        foreign(1, rollout_id=None, attributes={names.ROLLOUT_ID: "roll_1"}),
        foreign(2, rollout_id=None, attributes={names.ROLLOUT_ID: "roll_2"}),
        foreign(3, rollout_id=None, resource={names.ATTEMPT_ID: "att_7"}),
    ]
    answer = ingest(encode_protobuf(spans), PROTOBUF, owner=ONE)
    assert answer == response_body(PROTOBUF, 2)
    assert placed(got) == {f"foreign {i}": ("roll_1", "att_1") for i in range(2)}
