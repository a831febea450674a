"""Servers of vLLM as one engine: token ids in and out by HTTP, weights by a transport.

Conversations stick to a server, which keeps their keys and values. A server that fails is left out,
and its requests fail as `EngineError`s, which a rollout's next attempt asks of another one. It is
checked again and again; one that answers is given the weights and probed before it is used. When
none is left, requests wait, and then the run ends, to be continued. An answer counts only if its
tokens are of this run's weights, between the version at which it was asked and the present one.
`vllm_client.py` has a server's routes, `weight_transfer.py` the transports and the probe.
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

from tutelage.engine.logprobs import token_logprobs
from tutelage.engine.versions import merged
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
_LOOK, _SLEEP = 2.0, 0.1
"""Seconds between two looks at a server that was left out, and at whether one came back."""
_HEALTH = 10.0
"""Seconds that such a look may take: the end of a run waits for it."""


@dataclass(slots=True, eq=False)
class _Server:
    """A server, and how it is."""

    client: VLLMClient
    alive: bool = False
    reason: str = ""
    running: int = 0
    next_look: float = 0.0
    looking: asyncio.Future[None] | None = None
    scores: Scores | None = None
    """What it said to the probe when it was last seen to follow the trainer."""


class VLLMEngine:
    """An `Engine`; see the module's docstring. Requests come from one event loop at a time."""

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
        go_on: Callable[[], str] = lambda: "",
    ) -> None:
        """Look at each server; the policy's weights come by `update_weights`.

        `run` is the run's folder, whose path names the weights; `note` shows a line to the user,
        and `go_on` tells how the run is continued once servers answer again.
        Raises `ConfigError` where a server cannot be used, `EngineError` where none answers.
        """
        place = run.resolve()
        self._run = f"{place.name}-{hashlib.sha256(str(place).encode()).hexdigest()[:8]}"
        self._policy, self._transfer, self._dtype = policy, transfer, dtype
        self._patience, self._note, self._go_on = patience, note, go_on
        self._eos = sorted(policy.codec.eos_ids)
        self.version = -1
        """The version of the policy that it samples from."""
        self._probe: WeightProbe | None = None
        self._homes: dict[str, _Server] = {}
        self._lock = threading.Lock()
        """Held while weights are sent."""
        self._tell: Callable[[str, str, JSON], None] = lambda text, event, values: note(text)
        self.probed: float | None = None
        """How far the probe was off after the last update, on the server where it was most."""
        self._waiting_since: float | None = None
        self._servers = [_Server(VLLMClient(url)) for url in urls]
        self.max_length = max_length
        """The most tokens that prompt and answer can have together."""
        try:
            for server in self._servers:
                with self._left_out_at_an_error(server):
                    self.max_length = min(self.max_length, self._checked(server.client))
                    server.client.claim(f"{self._run}:-1")
                    server.alive = True
            if not self._alive():
                raise EngineError(
                    f"rollout.servers: no server is usable; {self._reasons()}. Start one, then "
                    "run the command again"
                )
        except BaseException:
            self.close()  # those that are refused nothing are others' again
            raise

    def tell_of_servers(self, tell: Callable[[str, str, JSON], None]) -> None:
        """Have a sentence and an event (`server_lost`, `server_back`) told from here on, and of
        servers that are left out now. `tell` is called from any thread."""
        self._tell = tell
        for server in self._servers:
            if not server.alive:
                self._tell_lost(server)

    # ------------------------------------------------------------ as an `Engine`

    def free(self) -> None:
        """See `Engine`. The memory is the servers'."""

    def release(self, session: str) -> None:
        """See `Engine`."""
        self._homes.pop(session, None)

    @asynccontextmanager
    async def participant(self) -> AsyncGenerator[None]:
        """Around a rollout; servers have a schedule of their own."""
        yield

    def update_weights(self, source: Policy, version: int) -> None:
        """See `Engine`. Raises `SyncError` where a server reports one that it did not make."""
        with self._lock:
            self._transfer.write(source, version)
            self._probe = WeightProbe.of(source, self._dtype)
            self.version = version
            with ThreadPoolExecutor(len(self._servers)) as pool:
                found = list(pool.map(self._updated, self._servers))
        self.probed = max((off for off in found if off is not None), default=None)

    async def sample(self, request: Request) -> Sampled:
        """See `Engine`. Raises `ServersLostError` when no server came back in time."""
        room = request.room(self.max_length)
        if request.grammar is not None:
            raise EngineError("vLLM servers do not support this grammar; use rollout.name=native")
        server = await self._server_for(request.session)
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
                self._leave_out(server, error)
            raise
        finally:
            server.running -= 1
        sampled = self._read(server, data, started)
        if request.on_logprobs is not None:
            request.on_logprobs(token_logprobs(sampled))
        if request.on_token is not None:
            request.on_token(sampled.token_ids)
        return sampled

    def close(self) -> None:
        """Give the servers up to other runs."""
        for server in self._servers:
            if server.alive:
                with suppress(EngineError):
                    server.client.claim(FREE[-1])
            server.alive = False
            server.client.close()

    # ------------------------------------------------------------ answers

    def _read(self, server: _Server, data: JSON, started: int) -> Sampled:
        """The tokens of an answer, if it is one of this run's weights."""
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
                number.isdecimal() and started <= int(number) <= self.version
            ):
                error = EngineError(
                    f"the vLLM server {url!r} sampled from the weights {label!r}, but this run's "
                    f"are {self._run}:{started} to {self.version}: another run updated the server, "
                    "or it was restarted; the reply is discarded"
                )
                self._leave_out(server, error)
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
            versions=merged(versions),
        )

    # ------------------------------------------------------------ which server

    async def _server_for(self, session: str | None) -> _Server:
        """The conversation's server, else the one with the least to do; wait while there is none.
        Raises `ServersLostError` when that was too long."""
        home = self._homes.get(session or "")
        self._look()
        if home is not None and home.alive:
            return home
        while not (alive := self._alive()):
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
                    f"(rollout.server_patience); {self._reasons()}. Restart one. {self._go_on()}"
                )
            self._look()
            await asyncio.sleep(_SLEEP)
        found = min(alive, key=lambda server: server.running)
        if session is not None:
            self._homes[session] = found
        return found

    def _look(self) -> None:
        """Look at servers that were left out, in threads."""
        loop = asyncio.get_running_loop()
        for server in self._servers:
            idle = server.looking is None or server.looking.done()
            if not server.alive and idle and monotonic() >= server.next_look:
                server.looking = loop.run_in_executor(None, self._returned, server)

    def _returned(self, server: _Server) -> None:
        """Use a server again, if it answers, is the right one and takes the weights."""
        try:
            server.client.get("/health", timeout=_HEALTH)
            with self._lock:
                self._checked(server.client)
                if self._probe is not None:
                    self._refresh(server, self._probe)
        except (EngineError, ConfigError, SyncError) as error:
            server.reason, server.next_look = str(error), monotonic() + _LOOK
        else:
            server.alive, self._waiting_since = True, None
            text = f"the vLLM server {server.client.url!r} is back, at version {self.version}"
            self._tell(text, "server_back", self._facts(server))

    def _tell_lost(self, server: _Server) -> None:
        text = f"{server.reason.rstrip('.')}; it is excluded until it responds again"
        self._tell(text, "server_lost", {**self._facts(server), "reason": server.reason})

    def _facts(self, server: _Server) -> JSON:
        return {"server": server.client.url, "version": self.version}

    def _alive(self) -> list[_Server]:
        return [server for server in self._servers if server.alive]

    def _leave_out(self, server: _Server, error: Exception) -> None:
        server.reason, server.next_look = str(error), monotonic() + _LOOK
        if server.alive:
            server.alive = False
            self._tell_lost(server)

    @contextmanager
    def _left_out_at_an_error(self, server: _Server) -> Generator[None]:
        try:
            yield
        except EngineError as error:
            self._leave_out(server, error)

    def _reasons(self) -> str:
        return "; ".join(server.reason.rstrip(".") for server in self._servers if server.reason)

    # ------------------------------------------------------------ weights

    def _checked(self, client: VLLMClient) -> int:
        """The context length of a server, if it is the right one."""
        length = client.check(self._run, adapters=self._transfer.adapters)
        self._transfer.open(client, self._policy)
        return length

    def _updated(self, server: _Server) -> float | None:
        """Send the weights; how far the probe is off, None where the server is left out."""
        if self._probe is None or not server.alive:
            return None
        with self._left_out_at_an_error(server):
            return self._refresh(server, self._probe)
        return None

    def _refresh(self, server: _Server, probe: WeightProbe) -> float:
        """Send the weights of now to a server, and probe it."""
        server.client.check_owner(self._run)
        label = f"{self._run}:{self.version}"
        self._transfer.send(server.client, label)
        difference, server.scores = probe.check(server.client, label, server.scores)
        return difference
