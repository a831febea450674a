"""The tools `search` and `google_search`: find passages in a local corpus or on the web.

`search` reads a local corpus (`corpus.py`). `google_search` queries a web search service if its
API key is set, and otherwise reads the local corpus too, so that offline training uses the same
tool. The source is chosen and logged when tools are resolved, not during a rollout.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tutelage.bounded import DIRECT, parse_json
from tutelage.config.api_keys import api_key_of
from tutelage.errors import ConfigError
from tutelage.tools import corpus
from tutelage.tools.options import ToolOptions
from tutelage.tools.tool import Tool, ToolError, ToolTimeoutError, tool

RESULTS = 3
"""Number of passages in an observation."""
RESULT_CHARS = 700
"""Maximum characters of a passage in an observation."""
SERPER = "https://google.serper.dev/search"
GOOGLE = "https://www.googleapis.com/customsearch/v1"
_HTTP_SECONDS = 15.0
_NOTHING = "No results. Try other words."

logger = logging.getLogger(__name__)


def search_tool(options: ToolOptions) -> Tool:
    """Create the tool `search` for the local corpus. Raises `ConfigError` without a corpus."""
    return _local_search(options, "search", "Search the local corpus for passages about something.")


def google_search_tool(options: ToolOptions) -> Tool:
    """Create the tool `google_search`: web search with an API key, else the local corpus.

    Raises `ConfigError` if neither is available.
    """
    service = _find_service(options.environ)
    if service is not None:

        @tool("google_search", timeout=_HTTP_SECONDS + 5)
        async def google_search(query: str) -> str:
            """Search the web.

            Args:
                query: What to look for, in a few words.
            """
            return format_passages(await _query_service(service, query))

        return google_search
    try:
        local = _local_search(options, "google_search", "Search for passages about something.")
    except ConfigError as error:
        raise ConfigError(
            f"{error}; or set SERPER_API_KEY, or GOOGLE_API_KEY and GOOGLE_CSE_ID, to search the "
            "web"
        ) from error
    logger.warning(
        "google_search: no API key for web search, so it searches %s", options.index_path
    )
    return local


def format_passages(passages: Sequence[corpus.Passage]) -> str:
    """Format passages as a numbered list."""
    if not passages:
        return _NOTHING
    lines: list[str] = []
    for number, passage in enumerate(passages, 1):
        text = " ".join(passage.text.split())
        if len(text) > RESULT_CHARS:
            text = text[: RESULT_CHARS - 3].rstrip() + "..."
        lines.append(
            f"[{number}] {passage.title}: {text}" if passage.title else f"[{number}] {text}"
        )
    return "\n".join(lines)


def _local_search(options: ToolOptions, name: str, about: str) -> Tool:
    path = options.index_path
    if path is None:
        raise ConfigError(
            f"the tool {name!r} has no corpus: create one with `tutelage index FILES` and set "
            "tools.search_index=PATH or the variable TUTELAGE_SEARCH_INDEX"
        )
    corpus.check(path)

    @tool(name, timeout=20.0)
    def search(query: str) -> str:
        """Search the local corpus.

        Args:
            query: What to look for, in a few words.
        """
        return format_passages(corpus.search(path, query, RESULTS))

    return replace(search, description=about)


# ---------------------------------------------------------------- the web


@dataclass(frozen=True, slots=True)
class _Service:
    """A web search service: its request, and the response field with the results."""

    name: str
    method: str
    url: str
    headers: Mapping[str, str]
    fixed: Mapping[str, str]
    """Fields sent with every query."""
    items: str
    """The field of the response that holds the results."""


def _find_service(environ: Mapping[str, str]) -> _Service | None:
    """Return the web search service whose API key is in the environment, or None.

    `SERPER_URL` and `GOOGLE_SEARCH_URL` override the addresses, for a proxy.
    """
    key = api_key_of(environ, "SERPER_API_KEY")
    if key:
        url = environ.get("SERPER_URL", SERPER)
        return _Service("Serper", "POST", url, {"X-API-KEY": key}, {"num": str(RESULTS)}, "organic")
    key, engine = api_key_of(environ, "GOOGLE_API_KEY"), environ.get("GOOGLE_CSE_ID")
    if key and engine:
        fixed = {"key": key, "cx": engine, "num": str(RESULTS)}
        url = environ.get("GOOGLE_SEARCH_URL", GOOGLE)
        return _Service("Google", "GET", url, {}, fixed, "items")
    return None


async def _query_service(service: _Service, query: str) -> list[corpus.Passage]:
    """Query a web search service. Raises `ToolError`, whose message never contains the key."""
    import httpx2

    fields = {**service.fixed, "q": query}
    body: dict[str, Any] = {"json": fields} if service.method == "POST" else {"params": fields}
    try:
        async with httpx2.AsyncClient(timeout=_HTTP_SECONDS, mounts=DIRECT) as client:
            response = await client.request(
                service.method, service.url, headers=dict(service.headers), **body
            )
            data: Any = parse_json(response.content) if response.status_code == 200 else None
    except httpx2.TimeoutException as error:
        raise ToolTimeoutError(f"{service.name} did not answer in {_HTTP_SECONDS:g} s") from error
    except (httpx2.HTTPError, ValueError) as error:
        # The text of the error may contain the URL, and with it the key.
        raise ToolError(f"{service.name} request failed: {type(error).__name__}") from error
    if response.status_code != 200:
        raise ToolError(f"{service.name} answered with status {response.status_code}")
    results: Any = data.get(service.items) if isinstance(data, dict) else None
    items: list[Any] = results if isinstance(results, list) else []
    return [_web_passage(item) for item in items[:RESULTS] if isinstance(item, dict)]


def _web_passage(item: Mapping[str, Any]) -> corpus.Passage:
    link = item.get("link")
    snippet = str(item.get("snippet") or "")
    return corpus.Passage(str(item.get("title") or ""), f"{snippet} ({link})" if link else snippet)
