"""The routes of a vLLM server that training uses, over our own engine: for tests without vLLM.

Ids in and out, log-probabilities with ranks, spans of weight versions, pauses, weight updates from
a folder and LoRA adapters, in the words of vLLM 0.32 (`make test-scale` plays one script against
both and compares the replies). Faults are had by name: `kill` and `restart`, `lies` (updates that
report success and change nothing), `nan`. `vllm_wire.py` has the shapes of requests and replies;
`python -m tests.testing.vllm_server MODEL` serves a folder until it is ended.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs, urlsplit

from tests.loopback import listening
from tests.testing import vllm_wire as wire
from tests.testing.vllm_model import KNOWN, SampledModel

from tutelage.engine.protocol import Request
from tutelage.seeds import SeedTree
from tutelage.types import JSON, Sampling

if TYPE_CHECKING:
    from tutelage.policy.model import Policy

_MORE = "start_weight_update must be called before update_weights."
_ACTIVE = (
    "start_weight_update called while a weight update is already active. "
    "Call finish_weight_update first."
)
_UNSTARTED = "finish_weight_update called without a matching start_weight_update."
_NO_TRANSFER = (
    "Weight transfer not configured. Please set weight_transfer_config to enable weight transfer."
)
Fault = Callable[[str, int], str | None]
"""From a request's path and number to `drop` (it is lost), `deaf` (it is done, its answer lost)."""


class VLLMServer:
    """A context manager that serves a policy at `url`, a free loopback port.

    The policy's tensors are copied. `requests` has the path and body of each request. With `fault`
    a test kills it at a chosen request; see the module's docstring for other faults.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        name: str = "policy",
        max_length: int | None = None,
        plugin: bool = True,
        development: bool = True,
        tokens: bool = True,
        processed: bool = True,
        added: int = 0,
        version: str = "0.32.0",
        port: int = 0,
    ) -> None:
        """`plugin`: weights come from a folder; `development`: VLLM_SERVER_DEV_MODE=1; `tokens`:
        --enable-scale-out; `processed`: log-probabilities are those after the temperature;
        `added`: tokens beyond the embedding that transformers adds to the tokenizer: vLLM lets
        them through, and one of them ends its engine."""
        self.added = added
        self.name, self.version, self.processed = name, version, processed
        self.plugin, self.development, self.tokens = plugin, development, tokens
        self.requests: list[tuple[str, JSON]] = []
        self.fault: Fault | None = None
        self.lies = self.nan = self.dead = False
        self.drawn = 0
        """Tokens so far."""
        self.hold: tuple[int, str] | None = None
        """A number of tokens, after which it draws no further one under weights of this version."""
        self._start = policy.copy()
        self.max_length = max_length or policy.max_positions
        self._reset()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._serving = ExitStack()
        self.url = self._serving.enter_context(listening(_handler(self), port))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.dead = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._serving.close()

    def kill(self) -> None:
        """Answer nothing from here on, also not what runs."""
        self.dead = True

    def restart(self) -> None:
        """Answer again, with the weights of the beginning and no memory of what was."""
        self._reset()
        self.dead = False

    def _reset(self) -> None:
        self.weight_version = "default"
        self._models = {self.name: SampledModel(self._start.copy(), self.max_length)}
        self._roots: dict[str, str] = {}
        self._active = False
        self._life = _Life()
        """What runs from before a restart is of another life, and lost."""

    # ------------------------------------------------------------ requests

    def answer(self, method: str, target: str, body: JSON) -> wire.Reply | None:
        """The reply to a request; None where the connection is lost instead."""
        url = urlsplit(target)
        self.requests.append((url.path, body))
        fault = None if self.fault is None else self.fault(url.path, len(self.requests))
        if fault == "drop" or self.dead:
            return None
        life = self._life
        work = self._routed(method, url.path, body, parse_qs(url.query))
        reply = asyncio.run_coroutine_threadsafe(work, self._loop).result()
        return None if fault == "deaf" or self.dead or life is not self._life else reply

    async def _routed(
        self, method: str, path: str, body: JSON, query: dict[str, list[str]]
    ) -> wire.Reply:
        found = self._routes().get((method, path))
        if found is None:
            return 404, {"detail": "Not Found"}
        try:
            return 200, await found(body, query)
        except wire.Refused as refused:
            return refused.reply()
        except Exception as error:  # vLLM's workers raise what they like, and the server says 500
            return wire.in_worker(str(error)).reply()

    def _routes(self) -> dict[tuple[str, str], Callable[..., Coroutine[Any, Any, Any]]]:
        known: dict[tuple[str, str], Any] = {
            ("GET", "/health"): _said(""),
            ("GET", "/version"): _said({"version": self.version}),
            ("GET", "/openapi.json"): self._paths,
            ("GET", "/v1/models"): self._show_models,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/v1/load_lora_adapter"): self._load_adapter,
        }
        if self.tokens:
            known["POST", "/inference/v1/generate"] = self._generate
        if self.development:
            known |= {
                ("POST", "/pause"): self._pause,
                ("POST", "/resume"): self._resume,
                ("GET", "/is_paused"): self._is_paused,
                ("POST", "/init_weight_transfer_engine"): self._init_transfer,
                ("POST", "/start_weight_update"): self._start_update,
                ("POST", "/update_weights"): self._update,
                ("POST", "/finish_weight_update"): self._finish_update,
                ("POST", "/update_weight_version"): self._update_version,
                ("POST", "/reset_prefix_cache"): _said({"success": True}),
                ("GET", "/weight_info"): self._weight_info,
            }
        return known

    async def _paths(self, *_: Any) -> JSON:
        return {"paths": {path: {} for _, path in self._routes()}}

    async def _show_models(self, *_: Any) -> JSON:
        roots = ((name, self._roots.get(name, name)) for name in self._models)
        return wire.models(roots, self.name, self.max_length)

    async def _tokenize(self, body: JSON, _: Any) -> JSON:
        ids = self._model(body).policy.codec.encode(body["prompt"])
        return {
            "count": len(ids),
            "max_model_len": self.max_length,
            "tokens": list(ids),
            "token_strs": None,
        }

    def _model(self, body: JSON) -> SampledModel:
        name = body.get("model") or self.name
        if name not in self._models:
            aliases = ", ".join(self._models)
            raise wire.Refused(
                f"The model `{name}` does not exist. Valid aliases: {aliases}.", 404, "model"
            )
        return self._models[name]

    # ------------------------------------------------------------ tokens

    async def _generate(self, body: JSON, _: Any) -> JSON:
        model, given = self._model(body), body["sampling_params"]
        prompt = tuple(int(i) for i in body["token_ids"])
        wire.check_bias(given, model.vocabulary)
        wire.check_prompt(prompt, model.known + self.added, self.max_length, given)
        if max(prompt, default=0) >= model.vocabulary:
            self.kill()
            raise wire.Refused("EngineCore encountered an issue.", 500)
        limit = min(int(given.get("max_tokens", 16)), self.max_length - len(prompt))
        life, drawn = self._life, list[wire.Drawn]()
        session = f"{id(drawn)}/generate"
        prompt_scores = model.score(prompt) if given.get("prompt_logprobs") is not None else None
        stopped: tuple[str, int | str | None] = ("length", None)
        try:
            while len(drawn) < limit:
                drawn.append(await self._token(model, prompt, drawn, given, session))
                if life is not self._life:
                    raise wire.Refused("EngineCore encountered an issue.", 500)
                found = wire.stopped(model.policy.codec, drawn, given)
                if found is not None:
                    stopped = found
                    break
        finally:
            model.engine.release(session)
        return wire.generated(
            body, self.name, model.policy.codec, drawn, stopped, prompt_scores, nan=self.nan
        )

    async def _token(
        self,
        model: SampledModel,
        prompt: tuple[int, ...],
        drawn: list[wire.Drawn],
        given: JSON,
        at: str,
    ) -> wire.Drawn:
        """Draw one token, under the weights of this moment."""
        temperature = float(given.get("temperature", 1.0))
        sampling = Sampling(
            temperature, float(given.get("top_p", 1.0)), max(0, int(given.get("top_k", 0))), 1
        )
        seed = SeedTree(int(given.get("seed") or 0)).child("token", len(drawn)).value(62)
        life, ids = self._life, prompt + tuple(d.token for d in drawn)
        known = min(KNOWN, model.vocabulary)
        while self.hold and self.drawn >= self.hold[0] and self.weight_version == self.hold[1]:
            await asyncio.sleep(0.001)
        await life.go.wait()
        life.busy += 1
        try:
            sampled = await model.engine.sample(
                Request(ids, sampling, seed, session=at, top_logprobs=known)
            )
        finally:
            life.busy -= 1
        self.drawn += 1
        warm = temperature if self.processed and temperature > 0 else 1.0
        return wire.Drawn(
            sampled.token_ids[0],
            sampled.raw_logprobs[0],
            wire.warmed(sampled.top[0], warm),
            self.weight_version,
        )

    # ------------------------------------------------------------ weights

    async def _pause(self, _: JSON, query: dict[str, list[str]]) -> JSON:
        """All modes freeze what runs, as `keep` does."""
        life = self._life
        life.go.clear()
        while life.busy:
            await asyncio.sleep(0.001)
        return {"status": "paused"}

    async def _resume(self, *_: Any) -> JSON:
        self._life.go.set()
        return {"status": "resumed"}

    async def _is_paused(self, *_: Any) -> JSON:
        return {"is_paused": not self._life.go.is_set()}

    async def _weight_info(self, *_: Any) -> JSON:
        return {"weight_version": self.weight_version}

    async def _update_version(self, body: JSON, _: Any) -> JSON:
        self.weight_version = str(body["new_version"])
        return {"success": True, "new_version": self.weight_version}

    async def _init_transfer(self, body: JSON, _: Any) -> JSON:
        self._needs_plugin()
        wire.check_shape(self._models[self.name].policy.config, body["init_info"])
        return {"message": "Weight transfer initialized"}

    async def _start_update(self, *_: Any) -> JSON:
        self._needs_plugin()
        if self._active:
            raise wire.in_worker(_ACTIVE)
        self._active = True
        return {"message": "Weight update started"}

    async def _update(self, body: JSON, _: Any) -> JSON:
        if not self._active:
            raise wire.in_worker(_MORE)
        try:
            if not self.lies:
                self._models[self.name].load(Path(body["update_info"]["path"]))
        except BaseException:
            self._active = False
            raise
        return {"message": "Weights updated"}

    async def _finish_update(self, body: JSON, _: Any) -> JSON:
        self._needs_plugin()
        if not self._active:
            raise wire.in_worker(_UNSTARTED)
        self._active = False
        if body.get("weight_version") is not None:
            self.weight_version = str(body["weight_version"])
        return {"message": "Weight update finished"}

    async def _load_adapter(self, body: JSON, _: Any) -> str:
        name, path = body["lora_name"], body["lora_path"]
        if name in self._models and not body.get("load_inplace"):
            raise wire.Refused(
                f"The lora adapter '{name}' has already been loaded. If you want to load the "
                "adapter in place, set 'load_inplace' to True.",
                400,
                kind="InvalidUserInput",
            )
        model = self._models.get(name) or SampledModel(self._start.copy(), self.max_length)
        if not self.lies:
            model.adapt(self._models[self.name].policy, Path(path))
        self._models[name], self._roots[name] = model, path
        return f"Success: LoRA adapter '{name}' added successfully."

    def _needs_plugin(self) -> None:
        if not self.plugin:
            raise wire.in_worker(_NO_TRANSFER)


class _Life:
    """From a start of the server to its end: whether it draws, and the tokens that it draws now."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.go.set()
        self.busy = 0


def _said(value: Any) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def say(*_: Any) -> Any:
        return value

    return say


def _handler(server: VLLMServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            self._answer(json.loads(self.rfile.read(length) or b"{}"))

        def _answer(self, body: JSON) -> None:
            reply = server.answer(self.command, self.path, body)
            if reply is None:
                self.close_connection = True
                return
            status, value = reply
            data = (value if isinstance(value, str) else json.dumps(value)).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: a request is no news."""

    return Handler


def serve(folder: str, port: str = "0") -> None:
    """Serve a model's folder until the process is ended; prints the address."""
    from tutelage.policy.model import load_policy

    with VLLMServer(load_policy(folder), port=int(port)) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    serve(*sys.argv[1:])
