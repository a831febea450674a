"""HTTP client of one vLLM server: its routes, and the checks before it is used.

Tokens are requested in an event loop; weights and other requests go over a blocking client, from
any thread. `vllm.py` makes an engine of several servers, `weight_transfer.py` sends weights.
Written for vLLM 0.32; a missing route is reported before anything is sampled.
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
"""Names of weights that belong to no run: of a server that was just started, or released."""
GENERATE = "/inference/v1/generate"
_ROUTES = {GENERATE, "/pause", "/resume", "/is_paused", "/weight_info", "/update_weight_version"}
_TIMEOUT = httpx2.Timeout(600.0, connect=10.0)
_SINGLE = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
"""No keep-alive: vLLM closes connections after a 500 reply, and those idle for 5 seconds."""
_WORKER = re.compile(r"Worker failed with error '(.+)', please check", re.DOTALL)


class VLLMClient:
    """HTTP client of the vLLM server at `url`."""

    def __init__(self, url: str) -> None:
        self.url, self.model = url.rstrip("/"), ""
        self._http = httpx2.Client(timeout=_TIMEOUT, limits=_SINGLE, mounts=DIRECT)
        self._loops: dict[asyncio.AbstractEventLoop, httpx2.AsyncClient] = {}

    # ------------------------------------------------------------ requests

    def get(self, path: str, **options: Any) -> JSON:
        """Send a GET request and return the JSON object of the response. Raises the same errors as
        `post`."""
        return self._send("GET", path, **options)

    def post(self, path: str, body: JSON | None = None) -> JSON:
        """Send a POST request and return the JSON object of the response.

        Raises `UnreachableError`, or `RemoteError` for a refusal.
        """
        return self._send("POST", path, json=body)

    def _send(self, method: str, path: str, **options: Any) -> JSON:
        try:
            return self._read_object(path, self._http.request(method, self.url + path, **options))
        except httpx2.HTTPError as error:
            raise self._to_unreachable(error) from error

    async def generate(self, body: JSON) -> JSON:
        """Request sampled tokens and return the JSON object of the response."""
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            client = httpx2.AsyncClient(timeout=_TIMEOUT, limits=_SINGLE, mounts=DIRECT)
            self._loops[loop] = client
        try:
            reply = await self._loops[loop].post(self.url + GENERATE, json=body)
        except httpx2.HTTPError as error:
            raise self._to_unreachable(error) from error
        return self._read_object(GENERATE, reply)

    def _to_unreachable(self, error: httpx2.HTTPError) -> UnreachableError:
        return UnreachableError(
            f"no answer from the vLLM server {self.url!r}: {type(error).__name__} {error}".rstrip()
        )

    def _read_object(self, path: str, reply: httpx2.Response) -> JSON:
        """Return the JSON object of a response, or {} if it is not an object. Raises `RemoteError`
        for an error status."""
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
        """Close the blocking HTTP client. Asynchronous clients end with their event loops."""
        self._http.close()

    # ------------------------------------------------------------ checks

    def check(self, run: str, *, adapters: bool) -> int:
        """Check that the vLLM server can be used and choose its model; return the context length in
        tokens.

        Raises `ConfigError` if the server lacks routes or has another run's weights, `EngineError`
        if it does not respond.
        """
        needed = _ROUTES | ({"/v1/load_lora_adapter"} if adapters else set())
        if missing := sorted(needed - self.get("/openapi.json").get("paths", {}).keys()):
            flags = "VLLM_SERVER_DEV_MODE=1 in its environment, --enable-scale-out"
            if adapters:
                flags += ", VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment, --enable-lora"
            raise self.to_error(
                f"the server has no route {', '.join(missing)}; start vLLM 0.32 or newer with "
                f"{flags}, on a private network"
            )
        self.check_owner(run)
        cards: list[JSON] = self.get("/v1/models")["data"]
        base = next(card for card in cards if card.get("parent") is None)
        self.model = str(base["id"])
        return int(base["max_model_len"])

    def to_error(self, reason: str) -> ConfigError:
        """Return the error for an unusable server, with the reason."""
        return ConfigError(f"rollout.servers: {self.url!r}: {reason}")

    # ------------------------------------------------------------ owner of the weights

    def check_owner(self, run: str) -> None:
        """Raise `ConfigError` if the server has another run's weights, or is being updated."""
        label = str(self.get("/weight_info")["weight_version"])
        if label in FREE:
            if self.get("/is_paused").get("is_paused"):
                raise self.to_error("the server is being updated by another process; stop it first")
        elif label.rpartition(":")[0] != run:
            raise self.to_error(
                f"the server has weights {label!r} of another run; use separate servers for each "
                "run. If that run was killed, resume it, or free the server: curl -X POST "
                f"{self.url}/update_weight_version -H 'content-type: application/json' "
                """-d '{"new_version": "free"}'"""
            )

    def set_label(self, label: str) -> None:
        """Set the version label of the server's weights. `FREE[-1]` releases the server."""
        self.post("/update_weight_version", {"new_version": label})
