"""A chat completion that comes in chunks: what it says as it comes, and the whole of it at the end.

`remote.py` asks for one to show it before the server has ended; the record
is read from the same object as a completion that came at once.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from tutelage.bounded import LONGEST_REPLY, HTTPResponse, parse_json, whole_characters
from tutelage.engine.pieces import collect, joined, merge
from tutelage.engine.reply_forms import (
    HalfCharacters,
    as_status,
    called_by_tools,
    entries_of,
    error_of,
    failure,
    has_halves,
    plain,
    readable,
)
from tutelage.engine.server_events import DONE, Event, EventReader
from tutelage.errors import MalformedReplyError, RemoteError, UnreachableError
from tutelage.types import JSON

if TYPE_CHECKING:
    import httpx2

_PARTS = frozenset({"role", "content", "tool_calls"})
_SHOWN = 200
"""Bytes of an event that an error shows."""
OnText = Callable[[str], None]
OnEntries = Callable[[list[JSON]], None]
"""Is told the server's log-probabilities of the tokens of what is told next."""
OnFields = Callable[[JSON], None]
"""Is told what is no text: a piece of a thought or of a tool call, as the fields of a delta."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Takes a reply as it comes."""

    text: OnText
    entries: OnEntries | None = None
    fields: OnFields | None = None
    call_id: Callable[[int], str] | None = None
    """Makes the id of a tool call, by its place, that the server gives none."""

    def delta(self, delta: JSON) -> bool:
        """Take a delta: its thought, its text, its tool calls. Whether any of it was told."""
        calls, text = delta.get("tool_calls"), delta.get("content")
        more = {k: v for k, v in delta.items() if k not in _PARTS and v not in (None, "")}
        if self.fields is not None and more:
            self.fields(more)
        if text:
            self.text(text)
        if self.fields is not None and calls:
            self.fields({"tool_calls": calls})
        return bool(text or (self.fields is not None and (more or calls)))


class Completion:
    """The object that the chunks so far add up to."""

    def __init__(
        self, call_id: Callable[[int], str] | None = None, *, functions: bool = False
    ) -> None:
        """`call_id` is that of the `Listener`, `functions` as in `read_completion`."""
        self._call_id, self._functions = call_id, functions
        self._halves = HalfCharacters()
        self._message: JSON = {"role": "assistant", "content": None}
        self.choice: JSON = {"index": 0, "message": self._message, "finish_reason": None}
        self._whole: JSON = {"choices": [self.choice]}
        self.begun = False
        """Whether a choice has come; the first is the reply, and others that nobody asked for are
        left out."""
        self._index: Any = None
        """The server's number of that choice."""
        self.told = False
        """Whether any of it was told to a listener."""
        self._calls: dict[int, JSON] = {}
        self._made: dict[int, str] = {}
        """Ids that were made here, by the place of their call."""
        self._places: dict[int, int] = {}
        """Where the call is that an index of the server's means by now."""

    @property
    def message(self) -> JSON:
        """Its message so far."""
        return joined(self._message)

    @property
    def whole(self) -> JSON:
        """The object so far."""
        return joined(self._whole)

    @property
    def ended(self) -> bool:
        """Whether the server has said why it ends."""
        return bool(self.choice["finish_reason"])

    def add(self, chunk: JSON, *, halves: bool = False) -> tuple[list[JSON], list[JSON]]:
        """Take a chunk; the deltas and the log-probabilities that it brings. `halves` says that
        there may be halves of characters in its deltas. What is no chunk, such as a sign that the
        server lives, says nothing of the reply."""
        if "choices" in chunk or "usage" in chunk:
            self._whole |= {k: v for k, v in chunk.items() if k != "choices" and v is not None}
        deltas, new = list[JSON](), list[JSON]()
        for choice in cast("list[JSON]", chunk.get("choices") or []):
            if not self._is_ours(choice):
                continue
            delta = choice.get("delta") or {}
            plain(delta)
            if not self._functions:
                called_by_tools(delta)
            deltas.append(self._halves.joined(delta) if halves or self._halves else delta)
            if not isinstance(content := deltas[-1].get("content"), str | None):
                raise TypeError(f"content is {type(content).__name__}")
            self._delta(deltas[-1])
            if choice.get("finish_reason"):
                self.choice["finish_reason"] = choice["finish_reason"]
            if choice.get("stop_reason"):
                self.choice["stop_reason"] = choice["stop_reason"]
            if choice.get("token_ids"):
                self.choice.setdefault("token_ids", []).extend(choice["token_ids"])
            if entries := entries_of(choice):
                told = self.choice.setdefault("logprobs", {"content": []})
                told["content"].extend(entries)
                new += readable(entries)
        return deltas, new

    def _is_ours(self, choice: JSON) -> bool:
        """Whether a choice is the reply, or a piece of it."""
        index = choice.get("index")
        if not self.begun:
            self.begun, self._index = True, index
        return index == self._index or index is None or self._index is None

    def rest(self) -> list[JSON]:
        """At the end, deltas of what was kept for the next chunk."""
        deltas = self._halves.rest()
        for delta in deltas:
            self._delta(delta)
        return deltas

    def unsaid(self) -> list[JSON]:
        """At a good end, deltas with the arguments of functions that came without any."""
        empty = (
            at
            for at, call in self._calls.items()
            if call.get("function", {}).get("arguments") == ""
        )
        return [
            {"tool_calls": [{"index": at, "function": {"arguments": "{}"}}]} for at in sorted(empty)
        ]

    def _delta(self, delta: JSON) -> None:
        for part in delta.get("tool_calls") or ():
            self._called(part)
        new = {k: v for k, v in delta.items() if k not in ("role", "tool_calls")}
        merge(self._message, new, collect)

    def _called(self, part: JSON) -> None:
        at = part["index"] = self._place(part)  # for those who are told of it, too
        if at not in self._calls:
            kind, said = ("custom", "input") if "custom" in part else ("function", "arguments")
            self._calls[at] = {"id": None, "type": kind, kind: {"name": "", said: ""}}
            self._message["tool_calls"] = [self._calls[i] for i in sorted(self._calls)]
        call = self._calls[at]
        self._name_once(call, part)
        self._identify(call, part, at)
        for kind in call.keys() & part.keys() - {"id", "type"}:
            for name in call[kind]:
                collect(call[kind], name, (part[kind] or {}).get(name) or "")

    def _name_once(self, call: JSON, part: JSON) -> None:
        """Some servers repeat a call's id and whole name in each piece: that is no more of it."""
        if call["id"] is None or part.get("id") != call["id"]:
            return
        for kind in call.keys() & part.keys() - {"id", "type"}:
            made = part[kind] or {}
            if made.get("name") == joined(call[kind]["name"]):
                part[kind] = {name: value for name, value in made.items() if name != "name"}

    def _identify(self, call: JSON, part: JSON, at: int) -> None:
        """A call has the latest id of its pieces. Where the first has none, one is made here, which
        that piece gets and the call keeps."""
        if at in self._made:
            part.pop("id", None)
        elif not (part.get("id") or call["id"]) and self._call_id is not None:
            part["id"] = self._made[at] = self._call_id(at)
        call["id"] = part.get("id") or call["id"]

    def _place(self, part: JSON) -> int:
        """Which call a piece is of. Some servers give every call the index 0, or none: there a name
        with an id of its own begins a call. An id alone does not: others make up one a piece."""
        given, id = part.get("index"), part.get("id")
        last = max(self._calls, default=0)
        at = last if given is None else self._places.get(int(given), int(given))
        known = None if at in self._made else self._calls.get(at, {}).get("id")
        named = (part.get("function") or part.get("custom") or {}).get("name")
        if id and known and id != known and named:
            same = (place for place, call in self._calls.items() if call["id"] == id)
            at = next(same, last + 1)
        if given is not None:
            self._places[int(given)] = at
        return at


def message_so_far(data: JSON) -> JSON:
    """The message of a completion that ended with an error; empty where it makes no sense."""
    found = Completion(functions=True)
    try:
        found.add({"choices": [{"delta": data["choices"][0]["message"]}]})
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RemoteError):
        return {}
    return found.message


async def stream_completion(
    client: httpx2.AsyncClient, url: str, body: JSON, headers: dict[str, str], listener: Listener
) -> HTTPResponse:
    """Ask for a stream, tell `listener` of it, and return the completion that it adds up to.

    A server that answers otherwise is returned as it answers, and an error that it reports in the
    stream as one. Raises `httpx2.HTTPError`, for a stream without an end, too,
    `MalformedReplyError` for an event that is no chunk, and `UnreachableError` where some of it was
    told before: another reply would not begin as this one did.
    """
    import httpx2

    asked = body | {"stream": True, "stream_options": {"include_usage": True}}
    found, failed = Completion(listener.call_id, functions="functions" in body), None
    answered: Mapping[str, str] = {}
    try:
        async with client.stream("POST", url, json=asked, headers=headers) as response:
            answered = response.headers
            kind = answered.get("content-type", "")
            if response.status_code >= 400 or not kind.startswith("text/event-stream"):
                content = b"".join([part async for part in _bounded(response)])
                return HTTPResponse(response.status_code, response.headers, content)
            failed = await _read(response, found, listener)
    except (httpx2.HTTPError, MalformedReplyError) as error:
        # What comes after the end, such as what was used, can be missing.
        if not (found.ended and isinstance(error, httpx2.TransportError)):
            if isinstance(error, httpx2.ReadTimeout) or not found.told:
                raise
            words = str(error).removeprefix(f"{_server(url)} ") or type(error).__name__
            raise UnreachableError(f"{_server(url)} aborted its reply: {words}") from error
    for delta in (*found.rest(), *(() if failed else found.unsaid())):
        found.told |= listener.delta(delta)
    whole = HTTPResponse(200, answered, json.dumps(found.whole).encode())
    if failed is None:
        return whole
    if not found.told:
        return as_status(failed, whole)
    raise UnreachableError(f"{_server(url)} aborted its reply: {failed['message']}")


def _server(url: str) -> str:
    return f"the server {url!r}"


async def _read(response: httpx2.Response, found: Completion, listener: Listener) -> JSON | None:
    """Read a stream to its end, or to the error that it reports, which is returned. It has an end
    where `[DONE]` or a finish reason has come."""
    import httpx2

    async for kind, data in _events(response):
        if data == DONE:
            break
        deltas, entries, failed = _add(response, found, data, kind)
        if entries and listener.entries is not None:
            listener.entries(entries)
        for delta in deltas:
            found.told |= listener.delta(delta)
        if failed is not None:
            return failed
    else:
        if not found.ended:
            raise httpx2.RemoteProtocolError("the stream ended before the reply was complete")
    if not found.begun:
        raise httpx2.RemoteProtocolError("the stream ended without a reply")
    return None


async def _bounded(response: httpx2.Response) -> AsyncIterator[bytes]:
    import httpx2

    size = 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > LONGEST_REPLY:
            raise httpx2.DecodingError(f"the reply exceeds {LONGEST_REPLY} bytes")
        yield part


async def _events(response: httpx2.Response) -> AsyncIterator[Event]:
    reader = EventReader()
    async for part in _bounded(response):
        for each in reader.feed(part):
            yield each
    for each in reader.end():
        yield each


def _add(
    response: httpx2.Response, found: Completion, data: bytes, kind: bytes
) -> tuple[list[JSON], list[JSON], JSON | None]:
    """The deltas of an event, its log-probabilities, and the error that it reports."""
    try:
        chunk: Any = parse_json(data, longest=LONGEST_REPLY)
        if chunk is None:
            return [], [], None
        halves = has_halves(data)
        if halves:
            # In whole characters, but for the deltas, whose texts go on in the next chunk.
            choices = chunk.get("choices") or ()
            chunk = whole_characters(chunk)
            for choice, left in zip(chunk.get("choices") or (), choices, strict=True):
                if "delta" in left:
                    choice["delta"] = left["delta"]
        failed = failure(chunk)
        if kind == b"error" and failed is None:
            return [], [], error_of(chunk)
        return *found.add(chunk, halves=halves), failed
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if kind == b"error":
            return [], [], error_of(data.decode("utf-8", "replace"))
        if kind not in (b"", b"message") and b"choices" not in data:
            return [], [], None  # an event of another kind, which says nothing of the reply
        began = data[:_SHOWN].decode("utf-8", "replace")
        words = f"answered {response.status_code} with an invalid chunk ({error!r})"
        server = _server(str(response.url))
        raise MalformedReplyError(f"{server} {words}: {began!r}") from error
