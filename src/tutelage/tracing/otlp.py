"""OTLP, the wire format of OpenTelemetry: spans to protobuf and JSON, and bodies to spans.

The messages are those of the `opentelemetry-proto` package, written by OpenTelemetry's own encoder;
OTLP's JSON differs from theirs only in that identifiers are hexadecimal. A body comes from a
program that nobody vouches for, so its bytes are bounded, compressed and plain, and its spans.
`ingest.py` says to which rollout a span belongs.
"""

from __future__ import annotations

import base64
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode

from tutelage.bounded import parse_json
from tutelage.tracing.records import KINDS, STATUSES, SpanEvent, SpanRecord

PROTOBUF = "application/x-protobuf"
JSON_TYPE = "application/json"
MAX_BODY = 8 << 20
"""Bytes of a body, as sent and after decompression alike."""
MAX_SPANS = 20_000
"""Spans, or groups of them, in one body."""
MAX_OBJECTS = 1_000_000
"""Objects in a body of JSON, which are read slowly."""
_HEX = re.compile(r"[0-9a-fA-F]*\Z")
_ID_FIELDS = ("traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id")


class OtlpError(ValueError):
    """A body that is not taken; `status` is the HTTP status that says so."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def read_otlp(body: bytes, content_type: str, encoding: str = "") -> list[SpanRecord]:
    """The spans of the body of `POST /v1/traces`.

    `content_type` is `application/x-protobuf` or `application/json`, `encoding` empty, `identity`
    or `gzip`. Spans without valid identifiers are left out (see `read_counted`). Raises `OtlpError`
    with 400 for what cannot be read, 413 for what is too large, 415 for another type or encoding.
    """
    return read_counted(body, content_type, encoding)[0]


def read_counted(
    body: bytes, content_type: str, encoding: str = ""
) -> tuple[list[SpanRecord], int]:
    """`read_otlp`, and how many spans were left out because their identifiers are not valid."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in (PROTOBUF, JSON_TYPE):
        raise OtlpError(f"unsupported type {content_type!r}: send {PROTOBUF} or {JSON_TYPE}", 415)
    plain = _decompress(body, encoding.strip().lower())
    try:
        parse = _parse_json if kind == JSON_TYPE else ExportTraceServiceRequest.FromString
        return _records(parse(plain))
    except DecodeError as error:
        raise OtlpError(f"the body is not an OTLP request: {error}") from None


def response_body(content_type: str, rejected: int = 0) -> bytes:
    """The answer to a body that was taken, in the type in which it came."""
    response = ExportTraceServiceResponse()
    if rejected:
        response.partial_success.rejected_spans = rejected
        response.partial_success.error_message = "spans without a valid trace and span id"
    if content_type.partition(";")[0].strip().lower() == JSON_TYPE:
        return json_format.MessageToJson(response, indent=None).encode()
    return response.SerializeToString()


def encode_protobuf(spans: Iterable[SpanRecord]) -> bytes:
    """The body of `POST /v1/traces` in protobuf."""
    return _request(spans).SerializeToString()


def encode_json(spans: Iterable[SpanRecord]) -> dict[str, Any]:
    """The same in OTLP's JSON; one of these a line is what collectors read from a file."""
    data = json_format.MessageToDict(_request(spans), use_integers_for_enums=True)
    return cast("dict[str, Any]", _convert_ids(data, _to_hex))


# ---------------------------------------------------------------- reading


def _decompress(body: bytes, encoding: str) -> bytes:
    if len(body) > MAX_BODY:
        raise OtlpError(f"the body has {len(body)} bytes; the limit is {MAX_BODY}", 413)
    if encoding in ("", "identity"):
        return body
    if encoding != "gzip":
        raise OtlpError(f"unsupported content encoding {encoding!r}: send gzip or none", 415)
    machine = zlib.decompressobj(wbits=31)
    try:
        plain = machine.decompress(body, MAX_BODY + 1)
    except zlib.error as error:
        raise OtlpError(f"the body is not valid gzip: {error}") from None
    if len(plain) > MAX_BODY:
        raise OtlpError(f"the body decompresses to more than {MAX_BODY} bytes", 413)
    if not machine.eof:
        raise OtlpError("the gzip body is truncated")
    return plain


def _parse_json(body: bytes) -> ExportTraceServiceRequest:
    if body.count(b"{") > MAX_OBJECTS:
        raise OtlpError(f"the body has more than {MAX_OBJECTS} objects", 413)
    try:
        data: Any = parse_json(body, longest=MAX_BODY)
        if not isinstance(data, dict):
            raise OtlpError(f"the body is a JSON {type(data).__name__}, not an object")
        plain = _convert_ids(data, _from_hex)
        return json_format.ParseDict(
            cast("dict[str, Any]", plain), ExportTraceServiceRequest(), ignore_unknown_fields=True
        )
    except OtlpError:
        raise
    except RecursionError:
        raise OtlpError("the body is nested too deeply") from None
    except (ValueError, TypeError, AttributeError, json_format.ParseError) as error:
        raise OtlpError(f"the body is not an OTLP request: {str(error)[:300]}") from None


def _convert_ids(value: Any, convert: Any) -> Any:
    """A copy with the identifiers in `resourceSpans` written the other way."""
    if isinstance(value, list):
        return [_convert_ids(item, convert) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    out: dict[str, Any] = {}
    for key, item in cast("dict[str, Any]", value).items():
        if key in _ID_FIELDS and isinstance(item, str):
            out[key] = convert(item)
        elif key in ("attributes", "body"):
            out[key] = item  # what people wrote may use the same names
        else:
            out[key] = _convert_ids(item, convert)
    return out


def _from_hex(text: str) -> str:
    if len(text) % 2 or not _HEX.match(text):
        return ""  # no identifier: the span is counted as rejected
    return base64.b64encode(bytes.fromhex(text)).decode()


def _to_hex(text: str) -> str:
    return base64.b64decode(text).hex()


def _records(request: ExportTraceServiceRequest) -> tuple[list[SpanRecord], int]:
    out: list[SpanRecord] = []
    rejected = 0
    groups = request.resource_spans
    if len(groups) > MAX_SPANS or sum(len(each.scope_spans) for each in groups) > MAX_SPANS:
        raise OtlpError(f"the body has more than {MAX_SPANS} groups of spans", 413)
    for group in groups:
        resource = _attributes(group.resource.attributes)
        for scoped in group.scope_spans:
            if len(out) + rejected + len(scoped.spans) > MAX_SPANS:
                raise OtlpError(f"the body has more than {MAX_SPANS} spans", 413)
            for span in scoped.spans:
                if _valid(span.trace_id, 16) and _valid(span.span_id, 8):
                    out.append(_record(span, resource, scoped.scope.name))
                else:
                    rejected += 1
    return out, rejected


def _valid(identifier: bytes, size: int) -> bool:
    return len(identifier) == size and any(identifier)


def _record(span: Span, resource: Mapping[str, Any], scope: str) -> SpanRecord:
    parent = span.parent_span_id
    # Times are unsigned on the wire; a store's integers are not.
    start = min(span.start_time_unix_nano, _MAX_TIME)
    return SpanRecord(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=parent.hex() if _valid(parent, 8) else None,
        name=span.name,
        start_ns=start,
        end_ns=max(start, min(span.end_time_unix_nano, _MAX_TIME)),
        kind=KINDS[span.kind] if span.kind < len(KINDS) else "unspecified",
        attributes=_attributes(span.attributes),
        events=tuple(
            SpanEvent(e.name, min(e.time_unix_nano, _MAX_TIME), _attributes(e.attributes))
            for e in span.events
        ),
        status=STATUSES[span.status.code] if span.status.code < len(STATUSES) else "unset",
        status_message=span.status.message,
        resource=resource,
        scope=scope,
    )


_MAX_TIME = 2**63 - 1


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {pair.key: _value(pair.value) for pair in value.kvlist_value.values}
    if kind == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    plain: Any = getattr(value, kind)
    if isinstance(plain, float) and not math.isfinite(plain):
        return str(plain)  # JSON, which the store keeps, has no word for it
    return plain


# ---------------------------------------------------------------- writing


def _request(spans: Iterable[SpanRecord]) -> ExportTraceServiceRequest:
    return encode_spans([readable(span) for span in spans])


def readable(record: SpanRecord) -> ReadableSpan:
    """The span as the OpenTelemetry SDK has it, which its exporters take; texts are valid UTF-8."""

    def place(span_id: str) -> SpanContext:
        return SpanContext(int(record.trace_id, 16), int(span_id, 16), False)

    message = _text(record.status_message) if record.status == "error" else None
    return ReadableSpan(
        name=_text(record.name),
        context=place(record.span_id),
        parent=place(record.parent_id) if record.parent_id else None,
        kind=SpanKind(max(0, KINDS.index(record.kind) - 1)),  # the SDK has no unspecified one
        start_time=record.start_ns,
        end_time=record.end_ns,
        attributes=_written(record.attributes),
        events=[Event(_text(e.name), _written(e.attributes), e.time_ns) for e in record.events],
        status=Status(StatusCode(STATUSES.index(record.status)), message),
        resource=Resource(_written(record.resource)),
        instrumentation_scope=InstrumentationScope(_text(record.scope)),
    )


def _written(value: Any) -> Any:
    """The value with texts that are valid UTF-8, and as a text where OTLP has no word for it."""
    match value:
        case None | bool() | float():
            return value
        case int() if -(2**63) <= value < 2**63:
            return value
        case Mapping():
            items = cast("Mapping[str, Any]", value).items()
            return {_text(name): _written(item) for name, item in items}
        case list() | tuple():
            return [_written(item) for item in cast("Sequence[Any]", value)]
        case _:
            return _text(str(value))


def _text(text: str) -> str:
    # A model can write half a surrogate pair, which has no UTF-8 form.
    return text.encode("utf-8", "backslashreplace").decode()
