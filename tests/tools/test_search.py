"""The tools over a corpus, and the web search against a server of our own."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.loopback import listening

from tutelage.errors import ConfigError
from tutelage.tools import ToolOptions, corpus, execute_tool_calls, resolve_tools
from tutelage.types import ToolCall

KEY = "secret-key-1"


@pytest.fixture
def index(tmp_path: Path) -> str:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"title": "Oslo", "text": "The capital of Norway. " * 80}) + "\n")
    corpus.build([rows], tmp_path / "corpus.db")
    return str(tmp_path / "corpus.db")


class Service(BaseHTTPRequestHandler):
    """Answers like the two services; `seen` is what was asked."""

    seen: ClassVar[list[dict[str, Any]]] = []
    status, body = 200, b""

    def _answer(self, query: str, items: str) -> None:
        found = [
            {"title": f"T{i}", "snippet": f"about {query}", "link": f"http://x/{i}"}
            for i in range(5)
        ]
        body = type(self).body or json.dumps({items: found}).encode()
        self.send_response(type(self).status)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        data = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append({"key": self.headers["X-API-KEY"], **data})
        self._answer(data["q"], "organic")

    def do_GET(self) -> None:
        data = {k: v[0] for k, v in parse_qs(urlsplit(self.path).query).items()}
        self.seen.append(data)
        self._answer(data["q"], "items")

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def address() -> Iterator[str]:
    Service.seen, Service.status, Service.body = [], 200, b""
    with listening(Service) as url:
        yield f"{url}/"


async def ask(options: ToolOptions, query: str, name: str = "google_search") -> Any:
    tools = resolve_tools([name], options)
    call = ToolCall("1", name, json.dumps({"query": query}))
    return (await execute_tool_calls([call], tools))[0]


@pytest.mark.parametrize("name", ["search", "google_search"])
async def test_without_a_key_the_local_corpus_answers(
    index: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = await ask(ToolOptions(index, environ={}), "norway", name)
    assert found.error is None
    assert found.text.startswith("[1] Oslo: The capital of Norway.")
    assert len(found.text) < 800
    assert ("no API key for web search" in caplog.text) == (name == "google_search")
    nothing = await ask(ToolOptions(environ={"TUTELAGE_SEARCH_INDEX": index}), "xyzzy", name)
    assert nothing.text == "No results. Try other words."


@pytest.mark.parametrize("name", ["search", "google_search"])
def test_without_a_corpus_it_is_refused_before_anything_runs(name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"tools\.search_index=PATH or the variable TUTELAGE_SEARCH_INDEX"
    ):
        resolve_tools([name], ToolOptions(environ={}))
    with pytest.raises(ConfigError, match="does not exist"):
        resolve_tools([name], ToolOptions("/nowhere.db", environ={}))


async def test_serper_is_asked_with_its_key(address: str) -> None:
    options = ToolOptions(environ={"SERPER_API_KEY": KEY, "SERPER_URL": address})
    found = await ask(options, "fjords")
    assert found.text.splitlines()[0] == "[1] T0: about fjords (http://x/0)"
    assert len(found.text.splitlines()) == 3
    assert Service.seen == [{"key": KEY, "q": "fjords", "num": "3"}]


async def test_google_is_asked_with_its_key(address: str) -> None:
    environ = {"GOOGLE_API_KEY": KEY, "GOOGLE_CSE_ID": "cx1", "GOOGLE_SEARCH_URL": address}
    found = await ask(ToolOptions(environ=environ), "fjords")
    assert found.text.startswith("[1] T0")
    assert Service.seen == [{"key": KEY, "cx": "cx1", "q": "fjords", "num": "3"}]


@pytest.mark.parametrize(
    ("status", "body"), [(500, b""), (403, b"no"), (200, b"not json"), (200, b"[]"), (200, b"{}")]
)
async def test_a_service_that_fails_is_an_observation_without_the_key(
    address: str, status: int, body: bytes
) -> None:
    Service.status, Service.body = status, body
    environ = {"GOOGLE_API_KEY": KEY, "GOOGLE_CSE_ID": "cx1", "GOOGLE_SEARCH_URL": address}
    found = await ask(ToolOptions(environ=environ), "fjords")
    assert KEY not in found.text
    if status == 200 and body in (b"[]", b"{}"):
        assert found.text == "No results. Try other words."
    else:
        assert found.error == "raised"


async def test_a_service_that_is_not_there(address: str) -> None:
    environ = {"SERPER_API_KEY": KEY, "SERPER_URL": "http://127.0.0.1:9/"}
    found = await ask(ToolOptions(environ=environ), "x")
    assert found.error == "raised"
    assert "request failed" in found.text
