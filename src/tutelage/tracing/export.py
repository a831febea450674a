"""Export spans to an OTLP/HTTP collector without delaying any rollout.

A thread takes rollouts and spans from a bounded queue and passes them to OpenTelemetry's exporter.
Submitting never waits: what does not fit is dropped and counted, and the store keeps it anyway. If
a collector is down, one warning is given, and everything submitted until it is up is lost.
`endpoint` reads the standard variables of OpenTelemetry exporters.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from tutelage.config.api_keys import find_bad_character
from tutelage.errors import ConfigError, MissingExtraError
from tutelage.tracing.content import remove_content
from tutelage.tracing.otlp import to_sdk
from tutelage.tracing.records import SpanRecord
from tutelage.tracing.tree import whole_trace
from tutelage.types import Rollout

TRACES_PATH = "/v1/traces"
MAX_QUEUE = 4096
"""Maximum number of rollouts and spans in the queue."""
MAX_BATCH = 64
"""Maximum number of rollouts or spans in one request."""
TIMEOUT = 10.0
"""Timeout of one request in seconds."""
CLOSE_SECONDS = 5.0
"""Seconds that `close` waits for the queue; it does not wait if the collector is down."""
PAUSE = 30.0
"""Seconds between a failed request and the next try: what is submitted meanwhile is lost."""
_THREAD = "otlp-export"
_MAX_EARLY = 4096
"""Maximum number of spans that wait for their rollouts; beyond it the oldest are sent without."""
_HEADER_NAME = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
"""A token of the HTTP grammar."""


def endpoint(url: str | None = None, env: Mapping[str, str] = os.environ) -> str | None:
    """Return the URL of the trace collector: `url`, or the URL in the environment, or None.

    `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` is used unchanged; `OTEL_EXPORTER_OTLP_ENDPOINT` and a
    `url` without a path get `/v1/traces`. Raises `ConfigError` for an invalid http URL.
    """
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" and url is None:
        return None
    text = url or env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "").strip()
    if not text and (base := env.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()):
        text = base.rstrip("/") + TRACES_PATH
    if not text:
        return None
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(
            f"{text!r} is not an OTLP/HTTP endpoint: use a URL such as http://localhost:4318"
        )
    return urlunsplit(parts._replace(path=TRACES_PATH)) if parts.path in ("", "/") else text


def headers(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the HTTP headers for the collector, such as an API key, from the environment.

    Variables have the form `a=b,c=d`.

    Raises `ConfigError` for a header that cannot be sent.
    """
    name = "OTEL_EXPORTER_OTLP_TRACES_HEADERS"
    name = name if env.get(name) else "OTEL_EXPORTER_OTLP_HEADERS"
    pairs = (item.partition("=") for item in env.get(name, "").split(",") if "=" in item)
    values = {key.strip().lower(): unquote(value).strip() for key, _, value in pairs}
    for number, (key, value) in enumerate(values.items(), 1):
        # Show neither: a key may have been written in place of a name.
        if not _HEADER_NAME.fullmatch(key) or find_bad_character(value):
            raise ConfigError(
                f"header {number} of {len(values)} in {name} cannot be sent: use letters, digits "
                "and - in its name, as in x-team, and printable ASCII in its value"
            )
    return values


class OtlpExporter:
    """Context manager that exports rollouts and spans to an OTLP collector from a background
    thread.

    `warn` is called with at most one message, from the thread. `content` sends messages, tool
    arguments and results, texts of errors and everything that a framework wrote into its own spans;
    without it they are removed (`content.py`). Raises `ConfigError` for a header that cannot be
    sent, and `MissingExtraError` without OpenTelemetry's exporter.
    """

    def __init__(
        self,
        url: str,
        *,
        warn: Callable[[str], None],
        content: bool = False,
        max_queue: int = MAX_QUEUE,
        extra_headers: Mapping[str, str] | None = None,
    ) -> None:
        own = headers() if extra_headers is None else dict(extra_headers)
        try:
            import requests
            from opentelemetry.exporter.otlp.proto.http import Compression
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        except ImportError as error:
            raise MissingExtraError(
                "sending traces needs OpenTelemetry's exporter: pip install 'tutelage[otlp]'"
            ) from error
        session = requests.Session()
        session.trust_env = urlsplit(url).hostname not in ("localhost", "127.0.0.1", "::1")
        self._exporter = OTLPSpanExporter(
            url, headers=own, timeout=TIMEOUT, compression=Compression.Gzip, session=session
        )
        self.url, self._warn, self._content, self._max_queue = url, warn, content, max_queue
        self._lock, self._waiting = threading.Lock(), 0
        self._early: dict[str, list[SpanRecord]] = {}
        """Spans that wait for their rollouts."""
        self._sending = threading.Lock()
        """Held while a request is made."""
        self._warned = self._closed = False
        self._retry_at = 0.0
        """Time of the next try after a failed request; 0 if none failed."""
        self._reason = f"cannot reach {url}"
        session.hooks["response"].append(self._set_reason)
        self.dropped = 0
        """Number of rollouts and spans that were not sent."""
        self._pool = ThreadPoolExecutor(1, _THREAD)
        # The exporter logs every failed request; `warn` reports one.
        logging.getLogger(OTLPSpanExporter.__module__).addFilter(
            lambda record: not (record.threadName or "").startswith(_THREAD)
        )

    def __enter__(self) -> OtlpExporter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def submit(self, items: Sequence[Rollout] | Sequence[SpanRecord]) -> None:
        """Queue rollouts (with all their spans) or single spans for export, without waiting.

        Does nothing after `close`.
        """
        with self._lock:
            queued = items[: 0 if self._closed else self._max_queue - self._waiting]
            self._waiting += len(queued)
            self.dropped += len(items) - len(queued)
            for start in range(0, len(queued), MAX_BATCH):
                self._pool.submit(self._send, queued[start : start + MAX_BATCH])

    def flush(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Wait at most `seconds` until all queued spans are sent; return False on a timeout."""
        done = wait([self._pool.submit(int)], seconds).done
        return bool(done) and not self._retry_at

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Send the queued spans within `seconds` and stop the thread. May be called twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            waiting = self._pool.submit(self._send, ())
        wait([waiting], 0.0 if self._retry_at else seconds)
        self._exporter.shutdown()  # which stops its retries
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._sending.acquire(timeout=1.0):  # held until the current request ends
            self._sending.release()
        self.dropped += self._waiting
        if self.dropped:
            self._warn_once(f"{self.dropped} rollouts or spans were not sent to {self.url}")

    def _send(self, items: Sequence[Rollout | SpanRecord]) -> None:
        with self._sending:
            spans = self._join_spans(items)
            sent = not spans
            if spans and time.monotonic() >= self._retry_at:
                sent = self._exporter.export([to_sdk(span) for span in spans]).name == "SUCCESS"
                self._retry_at = 0.0 if sent else time.monotonic() + PAUSE
            with self._lock:
                self._waiting -= len(items)
                self.dropped += 0 if sent else len(items)
            if not sent:
                self._warn_once(
                    f"cannot send traces: {self._reason}. The run continues; its store keeps the "
                    "traces: tutelage export RUN --format otlp"
                )

    def _join_spans(self, items: Sequence[Rollout | SpanRecord]) -> list[SpanRecord]:
        """Return the spans to export. Without items, these are the spans whose rollout was not
        submitted.

        A framework's spans arrive before their rollout, and both contain its calls. So spans wait
        for their rollout, and are joined with it as in `tree.py`, so that each call is sent once.
        """
        spans: list[SpanRecord] = []
        for item in items:
            if isinstance(item, Rollout):
                early = self._early.pop(item.id, ())
                spans += whole_trace(item, early, content=self._content)
            else:
                self._early.setdefault(item.rollout_id or "", []).append(item)
        limit = _MAX_EARLY if items else 0
        while sum(map(len, self._early.values())) > limit:
            spans += self._early.pop(next(iter(self._early)))
        return spans if self._content else [remove_content(span) for span in spans]

    def _set_reason(self, response: Any, **options: Any) -> None:
        self._reason = f"{self.url} returned status {response.status_code}"

    def _warn_once(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            self._warn(message)
