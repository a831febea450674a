"""OTLP, the wire format of OpenTelemetry: encode spans as protobuf and JSON, and decode bodies.

The messages are those of the `opentelemetry-proto` package, written by OpenTelemetry's own encoder;
OTLP's JSON differs from theirs only in its hexadecimal identifiers. A body may come from an
untrusted program, so its bytes, compressed and plain, and its spans are limited. `ingest.py`
assigns spans to rollouts.
"""

from __future__ import annotations

import base64
import gzip
import io
import math
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode

from tutelage.bounded import parse_json
from tutelage.tracing.records import KINDS, STATUSES, SpanEvent, SpanRecord

PROTOBUF = "application/x-protobuf"
JSON_TYPE = "application/json"
MAX_BODY = 8 << 20
"""Maximum bytes of a body, both as sent and after decompression."""
MAX_SPANS = 20_000
"""Maximum number of spans, or of groups of spans, in one body."""
MAX_OBJECTS = 1_000_000
"""Maximum number of objects in a JSON body, which is slow to read."""
_TRACE_ID, _SPAN_ID = re.compile("(?!0+$)[0-9a-f]{32}"), re.compile("(?!0+$)[0-9a-f]{16}")


class OtlpError(ValueError):
    """Error for a rejected OTLP body. `status` is the HTTP status to return."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def read_otlp(body: bytes, content_type: str, encoding: str = "") -> tuple[list[SpanRecord], int]:
    """Parse a `POST /v1/traces` body; return its spans and the number of spans with invalid
    identifiers, which are left out.

    `content_type` is `application/x-protobuf` or `application/json`, `encoding` empty, `identity`
    or `gzip`. Raises `OtlpError` with 400 for an unreadable body, 413 for one that is too large,
    415 for another type or encoding.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in (PROTOBUF, JSON_TYPE):
        raise OtlpError(f"unsupported type {content_type!r}: send {PROTOBUF} or {JSON_TYPE}", 415)
    plain = _decompress(body, encoding.strip().lower())
    try:
        if kind == JSON_TYPE:
            return _decode(_parse_json(plain), lambda raw: base64.b64encode(raw).decode().lower())
        return _decode(ExportTraceServiceRequest.FromString(plain))
    except DecodeError as error:
        raise OtlpError(f"the body is not an OTLP request: {error}") from None


def response_body(content_type: str, rejected: int = 0) -> bytes:
    """Return the response to an accepted OTLP body, in the same content type."""
    response = ExportTraceServiceResponse()
    if rejected:
        response.partial_success.rejected_spans = rejected
        response.partial_success.error_message = "spans without a valid trace and span id"
    if content_type.partition(";")[0].strip().lower() == JSON_TYPE:
        return json_format.MessageToJson(response, indent=None).encode()
    return response.SerializeToString()


def encode_protobuf(spans: Iterable[SpanRecord]) -> bytes:
    """Encode spans as a protobuf body of `POST /v1/traces`."""
    return _to_request(spans).SerializeToString()


def encode_json(spans: Iterable[SpanRecord]) -> dict[str, Any]:
    """Encode spans as an OTLP JSON body of `POST /v1/traces`.

    Collectors read files with one such body per line.
    """
    data = json_format.MessageToDict(_to_request(spans), use_integers_for_enums=True)
    scoped = (each for group in data.get("resourceSpans", ()) for each in group["scopeSpans"])
    for span in (span for each in scoped for span in each["spans"]):
        for name in ("traceId", "spanId", "parentSpanId"):
            if name in span:
                span[name] = base64.b64decode(span[name]).hex()
    return data


def from_sdk(span: ReadableSpan) -> SpanRecord:
    """Convert an ended span of the OpenTelemetry SDK to a record."""
    return _decode(encode_spans([span]))[0][0]


# ---------------------------------------------------------------- reading


def _decompress(body: bytes, encoding: str) -> bytes:
    if len(body) > MAX_BODY:
        raise OtlpError(f"the body has {len(body)} bytes; the limit is {MAX_BODY}", 413)
    if encoding in ("", "identity"):
        return body
    if encoding != "gzip":
        raise OtlpError(f"unsupported content encoding {encoding!r}: use gzip or identity", 415)
    try:
        plain = gzip.GzipFile(fileobj=io.BytesIO(body)).read(MAX_BODY + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise OtlpError(f"the body is not valid gzip: {error}") from None
    if len(plain) > MAX_BODY:
        raise OtlpError(f"the body decompresses to more than {MAX_BODY} bytes", 413)
    return plain


def _parse_json(body: bytes) -> ExportTraceServiceRequest:
    if body.count(b"{") > MAX_OBJECTS:
        raise OtlpError(f"the body has more than {MAX_OBJECTS} objects", 413)
    try:
        data: Any = parse_json(body, max_length=MAX_BODY)
        if not isinstance(data, dict):
            raise TypeError(f"expected a JSON object, got {type(data).__name__}")
        return json_format.ParseDict(
            cast("dict[str, Any]", data), ExportTraceServiceRequest(), ignore_unknown_fields=True
        )
    except (RecursionError, ValueError, TypeError, AttributeError, json_format.Error) as error:
        raise OtlpError(f"the body is not an OTLP request: {str(error)[:300]}") from None


def _decode(
    request: ExportTraceServiceRequest, read_id: Callable[[bytes], str] = bytes.hex
) -> tuple[list[SpanRecord], int]:
    """Return the spans of an OTLP request, and the number of spans with invalid identifiers.

    JSON identifiers are hexadecimal texts, which were parsed as base64: `read_id` reverses that.
    """
    out: list[SpanRecord] = []
    rejected = 0
    groups = request.resource_spans
    if len(groups) > MAX_SPANS or sum(len(each.scope_spans) for each in groups) > MAX_SPANS:
        raise OtlpError(f"the body has more than {MAX_SPANS} groups of spans", 413)
    for group in groups:
        resource = _read_attributes(group.resource.attributes)
        for scoped in group.scope_spans:
            if len(out) + rejected + len(scoped.spans) > MAX_SPANS:
                raise OtlpError(f"the body has more than {MAX_SPANS} spans", 413)
            for span in scoped.spans:
                trace_id, span_id, parent = map(
                    read_id, (span.trace_id, span.span_id, span.parent_span_id)
                )
                if not (_TRACE_ID.fullmatch(trace_id) and _SPAN_ID.fullmatch(span_id)):
                    rejected += 1
                    continue
                # Times are unsigned on the wire; the store's integers are signed.
                start, code = min(span.start_time_unix_nano, _MAX_TIME), span.status.code
                record = SpanRecord(
                    trace_id=trace_id,
                    span_id=span_id,
                    parent_id=parent if _SPAN_ID.fullmatch(parent) else None,
                    name=span.name,
                    start_ns=start,
                    end_ns=max(start, min(span.end_time_unix_nano, _MAX_TIME)),
                    kind=KINDS[span.kind] if span.kind < len(KINDS) else "unspecified",
                    attributes=_read_attributes(span.attributes),
                    events=tuple(
                        SpanEvent(
                            e.name, min(e.time_unix_nano, _MAX_TIME), _read_attributes(e.attributes)
                        )
                        for e in span.events
                    ),
                    status=STATUSES[code] if code < len(STATUSES) else "unset",
                    status_message=span.status.message,
                    resource=resource,
                    scope=scoped.scope.name,
                )
                out.append(record)
    return out, rejected


_MAX_TIME = 2**63 - 1


def _read_attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _read_value(pair.value) for pair in pairs}


def _read_value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_read_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {pair.key: _read_value(pair.value) for pair in value.kvlist_value.values}
    if kind == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    plain: Any = getattr(value, kind)
    if isinstance(plain, float) and not math.isfinite(plain):
        return str(plain)  # the store keeps JSON, which cannot represent it
    return plain


# ---------------------------------------------------------------- writing


def _to_request(spans: Iterable[SpanRecord]) -> ExportTraceServiceRequest:
    return encode_spans([to_sdk(span) for span in spans])


def to_sdk(record: SpanRecord) -> ReadableSpan:
    """Convert a span record to a span of the OpenTelemetry SDK, for its exporters. Texts are
    valid UTF-8."""

    def span_context(span_id: str) -> SpanContext:
        return SpanContext(int(record.trace_id, 16), int(span_id, 16), False)

    message = _to_utf8(record.status_message) if record.status == "error" else None
    return ReadableSpan(
        name=_to_utf8(record.name),
        context=span_context(record.span_id),
        parent=span_context(record.parent_id) if record.parent_id else None,
        kind=SpanKind(max(0, KINDS.index(record.kind) - 1)),  # the SDK has no unspecified kind
        start_time=record.start_ns,
        end_time=record.end_ns,
        attributes=_to_value(record.attributes),
        events=[Event(_to_utf8(e.name), _to_value(e.attributes), e.time_ns) for e in record.events],
        status=Status(StatusCode(STATUSES.index(record.status)), message),
        resource=Resource(_to_value(record.resource)),
        instrumentation_scope=InstrumentationScope(_to_utf8(record.scope)),
    )


def _to_value(value: Any) -> Any:
    """Convert an attribute value to a type of OTLP, with valid UTF-8 text. Other types become
    text."""
    match value:
        case None | bool() | float():
            return value
        case int() if -(2**63) <= value < 2**63:
            return value
        case Mapping():
            items = cast("Mapping[str, Any]", value).items()
            return {_to_utf8(name): _to_value(item) for name, item in items}
        case list() | tuple():
            return [_to_value(item) for item in cast("Sequence[Any]", value)]
        case _:
            return _to_utf8(str(value))


def _to_utf8(text: str) -> str:
    # A model can write half a surrogate pair, which has no UTF-8 form.
    return text.encode("utf-8", "backslashreplace").decode()
