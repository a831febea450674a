"""Sending spans to an OTLP/HTTP collector, off the path of every rollout.

A thread takes rollouts and spans from a bounded queue, makes the requests and posts them. Nothing
that submits ever waits: what does not fit is dropped and counted, and the store has it anyway. A
collector that is down gives one warning, whatever happens after it; it is tried again at growing
intervals, so traces flow once it is up. `endpoint` reads the variables that every OpenTelemetry
exporter reads.
"""

from __future__ import annotations

import gzip
import os
import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx2

from tutelage.bounded import DIRECT
from tutelage.config.api_keys import unsendable
from tutelage.errors import ConfigError
from tutelage.tracing import names
from tutelage.tracing.content import without_content
from tutelage.tracing.otlp import PROTOBUF, encode_protobuf
from tutelage.tracing.records import SpanRecord
from tutelage.tracing.rollout import rollout_spans
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
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_AGAIN = frozenset({408, 429, 500, 502, 503, 504})
"""HTTP statuses after which the same request may succeed later."""
_MAX_WAITING = 4096
"""Spans that may wait for their rollouts; the first ones then go without."""
_MAX_REMEMBERED = 256
"""Rollouts whose late spans can be joined."""
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
    if not text:
        base = env.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()
        text = base and base.rstrip("/") + TRACES_PATH
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
    return checked_headers(given, f" in {name}")


def checked_headers(given: Mapping[str, str], place: str = "") -> dict[str, str]:
    """Headers as they are given. Raises `ConfigError` for what no header can carry, without a
    value; `place` says where it is from."""
    for number, (name, value) in enumerate(given.items(), 1):
        if not _HEADER_NAME.fullmatch(name):  # which may be a key that was written in its place
            raise ConfigError(
                f"header {number} of {len(given)}{place} has an invalid name: use "
                "letters, digits and -, as in x-team"
            )
        if wrong := unsendable(value):
            raise ConfigError(f"invalid header {name!r}{place}: {wrong}; its value must be ASCII")
    return dict(given)


_Batch = tuple[int, list[SpanRecord]]
"""How many submitted things one request is made of, and their spans."""


class OtlpExporter:
    """Sends what is submitted to one collector. A context manager that closes.

    `warn` gets at most one sentence, from the exporter's thread. `content` sends messages, tool
    arguments and results, texts of errors and whatever a framework wrote into its own spans;
    without it they stay here (`content.py`). Raises `ConfigError` for a header that cannot be sent.
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
        self.url = url
        self._warn, self._content, self._max_queue = warn, content, max_queue
        own = headers() if extra_headers is None else checked_headers(extra_headers)
        self._headers = {"content-type": PROTOBUF, "content-encoding": "gzip"} | own
        self._queue: deque[Rollout | SpanRecord] = deque()
        self._traces = _LiveTraces(content)
        self._again: _Batch | None = None
        """What the collector did not take."""
        self._changed = threading.Condition()
        self._warned = self._closing = self._down = self._busy = False
        self._deadline = float("inf")
        self.sent = self.dropped = 0
        """Spans that were taken by the collector; rollouts and spans that were not sent."""
        self._thread = threading.Thread(target=self._work, name="otlp-export", daemon=True)
        self._thread.start()

    def __enter__(self) -> OtlpExporter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def submit(self, items: Sequence[Rollout] | Sequence[SpanRecord]) -> None:
        """Queue rollouts (all their spans) or spans; returns at once, whatever the collector does.

        After `close` nothing is queued.
        """
        with self._changed:
            room = 0 if self._closing else max(0, self._max_queue - len(self._queue))
            self._queue.extend(items[:room])
            self.dropped += max(0, len(items) - room)
            self._changed.notify_all()

    def flush(self, seconds: float = CLOSE_SECONDS) -> bool:
        """Wait until all is sent, at most so long; False when it was not, or could not be."""
        with self._changed:
            self._changed.wait_for(lambda: self._down or self._idle(), seconds)
            return self._idle() and not self._down

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Send what is queued within `seconds`, then end. May be called twice."""
        with self._changed:
            self._closing = True
            self._deadline = min(self._deadline, time.monotonic() + seconds)
            self._changed.notify_all()
        self._thread.join(seconds + 1.0)
        with self._changed:
            self.dropped += len(self._queue)
            self._queue.clear()
            self.dropped += 0 if self._again is None else self._again[0]
            self._again = None
        if self.dropped:
            self._tell(f"{self.dropped} rollouts or spans were not sent to {self.url}")

    def _idle(self) -> bool:
        return not self._queue and not self._busy and self._again is None

    def _work(self) -> None:
        pause = 0.0
        client = httpx2.Client(timeout=TIMEOUT, mounts=DIRECT)
        with client:
            while batch := self._next_batch():
                done = self._send(client, batch)
                with self._changed:
                    self._busy, self._down = False, not done
                    self._again = None if done else batch
                    self._changed.notify_all()
                    if not done:
                        pause = min(_LONGEST_PAUSE, pause * 2 or _FIRST_PAUSE)
                        if self._closing or self._changed.wait_for(lambda: self._closing, pause):
                            return
                    else:
                        pause = 0.0

    def _next_batch(self) -> _Batch | None:
        """What to send next, waiting for it; None when the exporter is closed and done."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing or self._again)
            if time.monotonic() > self._deadline:
                return None
            if self._again is not None:
                return self._again
            count = min(len(self._queue), MAX_BATCH)
            items = [self._queue.popleft() for _ in range(count)]
            self._busy = bool(items)
        spans = self._traces.take(items) if items else self._traces.rest()
        return (len(items), spans) if items or spans else None

    def _send(self, client: httpx2.Client, batch: _Batch) -> bool:
        """Whether the batch is done with: taken by the collector, or refused for good."""
        items, spans = batch
        if not spans:
            return True
        body = gzip.compress(encode_protobuf(spans), compresslevel=1)
        try:
            status = client.post(self.url, content=body, headers=self._headers).status_code
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            reason = str(error) or type(error).__name__
            self._tell(
                f"cannot send traces: cannot reach {self.url} ({reason}). The run continues; its "
                "store keeps the traces: tutelage export RUN --format otlp"
            )
            return False
        if 200 <= status < 300:
            self.sent += len(spans)
            return True
        self._tell(
            f"cannot send traces: {self.url} returned status {status}. The run continues; its "
            "store keeps the traces: tutelage export RUN --format otlp"
        )
        if status in _AGAIN:
            return False
        self.dropped += items
        return True

    def _tell(self, sentence: str) -> None:
        if not self._warned:
            self._warned = True
            self._warn(sentence)


class _LiveTraces:
    """What leaves while a run goes on: rollouts with the spans others recorded of them, as traces.

    The record of a rollout and a framework's spans of it come one after another, and both know its
    calls. So spans wait for their rollout, and are joined with it as in `tree.py`, each call once.
    Spans that come after it are joined with what is remembered of it, and only what is new goes
    out.
    """

    def __init__(self, content: bool) -> None:
        self._content = content
        self._waiting: OrderedDict[str, list[SpanRecord]] = OrderedDict()
        self._sent: OrderedDict[str, Rollout] = OrderedDict()

    def take(self, items: Iterable[Rollout | SpanRecord]) -> list[SpanRecord]:
        """The spans to send now."""
        out: list[SpanRecord] = []
        late: dict[str, list[SpanRecord]] = {}
        for item in items:
            if isinstance(item, Rollout):
                waited = self._waiting.pop(item.id, [])
                self._sent[item.id] = item
                while len(self._sent) > _MAX_REMEMBERED:
                    self._sent.popitem(last=False)
                out += whole_trace(item, waited, content=self._content)
            elif item.rollout_id in self._sent:
                late.setdefault(item.rollout_id, []).append(item)
            elif item.rollout_id:
                self._waiting.setdefault(item.rollout_id, []).append(item)
            else:
                out.append(item)
        for rollout_id, spans in late.items():
            # Calls and agents were sent with the rollout.
            rollout = self._sent[rollout_id]
            sent = {span.span_id for span in rollout_spans(rollout)}
            out += [
                span
                for span in whole_trace(rollout, spans, content=self._content)
                if span.span_id not in sent
                and span.attributes.get(names.OPERATION) != names.INVOKE_AGENT
            ]
        while sum(map(len, self._waiting.values())) > _MAX_WAITING:
            out += self._waiting.popitem(last=False)[1]
        return self._allowed(out)

    def rest(self) -> list[SpanRecord]:
        """Spans whose rollout never came."""
        out = [span for spans in self._waiting.values() for span in spans]
        self._waiting.clear()
        return self._allowed(out)

    def _allowed(self, spans: list[SpanRecord]) -> list[SpanRecord]:
        return spans if self._content else [without_content(span) for span in spans]
