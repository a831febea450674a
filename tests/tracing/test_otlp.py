"""OTLP bodies: what is written reads back, what others write is read, bombs are refused."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st
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


def test_spans_without_valid_identifiers_are_counted() -> None:
    request = ExportTraceServiceRequest()
    scoped = request.resource_spans.add().scope_spans.add()
    for trace, span in ((b"1" * 16, b"2" * 8), (b"", b"2" * 8), (b"\0" * 16, b"2" * 8),
                        (b"1" * 16, b"2" * 7)):  # fmt: skip
        made = scoped.spans.add()
        made.trace_id, made.span_id = trace, span
        made.start_time_unix_nano, made.end_time_unix_nano = 2**64 - 1, 1
        made.kind = 77  # pyright: ignore
    spans, rejected = read_otlp(request.SerializeToString(), PROTOBUF)
    assert (len(spans), rejected) == (1, 3)
    assert (spans[0].start_ns, spans[0].end_ns, spans[0].kind) == (2**63 - 1,) * 2 + (
        "unspecified",
    )
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "xyz"}]}]}]})
    assert read_otlp(body.encode(), JSON_TYPE) == ([], 1)


def test_what_json_has_no_word_for_becomes_text() -> None:
    odd = replace(SPAN, attributes={"nan": float("nan"), "inf": float("inf"), "big": 2**70})
    ((span,), _) = read_otlp(encode_protobuf([odd]), PROTOBUF)
    assert span.attributes == {"nan": "nan", "inf": "inf", "big": str(2**70)}
    ((span,), _) = read_otlp(encode_protobuf([replace(SPAN, name="half \ud83d")]), PROTOBUF)
    assert span.name == "half \\ud83d"


def bomb(levels: tuple[int, ...], filler: bytes, size: int) -> bytes:
    """`filler` as often as fits, inside messages of these field numbers."""

    def varint(value: int) -> bytes:
        out = b""
        while value > 0x7F:
            out += bytes([value & 0x7F | 0x80])
            value >>= 7
        return out + bytes([value])

    body = filler * (size // len(filler))
    for field in reversed(levels):
        body = bytes([field << 3 | 2]) + varint(len(body)) + body
    return body


REFUSED: dict[str, tuple[Callable[[], bytes], str, str, int]] = {
    "too long": (lambda: b"x" * (MAX_BODY + 1), PROTOBUF, "", 413),
    "too long unpacked": (lambda: zipped(b"\0" * (MAX_BODY + 1)), PROTOBUF, "gzip", 413),
    "half a gzip": (lambda: zipped(zipped(b"x" * 100))[:30], PROTOBUF, "gzip", 400),
    "no gzip": (lambda: b"no gzip", PROTOBUF, "gzip", 400),
    "no protobuf": (lambda: b"\xff" * 30, PROTOBUF, "", 400),
    "many resources": (lambda: bomb((), b"\x0a\x00", 4 << 20), PROTOBUF, "", 413),
    "many scopes": (lambda: bomb((1,), b"\x12\x00", 4 << 20), PROTOBUF, "", 413),
    "many spans": (lambda: bomb((1, 2), b"\x12\x00", 4 << 20), PROTOBUF, "", 413),
    "half an object": (lambda: b"{", JSON_TYPE, "", 400),
    "no object": (lambda: b"[]", JSON_TYPE, "", 400),
    "no list": (lambda: b'{"resourceSpans": 3}', JSON_TYPE, "", 400),
    "deep lists": (lambda: b"[" * 100_000, JSON_TYPE, "", 400),
    "deep objects": (lambda: b'{"a":' * 100_000 + b"1" + b"}" * 100_000, JSON_TYPE, "", 400),
    "a long list": (
        lambda: b'{"resourceSpans": [' + b"{}," * 2_000_000 + b"{}]}", JSON_TYPE, "", 413
    ),
    "no text": (lambda: b"\xff\xfe", JSON_TYPE, "", 400),
    "another type": (lambda: b"", "text/plain", "", 415),
    "another encoding": (lambda: b"", PROTOBUF, "br", 415),
}  # fmt: skip
"""Bodies are made when the test runs: megabytes, that a collected test would keep."""


def zipped(body: bytes) -> bytes:
    """The same bytes at any time of day."""
    return gzip.compress(body, mtime=0)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.full if case == "many spans" else ())
        for case in REFUSED
    ],
)
def test_what_is_no_request_or_too_much_is_refused(case: str) -> None:
    make, kind, encoding, status = REFUSED[case]
    body = make()
    with pytest.raises(OtlpError) as caught:
        read_otlp(body, kind, encoding)
    assert caught.value.status == status
    assert len(str(caught.value)) < 500


def test_too_many_spans_are_refused() -> None:
    with pytest.raises(OtlpError, match="more than 20000 spans"):
        read_otlp(bomb((1, 2), b"\x12\x00", 2 * 20_001), PROTOBUF)


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=300), st.sampled_from([PROTOBUF, JSON_TYPE]), st.sampled_from(["", "gzip"])
)
def test_any_bytes_are_spans_or_an_error(body: bytes, kind: str, encoding: str) -> None:
    try:
        spans, _ = read_otlp(body, kind, encoding)
    except OtlpError:
        return
    assert all(len(span.trace_id) == 32 for span in spans)


json_things = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["resourceSpans", "scopeSpans", "spans", "traceId", "spanId", "name",
                         "attributes", "key", "value", "stringValue", "kind", "status", "code",
                         "events", "startTimeUnixNano", "resource"]),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(json_things)
def test_any_json_is_spans_or_an_error(thing: object) -> None:
    with contextlib.suppress(OtlpError):
        read_otlp(json.dumps(thing).encode(), JSON_TYPE)


def test_the_answer_says_how_many_were_rejected() -> None:
    answer = ExportTraceServiceResponse.FromString(response_body(PROTOBUF, 3))
    assert answer.partial_success.rejected_spans == 3
    assert json.loads(response_body(JSON_TYPE)) == {}
    assert response_body(PROTOBUF) == b""
