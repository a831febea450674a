"""A collector of traces on this machine, to see what a program exports.

It takes OTLP over HTTP, as protobuf or JSON, and keeps the spans. It can be told to fail or to
hesitate, for tests of what an exporter does then. `tracing/export.py` is the other side.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from typing import Self

from tests.loopback import listening

from tutelage.tracing import SpanRecord
from tutelage.tracing.otlp import read_otlp

_PATIENCE = 20.0
"""Seconds that a request waits at most while `go` is not set."""


class Collector:
    """A context manager that listens on a free loopback port, at `url`.

    `spans` and `requests` (headers and path) are what came. `statuses` are its next answers, after
    which it answers 200; while `go` is cleared it lets requests wait.
    """

    def __init__(self) -> None:
        self.spans: list[SpanRecord] = []
        self.requests: list[dict[str, str]] = []
        self.statuses: list[int] = []
        self.go = threading.Event()
        self.go.set()
        self._serving = ExitStack()
        self.url = self._serving.enter_context(listening(_handler(self)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.go.set()
        self._serving.close()


def _handler(collector: Collector) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.go.wait(_PATIENCE)
            status = collector.statuses.pop(0) if collector.statuses else 200
            values = {k.lower(): v for k, v in self.headers.items()}
            collector.requests.append({"path": self.path, **values})
            if status == 200:
                kind, encoding = values["content-type"], values.get("content-encoding", "")
                collector.spans += read_otlp(body, kind, encoding)[0]
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: a request is no news."""

    return Handler
