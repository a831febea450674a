"""OTLP bodies: what is written reads back, what others write is read, bombs are refused."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tutelage.tracing import SpanRecord, rollout_spans
from tutelage.tracing.otlp import (
    JSON_TYPE,
    MAX_BODY,
    PROTOBUF,
    OtlpError,
    encode_json,
    encode_protobuf,
    read_otlp,
    response_body,
)
from tutelage.tracing.records import SpanEvent

from .samples import foreign, rollout

SPAN = foreign(
    0,
    parent=3,
    kind="client",
    status="error",
    status_message="no",
    attributes={
        "text": "ü 😀", "int": -(2**63), "float": 0.1, "yes": True, "list": ["a", "b"],
        "deep": {"x": [1, {"y": 2.5}], "empty": {}}, "none": None, "nothing": [],
    },
    events=(SpanEvent("e", 5, {"n": 1}),),
    rollout_id=None,
)  # fmt: skip


def plain(spans: list[SpanRecord]) -> list[SpanRecord]:
    """As another program reads them: without the rollout, which is in the attributes."""
    return [replace(span, rollout_id=None, attempt_id=None) for span in spans]


@pytest.mark.parametrize("encoding", ["", "gzip", "identity", "GZIP"])
@pytest.mark.parametrize("kind", [PROTOBUF, JSON_TYPE, "application/json; charset=utf-8"])
def test_what_is_written_reads_back(kind: str, encoding: str) -> None:
    spans = [*plain(rollout_spans(rollout(), content=True)), SPAN]
    body = encode_protobuf(spans) if kind == PROTOBUF else json.dumps(encode_json(spans)).encode()
    body = gzip.compress(body, mtime=0) if encoding.lower() == "gzip" else body
    assert read_otlp(body, kind, encoding) == (spans, 0)


def test_json_has_hexadecimal_identifiers_and_plain_messages_do_not() -> None:
    data = encode_json([SPAN])
    (span,) = data["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert (span["traceId"], span["spanId"], span["parentSpanId"]) == (
        SPAN.trace_id, SPAN.span_id, SPAN.parent_id,
    )  # fmt: skip
    assert (span["kind"], span["status"]["code"]) == (3, 2)
    own = json_format.ParseDict(
        json.loads(json.dumps(data).replace(SPAN.trace_id, base64.b64encode(b"1" * 16).decode())),
        ExportTraceServiceRequest(),
    )
    assert own.resource_spans[0].scope_spans[0].spans[0].name == SPAN.name


def test_the_official_example_of_json_is_read() -> None:
    """After opentelemetry-proto/examples/trace.json: snake and camel case, ints as text."""
    body = {
        "resourceSpans": [{
            "resource": {"attributes": [
                {"key": "service.name", "value": {"stringValue": "my.service"}}]},
            "scopeSpans": [{
                "scope": {"name": "my.library", "version": "1.0.0"},
                "spans": [{
                    "traceId": "5B8EFFF798038103D269B633813FC60C",
                    "spanId": "EEE19B7EC3C1B174", "parentSpanId": "EEE19B7EC3C1B173",
                    "name": "I'm a server span", "startTimeUnixNano": "1544712660000000000",
                    "endTimeUnixNano": "1544712661000000000", "kind": 2, "unknownField": {"a": 1},
                    "attributes": [{"key": "traceId", "value": {"intValue": "7"}}],
                }],
            }],
        }],
    }  # fmt: skip
    ((span,), _) = read_otlp(json.dumps(body).encode(), JSON_TYPE)
    assert (span.trace_id, span.kind, span.scope) == (
        "5b8efff798038103d269b633813fc60c", "server", "my.library",
    )  # fmt: skip
    assert (span.seconds, span.attributes) == (1.0, {"traceId": 7})
    assert span.resource == {"service.name": "my.service"}


REFUSED: dict[str, tuple[Callable[[], bytes], str, str, int]] = {
    "too long": (lambda: b"x" * (MAX_BODY + 1), PROTOBUF, "", 413),
    "half a gzip": (lambda: zipped(zipped(b"x" * 100))[:30], PROTOBUF, "gzip", 400),
    "no protobuf": (lambda: b"\xff" * 30, PROTOBUF, "", 400),
    "half an object": (lambda: b"{", JSON_TYPE, "", 400),
    "no list": (lambda: b'{"resourceSpans": 3}', JSON_TYPE, "", 400),
    "deep objects": (lambda: b'{"a":' * 100_000 + b"1" + b"}" * 100_000, JSON_TYPE, "", 400),
    "another type": (lambda: b"", "text/plain", "", 415),
    "another encoding": (lambda: b"", PROTOBUF, "br", 415),
}  # fmt: skip
"""Bodies are made when the test runs: megabytes, that a collected test would keep."""


def zipped(body: bytes) -> bytes:
    """The same bytes at any time of day."""
    return gzip.compress(body, mtime=0)


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_request_or_too_much_is_refused(case: str) -> None:
    make, kind, encoding, status = REFUSED[case]
    body = make()
    with pytest.raises(OtlpError) as caught:
        read_otlp(body, kind, encoding)
    assert caught.value.status == status
    assert len(str(caught.value)) < 500


def test_the_answer_says_how_many_were_rejected() -> None:
    answer = ExportTraceServiceResponse.FromString(response_body(PROTOBUF, 3))
    assert answer.partial_success.rejected_spans == 3
    assert json.loads(response_body(JSON_TYPE)) == {}
    assert response_body(PROTOBUF) == b""
