"""An HTTP server on this machine for the length of a `with`, to test what speaks to one.

A client that hangs up before it was answered, after its timeout say, is what such tests are about:
the standard server would print a traceback for it. `collector.py` is one such server.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler], port: int = 0) -> Generator[str]:
    """Serve with `handler` on a loopback port, a free one where it is 0, in threads; gives the URL,
    without a path."""
    server = _Server(("127.0.0.1", port), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def replying(reply: Callable[[BaseHTTPRequestHandler, Any], tuple[Any, ...]]) -> Generator[str]:
    """Serve what `reply` gives for a request and the JSON of its body: a status, JSON or text, and
    perhaps headers."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            length = int(self.headers["content-length"] or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, data, *headers = reply(self, body)
            text = data if isinstance(data, bytes) else json.dumps(data).encode()
            self.send_response(status)
            for name, value in (headers[0] if headers else {}).items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    with listening(Handler) as url:
        yield url


class _Server(ThreadingHTTPServer):
    request_queue_size = 1024
    """Connections that come at once and wait to be taken: a batch of rollouts, and more."""

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that is gone is no error of the server."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # pyright: ignore[reportArgumentType]
