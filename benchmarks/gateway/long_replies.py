"""Processor time of long replies that another server streams in many pieces.

    python -m benchmarks.gateway.long_replies                # of this checkout
    python -m benchmarks.gateway.long_replies --pieces 4000

A piece has 1,000 characters, of text, of a thought or of a tool call's arguments; each is asked for
in three dialects, and the time is that of the whole process, its client included.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import AsyncIterator, Iterator

import httpx2
from benchmarks.measure import machine, table

from tutelage.engine.remote import RemoteChatClient
from tutelage.gateway import Gateway
from tutelage.types import JSON

PIECE = "abcdefgh " * 111 + "."
USER = [{"role": "user", "content": "hi"}]
BODIES: dict[str, JSON] = {
    "/chat/completions": {"messages": USER},
    "/responses": {"input": "hi"},
    "/messages": {"messages": USER, "max_tokens": 9},
}


def _call(**function: str) -> JSON:
    return {"tool_calls": [{"index": 0, "id": "c", "function": function}]}


KINDS: dict[str, tuple[list[JSON], JSON, list[JSON]]] = {
    "text": ([], {"content": PIECE}, []),
    "thought": ([], {"reasoning": PIECE}, []),
    "arguments": ([_call(name="f", arguments='{"a":"')], _call(arguments=PIECE),
                  [_call(arguments='"}')]),
}  # fmt: skip


class _Reply(httpx2.AsyncByteStream):
    def __init__(self, kind: str, pieces: int) -> None:
        self._kind, self._pieces = kind, pieces

    def _chunks(self) -> Iterator[JSON]:
        begin, piece, end = KINDS[self._kind]
        for delta in (*begin, *[piece] * self._pieces, *end):
            yield {"index": 0, "delta": delta, "finish_reason": None}
        yield {"index": 0, "delta": {}, "finish_reason": "stop"}

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for choice in self._chunks():
            yield b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"


def seconds(kind: str, path: str, pieces: int) -> float:
    """Processor time of one reply."""
    headers = {"content-type": "text/event-stream"}
    transport = httpx2.MockTransport(
        lambda _: httpx2.Response(200, headers=headers, stream=_Reply(kind, pieces))
    )
    remote = RemoteChatClient("http://up/v1", "k", "far", transport=transport)
    with Gateway() as gateway:
        session = gateway.open("r", "a", remote)
        url, key = session.base_url + path, {"authorization": f"Bearer {session.api_key}"}
        body = {"model": "m", "stream": True} | BODIES[path]
        begin = time.process_time()
        with httpx2.stream("POST", url, json=body, headers=key, timeout=600) as answer:
            for _ in answer.iter_bytes():
                pass
        took = time.process_time() - begin
        session.close()
    return took


def main() -> None:
    """Print a line a kind."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pieces", type=int, default=8000)
    pieces = parser.parse_args().pieces
    seconds("text", "/messages", 10)  # what is loaded and made once
    rows = [[kind, *(f"{seconds(kind, path, pieces):.2f} s" for path in BODIES)] for kind in KINDS]
    print(machine())
    print(table([f"{pieces} pieces of 1,000 characters", *BODIES], rows))


if __name__ == "__main__":
    main()
