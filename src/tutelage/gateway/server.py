"""The gateway server: uvicorn in a thread with its own event loop, and the sessions of attempts.

The separate loop ensures that an agent that blocks the caller's loop cannot stop the model for
which it waits. Clients passed to `open` are used only on that loop, and an engine driver must run
there too (`run`, `loop`). `app.py` serves the requests; `session.py` is the access of one attempt.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import importlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Collection, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self, TypeVar

import uvicorn

from tutelage.bounded import bypass_proxy_on_loopback
from tutelage.engine.endpoint import is_loopback
from tutelage.errors import ConfigError, pluralize
from tutelage.gateway.app import App
from tutelage.gateway.keys import MAX_ID, SessionRegistry
from tutelage.gateway.limits import GatewayLimits
from tutelage.gateway.record import OnCall, Recorder
from tutelage.gateway.session import AttemptSession, ServedModel
from tutelage.types import UNBOUNDED, ChatClient, Sampling

T = TypeVar("T")
log = logging.getLogger(__name__)
MIN_SECRET = 16
_SHUTDOWN_SECONDS = 2
_FILES_EACH = 3
"""Open files per connection, upstream connections included."""
_DEFAULTS = Sampling(max_tokens=UNBOUNDED)
"""Sampling defaults; an engine ends a reply at its context length anyway."""


class Gateway:
    """HTTP server that serves policies to agents from a background thread. `with Gateway() as
    gateway:` starts and closes it."""

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        secret: str | None = None,
        limits: GatewayLimits | None = None,
        url: str | None = None,
        allow_origins: Sequence[str] = (),
    ) -> None:
        """Set the address and the secret. `start` opens the address.

        Port 0 selects any free port. Keys are derived from `secret`, by default a random one. `url`
        is the address for agents if it is not `http://HOST:PORT`. `allow_origins` are the web
        origins that may send requests from a browser; "*" allows all. Raises `ConfigError` for an
        address that other machines can reach without a secret of at least 16 characters.
        """
        self.limits = limits or GatewayLimits()
        self.host, self.port, self._url = host, port, url
        """The port is known once the gateway has started."""
        if secret is not None and len(secret) < MIN_SECRET:
            length = pluralize(len(secret), "character")
            raise ConfigError(f"the secret has {length}; it needs at least {MIN_SECRET}")
        if secret is None and not is_loopback(host):
            raise ConfigError(
                f"the host {host!r} can be reached from other machines, so the gateway needs a "
                f"secret of at least {MIN_SECRET} characters: pass --secret or set TUTELAGE_SECRET"
            )
        self._registry = SessionRegistry(
            secrets.token_bytes(32) if secret is None else secret.encode()
        )
        self.recorder = Recorder()
        """The queue of recorded calls, with its counters."""
        self.app = App(self._registry, self.limits, allow_origins)
        """The ASGI app; works without `start` on any loop that serves it."""
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def for_address(cls, host: str, port: int = 0, url: str | None = None) -> Gateway:
        """Create the gateway of a run, given the values that `read_address` returns.

        Its secret is random, so other machines may be allowed to reach it.
        """
        return cls(host=host, port=port, url=url, secret=secrets.token_hex(32))

    # ------------------------------------------------------------ life

    def check_address(self) -> None:
        """Check that the address is available, before a model is loaded. Raises `ConfigError`."""
        _listen(self.host, self.port).close()

    def start(self) -> Self:
        """Start listening and serving. Raises `ConfigError` if the address is unavailable."""
        if self._thread is not None:
            raise ConfigError("the gateway is already started")
        bypass_proxy_on_loopback(os.environ)  # for agents in this process and its children
        sock = _listen(self.host, self.port)
        self.port = int(sock.getsockname()[1])
        _raise_file_limit(_FILES_EACH * self.limits.connections)
        config = uvicorn.Config(
            self.app,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=round(self.limits.idle_seconds),
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            limit_concurrency=self.limits.connections,
        )
        runner = asyncio.Runner(loop_factory=config.get_loop_factory())
        self._loop, server = runner.get_loop(), uvicorn.Server(config)

        def serve() -> None:
            with sock, _hide_loop_during_gc(), runner:
                runner.run(server.serve([sock]))

        self._server = server
        self._thread = threading.Thread(target=serve, name="tutelage-gateway", daemon=True)
        self._thread.start()
        while self._thread.is_alive() and not server.started:
            time.sleep(0.001)
        return self

    def close(self) -> None:
        """Close all sessions, stop serving, and deliver recorded calls. May be called twice."""
        for attempt_session in self._registry.open_sessions():
            attempt_session.close()
        thread, self._thread = self._thread, None
        if thread is not None and self._server is not None:
            self._server.should_exit = True
            thread.join()
            self._loop = self._server = None
        self.recorder.close()

    @property
    def is_serving(self) -> bool:
        """Return True while the gateway's thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def __enter__(self) -> Self:
        return self if self._thread is not None else self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop that serves requests and runs the clients.

        Raises `ConfigError` before `start`.
        """
        if self._loop is None:
            raise ConfigError("the gateway is not started; call `start()` first")
        return self._loop

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Schedule a coroutine on the gateway's loop, from any thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the gateway's loop and return its result. Must not be called on that
        loop."""
        return self.submit(coroutine).result()

    # ------------------------------------------------------------ sessions

    @property
    def url(self) -> str:
        """Return the URL for agents; before `start`, a placeholder for ASGI clients."""
        if self._url is not None:
            return self._url
        if self._thread is None:
            return "http://gateway"
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def open(
        self,
        rollout_id: str,
        attempt_id: str,
        client: ChatClient,
        *,
        clients: Mapping[str, ChatClient] | None = None,
        names: Collection[str] | None = None,
        model: str = "policy",
        agent: str = "main",
        sampling: Sampling = _DEFAULTS,
        token_budget: int | None = None,
        api_key: str | None = None,
        on_call: OnCall | None = None,
    ) -> AttemptSession:
        """Open a session through which an attempt can call a main model and others by name.

        A single main client accepts any model name, so that agents with a hard-coded name run
        unchanged. With `clients` or `names`, it accepts only `model`, or `names`, and other names
        get 404. `agent` is the caller if neither path nor header names one. `sampling` has the
        defaults for requests. `token_budget` limits the tokens that the main client samples: a new
        request may use all that is left, and so may each of its choices and each concurrent
        request. Raises `ConfigError` for ids that are invalid in a URL, for a name with two models,
        and for an attempt that is already open.
        """
        _check_id(rollout_id, "rollout id")
        _check_id(attempt_id, "attempt id")
        names = [model] if names is None and clients else names
        if isinstance(names, str) or (names is not None and not names):
            raise ConfigError(f"names={names!r} is invalid: use None or a non-empty list")
        if duplicates := sorted(set(names or ()) & (clients or {}).keys()):
            raise ConfigError(f"{duplicates[0]!r} is used for the main client and in `clients`")
        environment: dict[str, str] = {}
        # Send the spans of instrumented agents here unless the user has set an exporter.
        if self.app.on_traces and not any(k.startswith("OTEL_EXPORTER_OTLP") for k in os.environ):
            environment = {
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "{base}/traces",
                "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "authorization=Bearer%20{key}",
            }
        attempt_session = AttemptSession(
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            base_url=f"{self.url}/rollout/{rollout_id}/attempt/{attempt_id}/v1",
            api_key=api_key or self._registry.key(rollout_id, attempt_id),
            main=ServedModel.from_client(model, client),
            others={n: ServedModel.from_client(n, c) for n, c in (clients or {}).items()},
            names=names,
            agent=agent,
            sampling=sampling,
            token_budget=token_budget,
            on_call=on_call,
            recorder=self.recorder,
            registry=self._registry,
            environment=environment,
        )
        self._registry.add(attempt_session)
        return attempt_session


@contextmanager
def _hide_loop_during_gc() -> Generator[None]:
    """Hide the running event loop of this thread from finalizers during garbage collection.

    An HTTP client that was dropped without being closed, such as the OpenAI SDK's, looks up the
    running loop when it is collected and has that loop close its connections. In the gateway's
    thread, the gateway's loop would close file numbers that are already free and may belong to a
    new connection of the agents' loop. That connection would never be read again, and its rollout
    would wait until its deadline. Without a running loop, the client leaves its connections to
    their own finalizers.
    """
    thread = threading.get_ident()
    hidden: list[asyncio.AbstractEventLoop] = []

    def on_gc(phase: str, info: Mapping[str, Any]) -> None:
        if threading.get_ident() != thread:
            return
        if phase == "start":
            loop = asyncio._get_running_loop()  # pyright: ignore[reportPrivateUsage]
            if loop is not None:
                hidden.append(loop)
                asyncio._set_running_loop(None)  # pyright: ignore[reportPrivateUsage]
        elif hidden:
            asyncio._set_running_loop(hidden.pop())  # pyright: ignore[reportPrivateUsage]

    gc.callbacks.append(on_gc)
    try:
        yield
    finally:
        gc.callbacks.remove(on_gc)


def _raise_file_limit(count: int) -> None:
    """Raise the limit of open files to `count`, or to the maximum that the system allows."""
    with suppress(ImportError, ValueError, OSError):  # some systems have no such limits
        resource: Any = importlib.import_module("resource")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = count if hard == resource.RLIM_INFINITY else min(count, hard)
        if soft != resource.RLIM_INFINITY and soft < limit:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit it. Without it, headers and a body that are written separately
        # are delayed by 40 ms, due to Nagle's algorithm and delayed acknowledgements.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            sock.bind((host, port))
        except OSError:
            sock.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host!r} port {port}: {error.strerror or error}; choose another "
            "port with --port, or 0 for any free one"
        ) from error
    return sock


def _check_id(value: str, label: str) -> str:
    """Validate and return an id for a URL path. Raises `ConfigError`."""
    invalid = not value.isprintable() or set(value) & set("/?#%\\ ") or value in (".", "..")
    if not value or len(value) > MAX_ID or invalid:
        raise ConfigError(
            f"the {label} {value!r} cannot be used in a URL: use only letters, digits, - _ . : "
            f"and at most {MAX_ID} characters"
        )
    return value
