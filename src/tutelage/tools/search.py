"""The tools `search` and `google_search`: find passages in a local corpus or on the web.

`search` reads a local corpus (`corpus.py`). `google_search` queries Serper, which returns Google's
results, if its API key is set, and otherwise reads the local corpus too, so that offline training
uses the same tool. The source is chosen and logged when tools are resolved, not during a rollout.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tutelage.bounded import DIRECT, parse_json
from tutelage.config.api_keys import read_api_key
from tutelage.errors import ConfigError
from tutelage.tools import corpus
from tutelage.tools.options import ToolOptions
from tutelage.tools.tool import Tool, ToolError, ToolTimeoutError, tool

RESULTS = 3
"""Number of passages in an observation."""
RESULT_CHARS = 700
"""Maximum characters of a passage in an observation."""
SERPER = "https://google.serper.dev/search"
_HTTP_SECONDS = 15.0
_NOTHING = "No results. Try other words."

logger = logging.getLogger(__name__)


def search_tool(options: ToolOptions) -> Tool:
    """Create the tool `search` for the local corpus. Raises `ConfigError` if there is no corpus."""
    return _local_search(options, "search", "Search the local corpus for passages about something.")


def google_search_tool(options: ToolOptions) -> Tool:
    """Create the tool `google_search`: web search with an API key, else the local corpus.

    `SERPER_URL` overrides the address, for a proxy. Raises `ConfigError` without key and corpus.
    """
    if key := read_api_key(options.environ, "SERPER_API_KEY"):
        url = options.environ.get("SERPER_URL", SERPER)

        @tool("google_search", timeout=_HTTP_SECONDS + 5)
        async def google_search(query: str) -> str:
            """Search the web.

            Args:
                query: What to look for, in a few words.
            """
            return format_passages(await _query_serper(url, key, query))

        return google_search
    try:
        local = _local_search(options, "google_search", "Search for passages about something.")
    except ConfigError as error:
        raise ConfigError(f"{error}; or set SERPER_API_KEY to search the web") from error
    logger.warning(
        "google_search: no API key for web search, so it searches %s", options.index_path
    )
    return local


def format_passages(passages: Sequence[corpus.Passage]) -> str:
    """Format passages as a numbered list."""
    if not passages:
        return _NOTHING
    lines: list[str] = []
    for number, (title, text) in enumerate(passages, 1):
        text = " ".join(text.split())
        if len(text) > RESULT_CHARS:
            text = text[: RESULT_CHARS - 3].rstrip() + "..."
        lines.append(f"[{number}] {title}: {text}" if title else f"[{number}] {text}")
    return "\n".join(lines)


def _local_search(options: ToolOptions, name: str, description: str) -> Tool:
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

    return replace(search, description=description)


async def _query_serper(url: str, key: str, query: str) -> list[corpus.Passage]:
    """Query Serper. Raises `ToolError`, whose message never contains the key."""
    import httpx2

    try:
        async with httpx2.AsyncClient(timeout=_HTTP_SECONDS, mounts=DIRECT) as client:
            fields = {"num": str(RESULTS), "q": query}
            response = await client.post(url, headers={"X-API-KEY": key}, json=fields)
            data: Any = parse_json(response.content) if response.status_code == 200 else None
    except httpx2.TimeoutException as error:
        raise ToolTimeoutError(f"Serper did not answer in {_HTTP_SECONDS:g} s") from error
    except (httpx2.HTTPError, ValueError) as error:
        # The text of the error may contain the URL, and with it the password of a proxy.
        raise ToolError(f"Serper request failed: {type(error).__name__}") from error
    if response.status_code != 200:
        raise ToolError(f"Serper answered with status {response.status_code}")
    results: Any = data.get("organic") if isinstance(data, dict) else None
    items: list[Any] = results if isinstance(results, list) else []
    return [_to_passage(item) for item in items[:RESULTS] if isinstance(item, dict)]


def _to_passage(item: Mapping[str, Any]) -> corpus.Passage:
    link = item.get("link")
    snippet = str(item.get("snippet") or "")
    return str(item.get("title") or ""), f"{snippet} ({link})" if link else snippet
