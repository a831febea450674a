"""An HTTP server on this machine for the length of a `with`, to test what speaks to one.

A client that hangs up before it was answered, after its timeout say, is what such tests are about:
the standard server would print a traceback for it. `collector.py` is one such server.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


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


class _Server(ThreadingHTTPServer):
    request_queue_size = 1024
    """Connections that come at once and wait to be taken: a batch of rollouts, and more."""

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that is gone is no error of the server."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # pyright: ignore[reportArgumentType]
