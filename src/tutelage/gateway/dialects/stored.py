"""Responses that an attempt may come back to: by `previous_response_id`, by paths of their own, and
item by item. `responses.py` makes them, and the session of an attempt keeps them.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from pydantic import Field

from tutelage.gateway.dialects.paging import first_and_last, page
from tutelage.gateway.dialects.reading import MessageObject, read
from tutelage.gateway.errors import ApiError, invalid
from tutelage.gateway.reply import ChatReply, ReplyStream, Writer
from tutelage.types import JSON, Message

KEPT_RESPONSES = 1024
KEPT_BYTES = 1 << 27
"""The most that their requests have together; the latest is kept in any case."""
_END = b"\n\n"
"""What ends an event."""


def unknown_response(response_id: str) -> str:
    """What a request is told that names a response which is not kept."""
    return (
        f"response {response_id!r} not found in this attempt; it may have been created with "
        "`store`: false or by another attempt, have expired, or still be in progress"
    )


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A finished response as it was sent, the whole conversation with its own turn, and the items
    that its request brought."""

    conversation: tuple[Message, ...]
    response: JSON
    input_items: tuple[JSON, ...] = ()
    size: int = 0
    """Bytes of the request's body."""

    def items(self) -> Mapping[str, JSON]:
        """All of its items by their ids."""
        return {item["id"]: item for item in (*self.input_items, *self.response["output"])}


class StoredResponses:
    """The latest responses of an attempt."""

    def __init__(self, size: int = KEPT_RESPONSES) -> None:
        self._size = size
        self._kept: OrderedDict[str, StoredResponse] = OrderedDict()
        self._items: dict[str, JSON] = {}
        self._bytes = 0
        self._holders = Counter[str]()
        """Of each item, how many responses have it: one that came as input has been output."""

    def add(
        self,
        response: JSON,
        conversation: tuple[Message, ...],
        given: Sequence[JSON] = (),
        size: int = 0,
    ) -> None:
        """Keep a finished response with its whole conversation, and the items of its request, whose
        body had `size` bytes."""
        if response["id"] in self._kept:  # who asks again is told the same
            return
        items = tuple(_input_items(response["id"], given))
        new = self._kept[response["id"]] = StoredResponse(conversation, response, items, size)
        for item_id, item in new.items().items():
            self._items.setdefault(item_id, item)  # who sends one back may not change it
        self._holders.update(new.items().keys())
        self._bytes += size
        while len(self._kept) > self._size or (self._bytes > KEPT_BYTES and len(self._kept) > 1):
            self.remove(next(iter(self._kept)))

    def item(self, item_id: str) -> JSON | None:
        """An input or output item."""
        return self._items.get(item_id)

    def find(self, response_id: str) -> StoredResponse | None:
        """The response of that id."""
        return self._kept.get(response_id)

    def get(self, response_id: str) -> StoredResponse:
        """The response of that id. Raises `ApiError` 404."""
        found = self.find(response_id)
        if found is None:
            raise ApiError(404, unknown_response(response_id))
        return found

    def remove(self, response_id: str) -> None:
        """Forget a response, and items that no other has."""
        old = self._kept.pop(response_id)
        self._bytes -= old.size
        for item_id in old.items():
            self._holders[item_id] -= 1
            if not self._holders[item_id]:
                del self._holders[item_id], self._items[item_id]


def _input_items(response_id: str, given: Sequence[JSON]) -> Iterator[JSON]:
    """Items of a request in the long form that the API lists: with ids, content as parts."""
    for i, item in enumerate(given):
        out: JSON = {"type": "message", **item}
        out.setdefault("id", f"{response_id}-in-{i}")
        if out["type"] == "message":
            out.setdefault("status", "completed")
            if isinstance(out.get("content"), str):
                out["content"] = [_part(str(out.get("role")), out["content"])]
        yield out


def _part(role: str, text: str) -> Mapping[str, object]:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": []}
    return {"type": "input_text", "text": text}


# ---------------------------------------------------------------- their paths


class _KeepsReplies(Protocol):
    @property
    def responses(self) -> StoredResponses: ...

    def reply(self, answer_id: str) -> ChatReply | None:
        """The reply of that id, while the attempt keeps it for repeats."""
        ...


class _Retrieval(MessageObject):
    stream: bool = False
    starting_after: Annotated[int | None, Field(ge=0)] = None


class _Page(MessageObject):
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None


def stored_paths(
    writer: Callable[[ChatReply], Writer],
) -> Mapping[str, Mapping[str, Callable[[Mapping[str, str], JSON, _KeepsReplies], JSON | bytes]]]:
    """The paths of stored responses; `writer` is that of their dialect."""

    def found(path: Mapping[str, str], query: JSON, attempt: _KeepsReplies) -> JSON | bytes:
        asked = read(_Retrieval, query)
        kept = attempt.responses.get(path["response"]).response
        if asked.stream:
            return _streamed(attempt.reply(kept["id"]), asked.starting_after, writer)
        if asked.starting_after is not None:
            raise invalid("`starting_after` requires `stream`: true", "starting_after")
        return kept

    one = "/v1/responses/{response}"
    return {
        one: {"GET": found, "DELETE": _delete},
        f"{one}/input_items": {"GET": _listed_input},
        f"{one}/cancel": {"POST": _cancel},
    }


def _streamed(
    reply: ChatReply | None, after: int | None, writer: Callable[[ChatReply], Writer]
) -> bytes:
    """The events of a finished response, those after a number where one is given."""
    if reply is None:
        words = "the events of this response have expired; request it without `stream`"
        raise invalid(words, "stream")
    if after is not None and reply.request.stream:
        words = (
            "an interrupted stream cannot be resumed, since background responses are not "
            "supported; leave out `starting_after` to stream the whole response"
        )
        raise invalid(words, "starting_after")
    stream = ReplyStream(reply.answer, writer(reply))
    events = (stream.feed() + stream.finish(reply)).split(_END)
    # The events are numbered from 0, so those that are left out are the first ones.
    return _END.join(events[0 if after is None else min(after + 1, len(events) - 2) :])


def _delete(path: Mapping[str, str], body: JSON, attempt: _KeepsReplies) -> JSON:
    kept = attempt.responses.get(path["response"]).response["id"]
    attempt.responses.remove(kept)
    return {"id": kept, "object": "response", "deleted": True}


def _cancel(path: Mapping[str, str], body: JSON, attempt: _KeepsReplies) -> JSON:
    attempt.responses.get(path["response"])
    raise invalid("only a response with `background`: true can be cancelled; this one has finished")


def _listed_input(path: Mapping[str, str], query: JSON, attempt: _KeepsReplies) -> JSON:
    items = attempt.responses.get(path["response"]).input_items
    asked = read(_Page, query)
    ordered = items if asked.order == "asc" else items[::-1]
    found, more = page(ordered, asked.limit, after=asked.after)
    return {"object": "list", "data": found, **first_and_last(found), "has_more": more}
