"""Responses that an attempt may come back to: by `previous_response_id`, by paths of their own, and
item by item. `responses.py` makes them, and the session of an attempt keeps them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tutelage.gateway.errors import ApiError, invalid
from tutelage.types import JSON, Message

KEPT_RESPONSES = 1024


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A finished response as it was sent, the whole conversation with its own turn, and the items
    that its request brought."""

    conversation: tuple[Message, ...]
    response: JSON
    input_items: tuple[JSON, ...] = ()


class StoredResponses:
    """The latest responses of an attempt."""

    def __init__(self, size: int = KEPT_RESPONSES) -> None:
        self._size = size
        self._kept: OrderedDict[str, StoredResponse] = OrderedDict()
        self._items: dict[str, JSON] = {}

    def add(
        self, response: JSON, conversation: tuple[Message, ...], given: Sequence[JSON] = ()
    ) -> None:
        """Keep a finished response with its whole conversation, and the items of its request."""
        items = tuple(_input_items(response["id"], given))
        self._kept[response["id"]] = StoredResponse(conversation, response, items)
        self._items |= {item["id"]: item for item in (*items, *response["output"])}
        while len(self._kept) > self._size:
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
            raise ApiError(404, f"no response {response_id!r} of this attempt is stored")
        return found

    def remove(self, response_id: str) -> None:
        """Forget a response and its items."""
        old = self._kept.pop(response_id)
        for item in (*old.input_items, *old.response["output"]):
            self._items.pop(item["id"], None)


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


class _KeepsResponses(Protocol):
    responses: StoredResponses


def _stored(path: Mapping[str, str], body: JSON, attempt: _KeepsResponses) -> JSON:
    return attempt.responses.get(path["response"]).response


def _delete(path: Mapping[str, str], body: JSON, attempt: _KeepsResponses) -> JSON:
    kept = attempt.responses.get(path["response"]).response["id"]
    attempt.responses.remove(kept)
    return {"id": kept, "object": "response", "deleted": True}


def _cancel(path: Mapping[str, str], body: JSON, attempt: _KeepsResponses) -> JSON:
    attempt.responses.get(path["response"])
    raise invalid("only a response with `background`: true can be cancelled; this one has ended")


def _listed_input(path: Mapping[str, str], body: JSON, attempt: _KeepsResponses) -> JSON:
    items = attempt.responses.get(path["response"]).input_items
    ends = [items[i]["id"] if items else None for i in (0, -1)]
    page = {"first_id": ends[0], "last_id": ends[1], "has_more": False}
    return {"object": "list", "data": items, **page}


_ONE = "/v1/responses/{response}"
PATHS = {
    _ONE: {"GET": _stored, "DELETE": _delete},
    f"{_ONE}/input_items": {"GET": _listed_input},
    f"{_ONE}/cancel": {"POST": _cancel},
}
