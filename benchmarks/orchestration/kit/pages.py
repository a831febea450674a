"""The pages of a folder's web server, served on this machine while a block runs, and their reader.

The server answers GET on 127.0.0.1 at a free port, one thread a request, and is gone when the block
ends. `fetch` reads such pages: those of its own server alone, without redirects or proxies, with a
bound on their size and a timeout.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx2
from benchmarks.orchestration.kit.contents import FolderContents

from tutelage.tools.tool import ToolError

MAX_BYTES = 100_000
"""Of a page."""
SECONDS = 5.0
"""A page may take."""


@contextmanager
def serve_pages(folder: FolderContents) -> Generator[str]:
    """Serve the pages of a folder; gives the base URL, such as http://127.0.0.1:40123."""

    class Handler(_PageHandler):
        pages = folder.pages

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), name="pages", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _PageHandler(BaseHTTPRequestHandler):
    """Answers with the text of a page, or names the pages that are there."""

    pages: Mapping[str, str]
    timeout = SECONDS

    def do_GET(self) -> None:
        known = {path.casefold(): text for path, text in self.pages.items()}
        text = known.get(unquote(urlsplit(self.path).path).rstrip("/").casefold())
        body = (text or f"The pages are {', '.join(self.pages)}.").encode()
        self.send_response(404 if text is None else 200)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


def fetch(base: str, path: str) -> str:
    """The text of a page of the server at `base`. Raises `ToolError`, which says what to do."""
    try:
        own = httpx2.URL(base)
        url = own.join(path if path.startswith(("/", "http:", "https:")) else f"/{path}")
    except (httpx2.InvalidURL, ValueError) as error:
        raise ToolError(f"{path[:80]!r} is not the path of a page ({error}); try /news") from None
    if (url.scheme, url.host, url.port, url.userinfo) != (own.scheme, own.host, own.port, b""):
        raise ToolError(f"only pages of {base} are read; give a path such as /news")
    connection = HTTPConnection(own.host, own.port or 80, timeout=SECONDS)
    try:
        connection.request("GET", url.raw_path.decode("ascii"))
        reply = connection.getresponse()
        body = reply.read(MAX_BYTES + 1)
    except TimeoutError:
        raise ToolError(f"the page did not come within {SECONDS:g} seconds; try it again") from None
    except (HTTPException, OSError) as error:
        raise ToolError(f"the page {path[:80]!r} cannot be read: {error}") from None
    finally:
        connection.close()
    if len(body) > MAX_BYTES:
        raise ToolError(f"the page {path[:80]!r} is longer than {MAX_BYTES:,} bytes")
    text = body.decode("utf-8", "replace")
    if reply.status != 200:
        more = f". {text[:1000]}" if reply.status == 404 else f" (status {reply.status})"
        raise ToolError(f"there is no page {path[:80]!r}{more}")
    return text
