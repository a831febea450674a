"""Responses that an attempt may come back to: by `previous_response_id`, by paths of their own, and
item by item. `responses.py` makes them, and the session of an attempt keeps them.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from tutelage.gateway.dialects.paging import first_and_last, page
from tutelage.gateway.dialects.reading import MessageObject, read
from tutelage.gateway.errors import ApiError
from tutelage.types import JSON, Message

if TYPE_CHECKING:
    from tutelage.gateway.dialects.dialect import SessionView

KEPT_RESPONSES = 1024
KEPT_BYTES = 1 << 27
"""The most that their requests have together; the latest is kept in any case."""


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


class _Page(MessageObject):
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None


def read_response(path: Mapping[str, str], query: JSON, attempt: SessionView) -> JSON:
    """Return a response as it was sent. Raises `ApiError` 404."""
    return attempt.responses.get(path["response"]).response


def list_input_items(path: Mapping[str, str], query: JSON, attempt: SessionView) -> JSON:
    """Return a page of what a response's request brought. Raises `ApiError`."""
    items = attempt.responses.get(path["response"]).input_items
    asked = read(_Page, query)
    ordered = items if asked.order == "asc" else items[::-1]
    found, more = page(ordered, asked.limit, after=asked.after)
    return {"object": "list", "data": found, **first_and_last(found), "has_more": more}
