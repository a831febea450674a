"""One vLLM server by HTTP: its routes, and what must be right about it before it is asked.

Tokens are asked for in an event loop; weights and questions go over a blocking client, from any
thread. `vllm.py` makes an engine of several, `weight_transfer.py` sends weights. Written for
vLLM 0.32; what it lacks (a route) is refused in a sentence before anything is sampled.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Any, cast

import httpx2

from tutelage.bounded import DIRECT
from tutelage.errors import ConfigError, RemoteError, UnreachableError
from tutelage.types import JSON

FREE = ("default", "free")
"""Names of weights that belong to no run: those of a server that was just started, or given up."""
GENERATE = "/inference/v1/generate"
_ROUTES = {GENERATE, "/pause", "/resume", "/is_paused", "/weight_info", "/update_weight_version"}
_TIMEOUT = httpx2.Timeout(600.0, connect=10.0)
_SINGLE = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
"""vLLM closes connections on which it answered 500, and those that were idle for 5 seconds."""
_WORKER = re.compile(r"Worker failed with error '(.+)', please check", re.DOTALL)


class VLLMClient:
    """A server at `url`, asked for `model`."""

    def __init__(self, url: str) -> None:
        self.url, self.model = url.rstrip("/"), ""
        self._http = httpx2.Client(timeout=_TIMEOUT, limits=_SINGLE, mounts=DIRECT)
        self._loops: dict[asyncio.AbstractEventLoop, httpx2.AsyncClient] = {}

    # ------------------------------------------------------------ requests

    def get(self, path: str, **options: Any) -> JSON:
        """The answer of a route; see `post`. `timeout` may be given, in seconds."""
        return self._sent("GET", path, **options)

    def post(self, path: str, body: JSON | None = None) -> JSON:
        """The answer of a route. Raises `UnreachableError`, or `RemoteError` for a refusal."""
        return self._sent("POST", path, json=body)

    def _sent(self, method: str, path: str, **options: Any) -> JSON:
        try:
            return self._object(path, self._http.request(method, self.url + path, **options))
        except httpx2.HTTPError as error:
            raise self._lost(error) from error

    async def generate(self, body: JSON) -> JSON:
        """The answer to a request for tokens."""
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            client = httpx2.AsyncClient(timeout=_TIMEOUT, limits=_SINGLE, mounts=DIRECT)
            self._loops[loop] = client
        try:
            reply = await self._loops[loop].post(self.url + GENERATE, json=body)
        except httpx2.HTTPError as error:
            raise self._lost(error) from error
        return self._object(GENERATE, reply)

    def _lost(self, error: httpx2.HTTPError) -> UnreachableError:
        return UnreachableError(
            f"no answer from the vLLM server {self.url!r}: {type(error).__name__} {error}".rstrip()
        )

    def _object(self, path: str, reply: httpx2.Response) -> JSON:
        """Return the object of a reply; {} for a text. Raises `RemoteError` for an error."""
        data: Any = {}
        with suppress(ValueError):
            data = reply.json()
        status = reply.status_code
        if status < 400:
            return cast("JSON", data) if isinstance(data, dict) else {}
        message = reply.text[:500]
        with suppress(KeyError, TypeError):
            message = str(data["error"]["message"])
        if inner := _WORKER.search(message):
            message = inner[1]
        raise RemoteError(
            f"the vLLM server {self.url!r} answered {status} to {path}: {message}", status
        )

    def close(self) -> None:
        """Close the connections of questions; those of an event loop end with it."""
        self._http.close()

    # ------------------------------------------------------------ what must be right

    def check(self, run: str, *, adapters: bool) -> int:
        """Choose the served model; its context length.

        Raises `ConfigError` where the server has routes missing or another run's weights,
        `EngineError` where it does not answer.
        """
        needed = _ROUTES | ({"/v1/load_lora_adapter"} if adapters else set())
        if missing := sorted(needed - self.get("/openapi.json").get("paths", {}).keys()):
            flags = "VLLM_SERVER_DEV_MODE=1 in its environment, --enable-scale-out"
            if adapters:
                flags += ", VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment, --enable-lora"
            raise self.refusal(
                f"it has no route {', '.join(missing)}; start vLLM 0.32 or newer with {flags}, on "
                "a private network"
            )
        self.check_owner(run)
        cards: list[JSON] = self.get("/v1/models")["data"]
        base = next(card for card in cards if card.get("parent") is None)
        self.model = str(base["id"])
        return int(base["max_model_len"])

    def refusal(self, reason: str) -> ConfigError:
        """Why this server cannot be used."""
        return ConfigError(f"rollout.servers: {self.url!r}: {reason}")

    # ------------------------------------------------------------ whose weights it has

    def check_owner(self, run: str) -> None:
        """Raise `ConfigError` where another run's weights are on it, or are being put there."""
        label = str(self.get("/weight_info")["weight_version"])
        if label in FREE:
            if self.get("/is_paused").get("is_paused"):
                raise self.refusal("it is paused: another process is updating it; stop that first")
        elif label.rpartition(":")[0] != run:
            raise self.refusal(
                f"it has the weights {label!r} of another run; use separate servers for each run. "
                "If that run was killed, resume it, or free the server: curl -X POST "
                f"{self.url}/update_weight_version -H 'content-type: application/json' "
                """-d '{"new_version": "free"}'"""
            )

    def claim(self, label: str) -> None:
        """Name its weights; the last of `FREE` gives them up."""
        self.post("/update_weight_version", {"new_version": label})
