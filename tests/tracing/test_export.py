"""Export to a collector: what arrives, and what a collector that is down does not do."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from tests.collector import Collector

from tutelage.errors import ConfigError
from tutelage.tracing import rollout_spans
from tutelage.tracing.content import remove_content
from tutelage.tracing.export import OtlpExporter, endpoint, headers
from tutelage.tracing.otlp import encode_protobuf

from .samples import foreign, rollout


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


def dead() -> str:
    """An address where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/v1/traces"


def exporter(url: str, warnings: list[str], **settings: object) -> OtlpExporter:
    return OtlpExporter(url, warn=warnings.append, extra_headers={}, **settings)  # pyright: ignore


def test_rollouts_and_spans_arrive(collector: Collector) -> None:
    warnings: list[str] = []
    with exporter(endpoint(collector.url) or "", warnings) as out:
        out.submit([foreign(1, rollout_id="roll_99")])
        out.submit([rollout(name=f"roll_{i}") for i in range(100)])
        assert out.flush(30)
    wanted = [s for i in range(100) for s in rollout_spans(rollout(name=f"roll_{i}"))]
    wanted = [remove_content(span) for span in wanted]
    (theirs,) = (span for span in collector.spans if span.scope == "theirs")
    sent = [span for span in collector.spans if span is not theirs]
    assert encode_protobuf(sent) == encode_protobuf(wanted)
    assert (theirs.name, theirs.parent_id) == ("foreign 1", wanted[-4].span_id)
    assert {r["path"] for r in collector.requests} == {"/v1/traces"}
    assert (out.dropped, warnings) == (0, [])


def test_a_collector_that_is_down_is_one_warning_and_holds_up_nothing() -> None:
    warnings: list[str] = []
    out = exporter(dead(), warnings, max_queue=50)
    for i in range(200):
        out.submit([rollout(name=f"roll_{i}")])
    assert out.flush(20) is False
    out.submit([rollout()] * 200)
    out.close()
    out.close()
    assert len(warnings) == 1
    assert "cannot reach http://127.0.0.1" in warnings[0]
    assert "the run continues" in warnings[0].lower()
    assert out.dropped == 400


def test_a_collector_that_comes_back_at_once_gets_what_waited(collector: Collector) -> None:
    collector.statuses = [503, 429]
    warnings: list[str] = []
    with exporter(collector.url, warnings) as out:
        out.submit([rollout()])
        assert out.flush(30)
    assert (len(collector.spans), out.dropped, warnings) == (4, 0, [])


def test_a_refusal_is_final(collector: Collector) -> None:
    collector.statuses = [400]
    warnings: list[str] = []
    with exporter(collector.url, warnings) as out:
        out.submit([rollout()])
        out.flush(20)
    assert (len(collector.requests), out.dropped, len(warnings)) == (1, 1, 1)


@pytest.mark.parametrize(
    ("url", "env", "wanted"),
    [
        (None, {}, None),
        ("http://h:4318", {}, "http://h:4318/v1/traces"),
        ("http://h:4318/", {}, "http://h:4318/v1/traces"),
        ("http://h/own/path", {}, "http://h/own/path"),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://h/x/"}, "https://h/x/v1/traces"),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h/y"}, "http://h/y"),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", "OTEL_SDK_DISABLED": "true"}, None),
        ("http://a/b", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h"}, "http://a/b"),
    ],
)
def test_where_traces_go(url: str | None, env: dict[str, str], wanted: str | None) -> None:
    assert endpoint(url, env) == wanted


@pytest.mark.parametrize("written", ["x-team=Zürich", "x-team=Z%C3%BCrich"])
def test_a_header_that_cannot_be_sent_is_named_without_its_value(written: str) -> None:
    name = "OTEL_EXPORTER_OTLP_HEADERS"
    with pytest.raises(ConfigError) as caught:
        headers({name: f"a=b,{written}"})
    told = str(caught.value)
    assert told.startswith(f"header 2 of 2 in {name} cannot be sent: use letters, digits and -")
    assert "rich" not in told


def test_headers_of_the_environment() -> None:
    env = {"OTEL_EXPORTER_OTLP_HEADERS": "Api-Key=a%20b, x=1,broken"}
    assert headers(env) == {"api-key": "a b", "x": "1"}
