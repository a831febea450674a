"""One vLLM server by HTTP: its routes, and what must be right about it before it is asked.

Tokens are asked for in an event loop; weights and questions go over a blocking client, from any
thread. `vllm.py` makes an engine of several, `weight_transfer.py` sends weights. Written for
vLLM 0.32; what it says otherwise (a route that is missing, another vocabulary) is refused in a
sentence before anything is sampled.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import httpx2

from tutelage.bounded import DIRECT
from tutelage.errors import ConfigError, EngineError, RemoteError, UnreachableError
from tutelage.types import JSON

if TYPE_CHECKING:
    from tutelage.policy.codec import Codec

FREE = ("default", "free")
"""Names of weights that belong to no run: those of a server that was just started, or given up."""
OLDEST = (0, 32)
"""The oldest version of vLLM whose routes are known here."""
_GENERATE = "/inference/v1/generate"
_UPDATES = ("/pause", "/resume", "/weight_info", "/update_weight_version", "/is_paused")
_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=2.0)
"""vLLM closes a connection that was idle for 5 seconds; one that is not used again is not lost."""
_BROKEN = (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError)
_SINGLE = httpx2.Limits(max_keepalive_connections=0)
"""vLLM closes a connection on which it answered 500."""
_SAMPLE = "What is 12 + 34? 'Ja', said Zoë, 57 %."
"""A text that tokenizers cut in different ways."""
_BEYOND = 1 << 30
"""A token that no model has."""
_ROWS = re.compile(r"Vocabulary size: (\d+)")
_WORKER = re.compile(r"Worker failed with error '(.*)', please check", re.DOTALL)


class VLLMClient:
    """A server at `url`, asked for `model`."""

    def __init__(self, url: str, *, timeout: float = 600.0) -> None:
        """`timeout` is in seconds for one request."""
        self.url, self.model = url.rstrip("/"), ""
        self._timeout = httpx2.Timeout(timeout, connect=min(10.0, timeout))
        self._http = httpx2.Client(timeout=self._timeout, limits=_SINGLE, mounts=DIRECT)
        self._loops: dict[asyncio.AbstractEventLoop, httpx2.AsyncClient] = {}

    # ------------------------------------------------------------ requests

    def get(self, path: str) -> JSON:
        """The answer of a route. Raises `UnreachableError`, or `RemoteError` for a refusal."""
        return self._sent("GET", path, None)

    def check_health(self, seconds: float) -> None:
        """Raise `EngineError` unless the server says within `seconds` that it is well."""
        self._sent("GET", "/health", None, seconds)

    def post(self, path: str, body: JSON | None = None) -> JSON:
        """The answer of a route; see `get`."""
        return self._sent("POST", path, body)

    def _sent(
        self, method: str, path: str, body: JSON | None, seconds: float | None = None
    ) -> JSON:
        timeout = self._timeout if seconds is None else seconds
        try:
            reply = self._http.request(method, self.url + path, json=body, timeout=timeout)
        except httpx2.HTTPError as error:
            raise self._lost(error) from error
        return self._object(path, reply)

    async def generate(self, body: JSON) -> JSON:
        """The answer to a request for tokens."""
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            client = httpx2.AsyncClient(timeout=self._timeout, limits=_LIMITS, mounts=DIRECT)
            self._loops[loop] = client
        again = True
        while True:
            try:
                reply = await self._loops[loop].post(self.url + _GENERATE, json=body)
                return self._object(_GENERATE, reply)
            except httpx2.HTTPError as error:
                # A connection may break where the server is well; its sample would be the same.
                if not (again and isinstance(error, _BROKEN)):
                    raise self._lost(error) from error
                again = False

    def ask(self, body: JSON) -> JSON:
        """`generate` outside of an event loop."""
        return self.post(_GENERATE, body)

    def _lost(self, error: httpx2.HTTPError) -> UnreachableError:
        return UnreachableError(
            f"no answer from the vLLM server {self.url!r}: {type(error).__name__} {error}".rstrip()
        )

    def _object(self, path: str, reply: httpx2.Response) -> JSON:
        """Return the object of a reply; {} for a text. Raises `RemoteError` for an error."""
        data: Any = {}
        with suppress(ValueError):
            data = reply.json()
        if reply.status_code < 400:
            return cast("JSON", data) if isinstance(data, dict) else {}
        message = reply.text[:500]
        with suppress(KeyError, TypeError):
            message = str(data["error"]["message"])
        inner = _WORKER.search(message)
        if inner is not None and inner[1]:
            message = inner[1]
        status = reply.status_code
        raise RemoteError(
            f"the vLLM server {self.url!r} answered {status} to {path}: {message}", status
        )

    def close(self) -> None:
        """Close the connections of questions; those of an event loop end with it."""
        self._http.close()

    # ------------------------------------------------------------ what must be right

    def check(self, codec: Codec, vocabulary: int, run: str, *, adapters: bool) -> int:
        """Choose the served model; its context length.

        Raises `ConfigError` where the server is another version, has routes missing, another
        tokenizer or vocabulary, or another run's weights; `EngineError` where it does not answer.
        """
        version = str(self.get("/version").get("version", ""))
        numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
        if numbers < OLDEST:
            raise self.refusal(
                f"it runs vLLM {version or 'of an unknown version'}, but training needs the API of "
                "vLLM 0.32; install that version"
            )
        self._check_routes(set(self.get("/openapi.json").get("paths", {})), adapters=adapters)
        self.check_owner(run)
        cards: list[JSON] = self.get("/v1/models")["data"]
        base = next(card for card in cards if card.get("parent") is None)
        self.model = str(base["id"])
        # One that stands still for an update that a kill cut short was looked at before.
        if not self.get("/is_paused").get("is_paused"):
            self._check_tokens(codec, vocabulary)
        return int(base["max_model_len"])

    def _check_routes(self, paths: set[str], *, adapters: bool) -> None:
        if _GENERATE not in paths:
            raise self.refusal("it does not accept token ids; start it with --enable-scale-out")
        if any(route not in paths for route in _UPDATES):
            raise self.refusal(
                "it does not accept weights; start it with VLLM_SERVER_DEV_MODE=1 in its "
                "environment, on a private network"
            )
        if adapters and "/v1/load_lora_adapter" not in paths:
            raise self.refusal(
                "it does not accept adapters; start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in "
                "its environment and --enable-lora"
            )

    def _check_tokens(self, codec: Codec, vocabulary: int) -> None:
        """That its tokenizer and its embedding are the policy's."""
        for text in (_SAMPLE, codec.decode(sorted(codec.eos_ids))):
            asked = {"model": self.model, "prompt": text, "add_special_tokens": False}
            theirs = self.post("/tokenize", asked).get("tokens")
            if theirs != list(codec.encode(text)):
                raise self.refusal(
                    f"its tokenizer differs: {text!r} is {theirs} there but "
                    f"{list(codec.encode(text))} here; serve the model that is being trained"
                )
        theirs = self._vocabulary(codec)
        if theirs not in (None, vocabulary):
            raise self.refusal(
                f"vocabulary mismatch: its model has {theirs} tokens, the model being trained has "
                f"{vocabulary}; serve the model being trained"
            )

    def _vocabulary(self, codec: Codec) -> int | None:
        """The rows of its embedding, None where it does not say.

        vLLM names their number as it refuses a bias of a token beyond them, before its engine gets
        the request. A prompt with such a token ends the engine where the tokenizer has more tokens.
        """
        body = {
            "model": self.model,
            "token_ids": list(codec.encode(_SAMPLE)),
            "sampling_params": {"max_tokens": 1, "logit_bias": {str(_BEYOND): 0.0}},
        }
        try:
            self.ask(body)
        except RemoteError as error:
            said = _ROWS.search(str(error))
            if said is not None:
                return int(said[1])
            if error.status >= 500:
                raise
        return None

    def refusal(self, reason: str) -> ConfigError:
        """Why this server cannot be used."""
        return ConfigError(f"rollout.servers: {self.url!r}: {reason}")

    # ------------------------------------------------------------ whose weights it has

    def label(self) -> str:
        """What its weights are called."""
        return str(self.get("/weight_info")["weight_version"])

    def check_owner(self, run: str) -> None:
        """Raise `ConfigError` where another run's weights are on it, or are being put there."""
        label = self.label()
        owner = label.rpartition(":")[0]
        if label in FREE:
            if self.get("/is_paused").get("is_paused"):
                raise self.refusal("it is paused: another process is updating it; stop that first")
        elif owner != run:
            raise self.refusal(
                f"it has the weights {label!r} of another run; use separate servers for each run. "
                "If that run was killed, resume it, or free the server: curl -X POST "
                f"{self.url}/update_weight_version -H 'content-type: application/json' "
                """-d '{"new_version": "free"}'"""
            )

    def claim(self, label: str) -> None:
        """Name its weights."""
        self.post("/update_weight_version", {"new_version": label})

    def give_up(self) -> None:
        """Leave it to others, if it still answers."""
        with suppress(EngineError):
            self.claim(FREE[1])
