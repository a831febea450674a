"""The gateway: uvicorn in a thread with an event loop of its own, and the sessions of attempts.

Its own loop, so that an agent that blocks the caller's cannot stop the model it waits for. Clients
that are given to `open` are used on that loop alone; an engine driver must live there too (`run`,
`loop`). `app.py` serves the requests, `session.py` is what an attempt gets.
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

from tutelage.bounded import direct_on_loopback
from tutelage.errors import ConfigError, counted
from tutelage.gateway.address import GatewayAddress, is_loopback
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
"""Open files that each connection may need: itself, and what it leads to."""
_DEFAULTS = Sampling(max_tokens=UNBOUNDED)
"""What holds where a request is silent; an engine ends a reply at its context anyway."""


class Gateway:
    """See the module's docstring. `with Gateway() as gateway:` starts and closes it."""

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
        """Port 0 takes any free one. Keys derive from `secret`; without it from a random one. `url`
        is the address that agents are given, where it is not `http://HOST:PORT`. Web pages of
        `allow_origins` may ask from a browser, with "*" all.

        Raises `ConfigError` for an address that others can reach without a secret of at least 16
        characters.
        """
        self.limits = limits or GatewayLimits()
        self.host, self.port, self._url = host, port, url
        """The port is known once started."""
        if secret is not None and len(secret) < MIN_SECRET:
            told = counted(len(secret), "character")
            raise ConfigError(f"the secret has {told}; it needs at least {MIN_SECRET}")
        if secret is None and not is_loopback(host):
            raise ConfigError(
                f"the host {host!r} can be reached from other machines, so the gateway needs a "
                f"secret of at least {MIN_SECRET} characters: pass --secret or set TUTELAGE_SECRET"
            )
        self._registry = SessionRegistry(
            secrets.token_bytes(32) if secret is None else secret.encode()
        )
        self.recorder = Recorder()
        """The queue of spans, for its counters."""
        self.app = App(self._registry, self.limits, allow_origins)
        """The ASGI app; works without `start`, on whatever loop serves it."""
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def at(cls, address: GatewayAddress) -> Gateway:
        """The gateway of a run. Each attempt's key derives from a random secret, so that it may be
        reached from other machines."""
        secret = secrets.token_hex(32)
        return cls(host=address.host, port=address.port, url=address.url, secret=secret)

    # ------------------------------------------------------------ life

    def check_address(self) -> None:
        """Try the address, which costs less than a model that was loaded for nothing. Raises
        `ConfigError` when it cannot be had."""
        _listen(self.host, self.port).close()

    def start(self) -> Self:
        """Listen and serve. Raises `ConfigError` when the address cannot be had."""
        if self._thread is not None:
            raise ConfigError("the gateway is already started")
        direct_on_loopback(os.environ)  # for the clients of agents in this process and its children
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
            with sock, _loop_hidden_while_collecting(), runner:
                runner.run(server.serve([sock]))

        self._server = server
        self._thread = threading.Thread(target=serve, name="tutelage-gateway", daemon=True)
        self._thread.start()
        while self._thread.is_alive() and not server.started:
            time.sleep(0.001)
        return self

    def close(self) -> None:
        """Close every session, stop serving, and hand on what was recorded. Twice is fine."""
        for attempt_session in self._registry.doors():
            attempt_session.close()
        thread, self._thread = self._thread, None
        if thread is not None and self._server is not None:
            self._server.should_exit = True
            thread.join()
            self._loop = self._server = None
        self.recorder.close()

    @property
    def serving(self) -> bool:
        """Whether its thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def __enter__(self) -> Self:
        return self if self._thread is not None else self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that serves, on which clients are used. Raises `ConfigError` before `start`."""
        if self._loop is None:
            raise ConfigError("the gateway is not started; call `start()` first")
        return self._loop

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the gateway's loop, from any thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the gateway's loop and wait for its result; not from that loop."""
        return self.submit(coroutine).result()

    # ------------------------------------------------------------ sessions

    @property
    def url(self) -> str:
        """The address that agents are given; before `start` a name that only an ASGI client
        understands."""
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
        """Give an attempt its models: `client`, and `clients` by model name.

        Where it is the only one, the main client answers to any name, so that an agent with a name
        of its own runs as it is. Beside `clients`, or with `names`, it answers to `model`, or to
        those, and any other name is a 404. `agent` is
        whose calls they are where neither path nor header says. `sampling` holds where a request is
        silent. `token_budget` bounds the tokens that the main client samples: a request that begins
        may use all that is left, as may each of its choices and each that runs beside it. Raises
        `ConfigError` for ids that cannot stand in a URL, for a name of two models, and for an
        attempt that is open.
        """
        _check_id(rollout_id, "rollout id")
        _check_id(attempt_id, "attempt id")
        names = [model] if names is None and clients else names
        if isinstance(names, str) or (names is not None and not names):
            raise ConfigError(f"names={names!r}: must be None or a list of at least one name")
        if twice := sorted(set(names or ()) & (clients or {}).keys()):
            raise ConfigError(f"{twice[0]!r} names both the main client and one of `clients`")
        environment: dict[str, str] = {}
        # Where an instrumented agent sends its spans, unless the user has said otherwise.
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
            main=ServedModel.of(model, client),
            others={name: ServedModel.of(name, other) for name, other in (clients or {}).items()},
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
def _loop_hidden_while_collecting() -> Generator[None]:
    """Around a loop's life in this thread: finalizers that the collector runs here see no loop.

    An HTTP client that is dropped without being closed asks for the running loop when it is
    collected, and has that loop close its connections; the OpenAI SDK's does so. Collected in the
    gateway's thread it would be closed by the gateway's loop: with file numbers that are free by
    then, and that a new connection of the agents' loop may already have. That connection would be
    read no more, and its rollout would wait until its deadline. So such a client, collected here,
    leaves its connections to their own finalizers.
    """
    here = threading.get_ident()
    hidden: list[asyncio.AbstractEventLoop] = []

    def watch(phase: str, info: Mapping[str, Any]) -> None:
        if threading.get_ident() != here:
            return
        if phase == "start":
            loop = asyncio._get_running_loop()  # pyright: ignore[reportPrivateUsage]
            if loop is not None:
                hidden.append(loop)
                asyncio._set_running_loop(None)  # pyright: ignore[reportPrivateUsage]
        elif hidden:
            asyncio._set_running_loop(hidden.pop())  # pyright: ignore[reportPrivateUsage]

    gc.callbacks.append(watch)
    try:
        yield
    finally:
        gc.callbacks.remove(watch)


def _raise_file_limit(wanted: int) -> None:
    """Raise the limit of open files to this number, or as far as the system lets it be."""
    try:
        resource: Any = importlib.import_module("resource")
    except ImportError:
        return  # a system without such limits
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit it. Without it a head and a body that are written one after the
        # other wait 40 ms for each other, by Nagle's algorithm and delayed acknowledgements.
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


def _check_id(value: str, what: str) -> str:
    """An id that can stand in a path. Raises `ConfigError`."""
    unfit = not value.isprintable() or set(value) & set("/?#%\\ ") or value in (".", "..")
    if not value or len(value) > MAX_ID or unfit:
        raise ConfigError(
            f"the {what} {value!r} cannot be used in a URL: use only letters, digits, - _ . : "
            f"and at most {MAX_ID} characters"
        )
    return value
