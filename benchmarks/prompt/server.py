"""A real OpenAI-compatible server on loopback that plays a labelled simulator of `worlds.py`.

    python -m benchmarks.prompt.server --world math --port 0

prints its base URL (`http://127.0.0.1:PORT/v1`) and serves until it is stopped. Every reply's
`system_fingerprint` is `tutelage-simulator:<world>`: no number that comes of it is about a language
model. The model name says the role: a name with "optim", "gradient", "edit" or "reflect" is the
optimiser, one with "task" the task model; any other name is judged by what the request holds. A
reply is a pure function of messages, tools, `seed` and the choice's index. `GET /counts` gives what
each client used, by its API key: task calls, rollouts (conversations begun), optimiser calls,
tokens, injected faults. `simulator` is the same for tests, in a thread.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from benchmarks.prompt.formats import read
from benchmarks.prompt.worlds import WORLDS, Said, World, chance, text_of, world
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

MODELS = ("simulator-task", "simulator-optimiser")
COUNTED = ("task_calls", "rollouts", "optimiser_calls", "prompt_tokens", "completion_tokens")
FAULTS = ("429", "500", "truncated")


@dataclass(frozen=True)
class Faults:
    """How often a request meets a fault the first time; sent again, the same request goes through.

    `kinds` are drawn from evenly. A truncated reply ends early with the finish reason `length`.
    """

    rate: float = 0.0
    kinds: tuple[str, ...] = FAULTS

    def draw(self, mark: str, tries: int) -> str | None:
        """The fault of this request, if any."""
        if tries or chance("fault", mark) >= self.rate:
            return None
        return self.kinds[int(chance("kind", mark) * len(self.kinds))]


class Server:
    """The ASGI app and its counters. `delay` is in seconds a request."""

    def __init__(self, world: World, *, delay: float = 0.0, faults: Faults | None = None) -> None:
        self.world = world
        self.fingerprint = f"tutelage-simulator:{world.name}"
        self.counts: dict[str, dict[str, int]] = {}
        self._delay = delay
        self._faults = faults or Faults()
        self._tries: dict[str, int] = {}
        routes = [Route("/counts", self._counts), Route("/reset", self._reset, methods=["POST"])]
        for path in ("", "/v1"):
            routes += [
                Route(f"{path}/models", self._models),
                Route(f"{path}/chat/completions", self._chat, methods=["POST"]),
            ]
        self.app = Starlette(routes=routes)

    async def _counts(self, request: Request) -> Response:
        return JSONResponse({"world": self.fingerprint, "clients": self.counts})

    async def _reset(self, request: Request) -> Response:
        self.counts.clear()
        self._tries.clear()
        return JSONResponse({})

    async def _models(self, request: Request) -> Response:
        data = [{"id": m, "object": "model", "created": 0, "owned_by": "simulator"} for m in MODELS]
        return JSONResponse({"object": "list", "data": data})

    async def _chat(self, request: Request) -> Response:
        try:
            body = json.loads(await request.body())
            messages = body["messages"]
            if not isinstance(messages, list) or not messages:
                raise TypeError("messages must be a list with something in it")
            label = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
            replies = self._replies(body, messages)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return _problem(400, f"this is no chat request: {type(error).__name__}: {error}")
        if self._delay:
            await asyncio.sleep(self._delay)
        counts = self.counts.setdefault(label or "nobody", dict.fromkeys(COUNTED, 0))
        mark = _mark(body)
        tries = self._tries.get(mark, 0) if self._faults.rate else 0
        if self._faults.rate:
            self._tries[mark] = tries + 1
        fault = self._faults.draw(mark, tries)
        if fault is not None:
            counts[f"fault_{fault}"] = counts.get(f"fault_{fault}", 0) + 1
        if fault in ("429", "500"):
            headers = {"retry-after": "0"} if fault == "429" else None
            return _problem(int(fault), "an injected fault; the request was not served", headers)
        if fault == "truncated":
            replies = [Said(r.content[: len(r.content) // 3]) for r in replies]
        usage = _usage(messages, body.get("tools") or (), replies)
        if _is_optimiser(body, messages):
            counts["optimiser_calls"] += 1
        else:
            counts["task_calls"] += 1
            counts["rollouts"] += not any(m.get("role") == "assistant" for m in messages)
        counts["prompt_tokens"] += usage["prompt_tokens"]
        counts["completion_tokens"] += usage["completion_tokens"]
        whole = self._completion(body, replies, mark, usage, truncated=fault == "truncated")
        if body.get("stream"):
            wants = bool((body.get("stream_options") or {}).get("include_usage"))
            return StreamingResponse(_stream(whole, wants), media_type="text/event-stream")
        return JSONResponse(whole)

    def _replies(self, body: Mapping[str, Any], messages: Sequence[Any]) -> list[Said]:
        count = int(body.get("n") or 1)
        seed = int(body.get("seed") or 0)
        if _is_optimiser(body, messages):
            said = [self._optimiser(messages, (seed, i) if seed or i else ()) for i in range(count)]
            return [Said(text) for text in said]
        heads = [text_of(m) for m in messages if m.get("role") in ("system", "developer")]
        tools = body.get("tools") or ()
        system = "\n".join(heads)
        return [self.world.reply(system, messages, tools, seed + i) for i in range(count)]

    def _optimiser(self, messages: Sequence[Any], again: tuple[int, ...]) -> str:
        text = "\n".join(text_of(m) for m in messages)
        asked = read(text)
        if asked is None:
            return "I improve prompts; this request shows me none."
        salt = json.dumps([text, *again])
        if asked.kind == "critique":
            return asked.wrap(self.world.criticise(asked, salt))
        return asked.wrap(self.world.rewrite(asked, salt) if asked.kind == "edit" else "")

    def _completion(
        self,
        body: Mapping[str, Any],
        replies: Sequence[Said],
        mark: str,
        usage: Mapping[str, int],
        *,
        truncated: bool,
    ) -> dict[str, Any]:
        choices: list[dict[str, Any]] = []
        for index, reply in enumerate(replies):
            message: dict[str, Any] = {"role": "assistant", "content": reply.content or None}
            if reply.calls:
                message["tool_calls"] = [
                    {
                        "id": f"call_{mark[:8]}_{index}_{at}",
                        "type": "function",
                        "function": {"name": name, "arguments": arguments},
                    }
                    for at, (name, arguments) in enumerate(reply.calls)
                ]
            reason = "length" if truncated else "tool_calls" if reply.calls else "stop"
            choices.append({"index": index, "message": message, "finish_reason": reason})
        return {
            "id": f"chatcmpl-{mark[:16]}",
            "object": "chat.completion",
            "created": 0,
            "model": body.get("model") or MODELS[0],
            "system_fingerprint": self.fingerprint,
            "choices": choices,
            "usage": dict(usage),
        }


def _is_optimiser(body: Mapping[str, Any], messages: Sequence[Any]) -> bool:
    name = str(body.get("model") or "").lower()
    if "task" in name:
        return False
    if any(word in name for word in ("optim", "gradient", "edit", "reflect")):
        return True
    return not body.get("tools") and read("\n".join(text_of(m) for m in messages)) is not None


def _mark(body: Mapping[str, Any]) -> str:
    said = [body.get(k) for k in ("model", "messages", "tools", "seed")]
    return hashlib.blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=12).hexdigest()


def _usage(
    messages: Sequence[Any], tools: Sequence[Any], replies: Sequence[Said]
) -> dict[str, int]:
    """Words and marks stand for tokens, four characters each."""
    asked = sum(4 + len(text_of(m)) // 4 for m in messages)
    asked += len(json.dumps(tools)) // 4 if tools else 0
    said = sum(1 + (len(r.content) + sum(len(a) for _, a in r.calls)) // 4 for r in replies)
    return {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}


def _problem(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    error = {"message": text, "type": "simulator", "code": str(status), "param": None}
    return JSONResponse({"error": error}, status_code=status, headers=headers)


async def _stream(whole: Mapping[str, Any], usage: bool) -> AsyncIterator[bytes]:
    """A completion as server-sent events: role, text word by word, calls, finish, usage."""
    head = {k: whole[k] for k in ("id", "created", "model", "system_fingerprint")}
    head["object"] = "chat.completion.chunk"

    def event(choices: Sequence[Mapping[str, Any]], **more: Any) -> bytes:
        return f"data: {json.dumps({**head, 'choices': choices, **more})}\n\n".encode()

    for choice in whole["choices"]:
        index, message = choice["index"], choice["message"]

        def piece(
            delta: Mapping[str, Any], reason: str | None = None, index: int = index
        ) -> list[dict[str, Any]]:
            return [{"index": index, "delta": delta, "finish_reason": reason}]

        yield event(piece({"role": "assistant", "content": ""}))
        words = (message["content"] or "").split(" ")
        for at, word in enumerate(words if message["content"] else []):
            yield event(piece({"content": word if at == len(words) - 1 else word + " "}))
        for at, call in enumerate(message.get("tool_calls") or ()):
            yield event(piece({"tool_calls": [{"index": at, **call}]}))
        yield event(piece({}, choice["finish_reason"]))
    if usage:
        yield event([], usage=whole["usage"])
    yield b"data: [DONE]\n\n"


@contextmanager
def simulator(
    name: str, *, port: int = 0, delay: float = 0.0, faults: Faults | None = None
) -> Iterator[str]:
    """Serve a world from a thread; gives the base URL, `http://127.0.0.1:PORT/v1`."""
    with serving(Server(world(name), delay=delay, faults=faults), port) as url:
        yield url


@contextmanager
def serving(server: Server, port: int = 0) -> Iterator[str]:
    """Serve from a thread, for who wants the counters too."""
    sock = _socket(port)
    runner = _uvicorn(server)
    thread = threading.Thread(target=runner.run, args=([sock],), daemon=True)
    thread.start()
    try:
        while not runner.started and thread.is_alive():
            time.sleep(0.005)
        yield f"http://127.0.0.1:{sock.getsockname()[1]}/v1"
    finally:
        runner.should_exit = True
        thread.join()
        sock.close()


class _Quiet(uvicorn.Server):
    """uvicorn's server, which leaves signals to the program when it runs in a thread."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is threading.main_thread():
            with super().capture_signals():
                yield
        else:
            yield


def _uvicorn(server: Server) -> uvicorn.Server:
    config = uvicorn.Config(
        server.app,
        access_log=False,
        log_level="warning",
        lifespan="off",
        log_config=None,
        timeout_keep_alive=600,
    )
    return _Quiet(config)


def _socket(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Without it a head and a body that are written apart wait 40 ms for each other.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.bind(("127.0.0.1", port))
    return sock


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--world", choices=WORLDS, default="clerk")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds a request")
    parser.add_argument(
        "--faults", type=float, default=0.0, help="share of requests that fail once"
    )
    given = parser.parse_args()
    served = Server(world(given.world), delay=given.delay, faults=Faults(given.faults))
    sock = _socket(given.port)
    print(f"http://127.0.0.1:{sock.getsockname()[1]}/v1", flush=True)
    _uvicorn(served).run([sock])


if __name__ == "__main__":
    main()
