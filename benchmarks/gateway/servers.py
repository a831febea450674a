"""The servers that are compared, each in a process of its own: `servers.py bare|gateway`.

All answer from scripted clients. `bare` is what anybody would write with Starlette: no keys, no
record, no checks, no limits. Prints the port and the
keys as JSON when it serves.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time

from tutelage.engine.script import ScriptedReply
from tutelage.gateway import Gateway, ScriptedClient
from tutelage.types import Message, Sampling

CALL = ScriptedReply(None, (("lookup", '{"city": "Bern"}'),))
ATTEMPTS, SLOW_SECONDS, HUGE = 8, 5.0, 8 << 20
REPLY = "The sum of 12 and 34 is 46, which I know without a calculator."


def gateway(port: int) -> None:
    """Our gateway with one attempt."""
    with Gateway(port=port) as served:
        attempt_session = served.open(
            "roll", "att", ScriptedClient([REPLY], keep=1000), model="scripted"
        )
        print(json.dumps({"port": served.port, "key": attempt_session.api_key}), flush=True)
        while True:
            time.sleep(3600)


def bare(port: int) -> None:
    """Starlette on uvicorn, with the loop and parser that uvicorn picks."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    client = ScriptedClient([REPLY], keep=1000)

    async def chat(request: Request) -> JSONResponse:
        body = await request.json()
        messages = [Message(m["role"], m["content"]) for m in body["messages"]]
        call = await client.chat(messages, sampling=Sampling(max_tokens=1 << 20))
        prompt, sampled = len(call.prompt_ids), len(call.sampled.token_ids)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": call.reply.content},
            "finish_reason": "stop",
        }
        return JSONResponse(
            {
                "id": call.id,
                "object": "chat.completion",
                "created": int(time.time()),
                "model": body["model"],
                "choices": [choice],
                "usage": {
                    "prompt_tokens": prompt,
                    "completion_tokens": sampled,
                    "total_tokens": prompt + sampled,
                },
            }
        )

    sock = socket.socket()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.bind(("127.0.0.1", port))
    print(json.dumps({"port": sock.getsockname()[1], "key": "none"}), flush=True)
    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
    config = uvicorn.Config(app, access_log=False, log_level="warning")
    uvicorn.Server(config).run([sock])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["bare", "gateway"])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--core", type=int, default=None)
    args = parser.parse_args()
    if args.core is not None:
        os.sched_setaffinity(0, {args.core})
    {"bare": bare, "gateway": gateway}[args.kind](args.port)


if __name__ == "__main__":
    main()
