"""Engine over vLLM servers: tokens over HTTP, weights by a transport.

A conversation stays on one server, which keeps its keys and values. A server that fails is
excluded, and its requests fail with `EngineError`; the next attempt of a rollout uses another
server. An excluded server is checked repeatedly; once it responds it is sent the weights and probed
before it is used. When none is left, requests wait, and then the run ends and can be resumed. A
reply counts only if its tokens are from this run's weights, between the version at the request and
the current one. `vllm_client.py` has a server's routes, `weight_transfer.py` the transports and the
probe.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from tutelage.engine.versions import merge_spans
from tutelage.engine.vllm_client import FREE, VLLMClient
from tutelage.engine.weight_transfer import FLOOR, Scores, WeightProbe, WeightTransfer
from tutelage.errors import (
    ConfigError,
    EngineError,
    RemoteError,
    ServersLostError,
    SyncError,
    UnreachableError,
)
from tutelage.types import JSON, Sampled, StopReason

if TYPE_CHECKING:
    import torch

    from tutelage.engine.protocol import Request
    from tutelage.policy.model import Policy

PATIENCE = 600.0
"""Seconds that requests wait for a server."""
_CHECK_INTERVAL, _SLEEP = 2.0, 0.1
"""Seconds between two checks of an excluded server, and of whether one is back."""
_CHECK_TIMEOUT = 10.0
"""Timeout of such a check in seconds: the end of a run waits for it."""


@dataclass(slots=True, eq=False)
class _Server:
    """State of one vLLM server."""

    client: VLLMClient
    alive: bool = False
    reason: str = ""
    running: int = 0
    next_check: float = 0.0
    checking: asyncio.Future[None] | None = None
    scores: Scores | None = None
    """Probe scores from when it was last seen to follow the trainer."""


class VLLMEngine:
    """`Engine` that samples on vLLM servers. Requests must come from one event loop at a time."""

    def __init__(
        self,
        urls: Sequence[str],
        policy: Policy,
        transfer: WeightTransfer,
        *,
        run: Path,
        dtype: torch.dtype,
        max_length: int,
        patience: float = PATIENCE,
        note: Callable[[str], None] = lambda _: None,
        resume_hint: Callable[[], str] = lambda: "",
    ) -> None:
        """Check each vLLM server. The policy's weights are sent later, by `update_weights`.

        `run` is the run's folder, whose path names the weights; `note` shows a line to the user,
        and `resume_hint` returns advice on continuing the run once servers respond again. Raises
        `ConfigError` if a server cannot be used, `EngineError` if no server responds.
        """
        folder = run.resolve()
        self._run = f"{folder.name}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"
        self._policy, self._transfer, self._dtype = policy, transfer, dtype
        self._patience, self._note, self._hint = patience, note, resume_hint
        self._eos = sorted(policy.codec.eos_ids)
        self.version = -1
        """Version of the policy that it samples from."""
        self._probe: WeightProbe | None = None
        self._assigned: dict[str, _Server] = {}
        self._lock = threading.Lock()
        """Held while weights are sent."""
        self._report: Callable[[str, str, JSON], None] = lambda text, event, values: note(text)
        self.probed: float | None = None
        """Largest difference of the probe on any server after the last update."""
        self._waiting_since: float | None = None
        self._servers = [_Server(VLLMClient(url)) for url in urls]
        self.max_length = max_length
        """Maximum number of tokens of prompt and reply together."""
        try:
            for server in self._servers:
                with self._exclude_on_error(server):
                    self.max_length = min(self.max_length, self._check_server(server.client))
                    server.client.set_label(f"{self._run}:-1")
                    server.alive = True
            if not self._live_servers():
                raise EngineError(
                    f"rollout.servers: no server is usable; {self._reasons()}. Start one, then "
                    "run the command again"
                )
        except BaseException:
            self.close()  # release the accepted servers for other runs
            raise

    def report_servers(self, report: Callable[[str, str, JSON], None]) -> None:
        """Report lost and recovered servers to a callback, starting with the excluded servers.

        `report` receives a sentence, the event (`server_lost`, `server_back`) and its fields, from
        any thread.
        """
        self._report = report
        for server in self._servers:
            if not server.alive:
                self._report_lost(server)

    # ------------------------------------------------------------ as an `Engine`

    def free(self) -> None:
        """Do nothing: vLLM servers manage their own memory."""

    def release(self, session: str) -> None:
        """Remove the assignment of a conversation to a server."""
        self._assigned.pop(session, None)

    @asynccontextmanager
    async def participant(self) -> AsyncGenerator[None]:
        """Do nothing: vLLM servers schedule requests themselves."""
        yield

    def update_weights(self, source: Policy, version: int) -> None:
        """Send the policy's current weights to all servers as `version`.

        Raises `SyncError` if a server reports an update that it did not make.
        """
        with self._lock:
            self._transfer.write(source, version)
            self._probe = WeightProbe.compute(source, self._dtype)
            self.version = version
            with ThreadPoolExecutor(len(self._servers)) as pool:
                differences = list(pool.map(self._update_server, self._servers))
        self.probed = max((d for d in differences if d is not None), default=None)

    async def sample(self, request: Request) -> Sampled:
        """Sample the continuation of one request. Raises `ServersLostError` if no server is usable
        for too long."""
        room = request.max_new_tokens(self.max_length)
        if request.grammar is not None:
            raise EngineError("vLLM servers do not support this grammar; use rollout.name=native")
        server = await self._assign_server(request.session)
        started, sampling = self.version, request.sampling
        body: JSON = {
            "model": server.client.model,
            "token_ids": list(request.prompt_ids),
            "cache_salt": f"{self._run}:{started}",
            "sampling_params": {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "seed": request.seed % (1 << 63),
                "max_tokens": room,
                "stop": list(sampling.stop),
                "stop_token_ids": self._eos,
                "detokenize": bool(sampling.stop),
                "logprobs": request.top_logprobs,
            },
        }
        server.running += 1
        try:
            data = await server.client.generate(body)
        except (RemoteError, UnreachableError) as error:
            if not isinstance(error, RemoteError) or error.status >= 500:
                self._exclude(server, error)
            raise
        finally:
            server.running -= 1
        sampled = self._read_reply(server, data, started)
        if request.on_token is not None:
            request.on_token(sampled.token_ids)
        return sampled

    def close(self) -> None:
        """Release the servers, so that other runs can use them."""
        for server in self._servers:
            if server.alive:
                with suppress(EngineError):
                    server.client.set_label(FREE[-1])
            server.alive = False
            server.client.close()

    # ------------------------------------------------------------ replies

    def _read_reply(self, server: _Server, data: JSON, min_version: int) -> Sampled:
        """Return the sampled tokens of a server's reply. Raises `EngineError` if other weights than
        this run's sampled them."""
        url = server.client.url
        try:
            choice = data["choices"][0]
            ids = tuple(int(i) for i in choice["token_ids"])
            entries = choice["logprobs"]["content"]
            logprobs = tuple(float(entry["logprob"]) for entry in entries)
            spans = [(str(s["version"]), int(s["end"])) for s in choice["weight_versions"]]
            ended = str(choice["finish_reason"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineError(f"the vLLM server {url!r} returned no tokens: {error!r}") from error
        if ended not in ("stop", "length") or not spans or not ids or len(ids) != len(logprobs):
            raise EngineError(f"the vLLM server {url!r} aborted a request ({ended})")
        if any(not math.isfinite(value) or value <= FLOOR for value in logprobs):
            raise EngineError(
                f"the vLLM server {url!r} reports non-finite log-probabilities (NaN); its "
                "weights or kernels are broken"
            )
        for label, _ in spans:
            run, _, number = label.rpartition(":")
            if run != self._run or not (
                number.isdecimal() and min_version <= int(number) <= self.version
            ):
                error = EngineError(
                    f"the vLLM server {url!r} sampled from the weights {label!r}, but this run's "
                    f"are {self._run}:{min_version} to {self.version}: another run updated the "
                    "server, or it was restarted; the reply is discarded"
                )
                self._exclude(server, error)
                raise error
        versions = [(int(label.rpartition(":")[2]), end) for label, end in spans]
        top = tuple(
            tuple((int(t["token_id"]), float(t["logprob"])) for t in entry["top_logprobs"])
            for entry in entries
        )
        return Sampled(
            ids,
            logprobs,
            logprobs,
            StopReason.LENGTH if ended == "length" else StopReason.STOP,
            versions[0][0],
            top=top if any(len(t) > 1 for t in top) else (),
            versions=merge_spans(versions),
        )

    # ------------------------------------------------------------ choice of a server

    async def _assign_server(self, session: str | None) -> _Server:
        """Return the conversation's server or the least busy one, waiting until a server is usable.

        Raises `ServersLostError` after `patience` seconds.
        """
        assigned = self._assigned.get(session or "")
        self._check_servers()
        if assigned is not None and assigned.alive:
            return assigned
        while not (alive := self._live_servers()):
            now = monotonic()
            if self._waiting_since is None:
                self._waiting_since = now
                self._note(
                    f"no vLLM server responds; waiting for up to {self._patience:g} seconds "
                    f"(rollout.server_patience); {self._reasons()}"
                )
            if now - self._waiting_since > self._patience:
                raise ServersLostError(
                    f"no vLLM server responded for {self._patience:g} seconds "
                    f"(rollout.server_patience); {self._reasons()}. Restart one. {self._hint()}"
                )
            self._check_servers()
            await asyncio.sleep(_SLEEP)
        server = min(alive, key=lambda server: server.running)
        if session is not None:
            self._assigned[session] = server
        return server

    def _check_servers(self) -> None:
        """Start background checks of the excluded servers, in threads."""
        loop = asyncio.get_running_loop()
        for server in self._servers:
            idle = server.checking is None or server.checking.done()
            if not server.alive and idle and monotonic() >= server.next_check:
                server.checking = loop.run_in_executor(None, self._readmit, server)

    def _readmit(self, server: _Server) -> None:
        """Readmit a server if it responds, serves the right model and loads the weights."""
        try:
            server.client.get("/health", timeout=_CHECK_TIMEOUT)
            with self._lock:
                self._check_server(server.client)
                if self._probe is not None:
                    self._refresh(server, self._probe)
        except (EngineError, ConfigError, SyncError) as error:
            server.reason, server.next_check = str(error), monotonic() + _CHECK_INTERVAL
        else:
            server.alive, self._waiting_since = True, None
            text = f"the vLLM server {server.client.url!r} is back, at version {self.version}"
            self._report(text, "server_back", self._event_fields(server))

    def _report_lost(self, server: _Server) -> None:
        text = f"{server.reason.rstrip('.')}; it is excluded until it responds again"
        self._report(text, "server_lost", {**self._event_fields(server), "reason": server.reason})

    def _event_fields(self, server: _Server) -> JSON:
        return {"server": server.client.url, "version": self.version}

    def _live_servers(self) -> list[_Server]:
        return [server for server in self._servers if server.alive]

    def _exclude(self, server: _Server, error: Exception) -> None:
        server.reason, server.next_check = str(error), monotonic() + _CHECK_INTERVAL
        if server.alive:
            server.alive = False
            self._report_lost(server)

    @contextmanager
    def _exclude_on_error(self, server: _Server) -> Generator[None]:
        try:
            yield
        except EngineError as error:
            self._exclude(server, error)

    def _reasons(self) -> str:
        return "; ".join(server.reason.rstrip(".") for server in self._servers if server.reason)

    # ------------------------------------------------------------ weights

    def _check_server(self, client: VLLMClient) -> int:
        """Check that a server can be used for this run, prepare it, and return its context
        length."""
        length = client.check(self._run, adapters=self._transfer.adapters)
        self._transfer.prepare(client, self._policy)
        return length

    def _update_server(self, server: _Server) -> float | None:
        """Send the weights to a server and return the probe's log-probability difference.

        Returns None if the server is excluded.
        """
        if self._probe is None or not server.alive:
            return None
        with self._exclude_on_error(server):
            return self._refresh(server, self._probe)
        return None

    def _refresh(self, server: _Server, probe: WeightProbe) -> float:
        """Update a server's weights and return the probe's log-probability difference."""
        server.client.check_owner(self._run)
        label = f"{self._run}:{self.version}"
        self._transfer.send(server.client, label)
        difference, server.scores = probe.check(server.client, label, server.scores)
        return difference
