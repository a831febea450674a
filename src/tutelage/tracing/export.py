"""Sending spans to an OTLP/HTTP collector, off the path of every rollout.

A thread takes rollouts and spans from a bounded queue and hands them to OpenTelemetry's exporter.
Nothing that submits ever waits: what does not fit is dropped and counted, and the store has it
anyway. A collector that is down gives one warning, and what is submitted until it is up is lost.
`endpoint` reads the variables that every OpenTelemetry exporter reads.
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

from tutelage.config.api_keys import unsendable
from tutelage.errors import ConfigError, MissingExtraError
from tutelage.tracing.content import without_content
from tutelage.tracing.otlp import readable
from tutelage.tracing.records import SpanRecord
from tutelage.tracing.tree import whole_trace
from tutelage.types import Rollout

TRACES_PATH = "/v1/traces"
MAX_QUEUE = 4096
"""Rollouts and spans that may wait."""
MAX_BATCH = 64
"""Rollouts or spans in one request."""
TIMEOUT = 10.0
"""Seconds for one request."""
CLOSE_SECONDS = 5.0
"""How long `close` waits for what is queued; a collector that is down is given no time."""
PAUSE = 30.0
"""Seconds without a try after one that failed: what is submitted meanwhile is lost."""
_THREAD = "otlp-export"
_MAX_EARLY = 4096
"""Spans that may wait for their rollouts; the first ones then go without."""
_HEADER_NAME = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
"""What HTTP calls a token."""


def endpoint(url: str | None = None, env: Mapping[str, str] = os.environ) -> str | None:
    """Where traces go: `url`, or what the environment says; None when nobody asks for them.

    `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` is taken as it is, `OTEL_EXPORTER_OTLP_ENDPOINT` and a
    `url` without a path get `/v1/traces`. Raises `ConfigError` for what is no http URL.
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
    """The headers that the environment asks for, such as a collector's key: `a=b,c=d`.

    Raises `ConfigError` for what no header can carry.
    """
    name = "OTEL_EXPORTER_OTLP_TRACES_HEADERS"
    name = name if env.get(name) else "OTEL_EXPORTER_OTLP_HEADERS"
    pairs = (item.partition("=") for item in env.get(name, "").split(",") if "=" in item)
    given = {key.strip().lower(): unquote(value).strip() for key, _, value in pairs}
    for number, (key, value) in enumerate(given.items(), 1):
        # Neither is shown: a key may have been written in the place of a name.
        if not _HEADER_NAME.fullmatch(key) or unsendable(value):
            raise ConfigError(
                f"header {number} of {len(given)} in {name} cannot be sent: use letters, digits "
                "and - in its name, as in x-team, and printable ASCII in its value"
            )
    return given


class OtlpExporter:
    """Sends what is submitted to one collector. A context manager that closes.

    `warn` gets at most one sentence, from the exporter's thread. `content` sends messages, tool
    arguments and results, texts of errors and whatever a framework wrote into its own spans;
    without it they stay here (`content.py`). Raises `ConfigError` for a header that cannot be sent,
    and `MissingExtraError` without OpenTelemetry's exporter.
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
        self.url, self._warn, self._content, self._most = url, warn, content, max_queue
        self._lock, self._waiting = threading.Lock(), 0
        self._early: dict[str, list[SpanRecord]] = {}
        """Spans that wait for their rollouts."""
        self._sending = threading.Lock()
        """Held while a request is made."""
        self._warned = self._closed = False
        self._again = 0.0
        """When a collector that failed is tried again; 0 where it did not."""
        self._reason = f"cannot reach {url}"
        session.hooks["response"].append(self._answered)
        self.dropped = 0
        """Rollouts and spans that were not sent."""
        self._pool = ThreadPoolExecutor(1, _THREAD)
        # What the exporter logs of each of our tries is told once, by `warn`.
        logging.getLogger(OTLPSpanExporter.__module__).addFilter(
            lambda record: not (record.threadName or "").startswith(_THREAD)
        )

    def __enter__(self) -> OtlpExporter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def submit(self, items: Sequence[Rollout] | Sequence[SpanRecord]) -> None:
        """Queue rollouts (all their spans) or spans; returns at once, whatever the collector does.

        After `close` nothing is queued.
        """
        with self._lock:
            taken = items[: 0 if self._closed else self._most - self._waiting]
            self._waiting += len(taken)
            self.dropped += len(items) - len(taken)
            for start in range(0, len(taken), MAX_BATCH):
                self._pool.submit(self._send, taken[start : start + MAX_BATCH])

    def flush(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Wait until all is sent, at most so long; False when it was not, or could not be."""
        done = wait([self._pool.submit(int)], seconds).done
        return bool(done) and not self._again

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Send what is queued within `seconds`, then end. May be called twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            waiting = self._pool.submit(self._send, ())
        wait([waiting], 0.0 if self._again else seconds)
        self._exporter.shutdown()  # it tries no more
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._sending.acquire(timeout=1.0):  # which ends at once, unless a collector is silent
            self._sending.release()
        self.dropped += self._waiting
        if self.dropped:
            self._tell(f"{self.dropped} rollouts or spans were not sent to {self.url}")

    def _send(self, items: Sequence[Rollout | SpanRecord]) -> None:
        with self._sending:
            spans = self._joined(items)
            taken = not spans
            if spans and time.monotonic() >= self._again:
                taken = self._exporter.export([readable(span) for span in spans]).name == "SUCCESS"
                self._again = 0.0 if taken else time.monotonic() + PAUSE
            with self._lock:
                self._waiting -= len(items)
                self.dropped += 0 if taken else len(items)
            if not taken:
                self._tell(
                    f"cannot send traces: {self._reason}. The run continues; its store keeps the "
                    "traces: tutelage export RUN --format otlp"
                )

    def _joined(self, items: Sequence[Rollout | SpanRecord]) -> list[SpanRecord]:
        """Return the spans to send now; without items, those whose rollout never came.

        A framework's spans of a rollout come before it, and both know its calls: so spans wait for
        their rollout, and are joined with it as in `tree.py`, each call once.
        """
        spans: list[SpanRecord] = []
        for item in items:
            if isinstance(item, Rollout):
                early = self._early.pop(item.id, ())
                spans += whole_trace(item, early, content=self._content)
            else:
                self._early.setdefault(item.rollout_id or "", []).append(item)
        most = _MAX_EARLY if items else 0
        while sum(map(len, self._early.values())) > most:
            spans += self._early.pop(next(iter(self._early)))
        return spans if self._content else [without_content(span) for span in spans]

    def _answered(self, response: Any, **options: Any) -> None:
        self._reason = f"{self.url} returned status {response.status_code}"

    def _tell(self, sentence: str) -> None:
        if not self._warned:
            self._warned = True
            self._warn(sentence)
