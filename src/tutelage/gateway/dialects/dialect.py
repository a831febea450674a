"""What a dialect is: one API of model calls, read into the internal request and written from the
internal reply, and nothing else.

Admission, repeats, sampling, what a stream may say when, and errors are the gateway's and the same
for all. A further dialect is one file beside this one and its entry in `DIALECTS`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from tutelage.gateway.reply import ChatReply, Writer
from tutelage.gateway.request import ChatRequest
from tutelage.types import JSON, Message, Sampling

KEPT_RESPONSES = 1024


class StoredResponses:
    """Responses of an attempt for `previous_response_id`, `GET` and item references."""

    def __init__(self, size: int = KEPT_RESPONSES) -> None:
        self._size = size
        self._kept: OrderedDict[str, tuple[tuple[Message, ...], JSON]] = OrderedDict()
        self._items: dict[str, JSON] = {}

    def add(self, response: JSON, conversation: tuple[Message, ...]) -> None:
        """Keep a finished response with its whole conversation, its own turn included."""
        self._kept[response["id"]] = (conversation, response)
        self._items |= {item["id"]: item for item in response["output"]}
        while len(self._kept) > self._size:
            _, (_, old) = self._kept.popitem(last=False)
            for item in old["output"]:
                self._items.pop(item["id"], None)

    def item(self, item_id: str) -> JSON | None:
        """An output item."""
        return self._items.get(item_id)

    def get(self, response_id: str) -> tuple[tuple[Message, ...], JSON] | None:
        """The messages including that response, and the response as it was sent."""
        return self._kept.get(response_id)


class Dialect(Protocol):
    """One API."""

    name: str
    """As records of calls have it."""
    path: str
    prefix: str
    """Of the ids of its replies."""

    def read(self, body: JSON, defaults: Sampling, stored: StoredResponses) -> ChatRequest:
        """The request; `defaults` says what holds where it is silent. Raises `ApiError`.

        Every field is honoured, known to be harmless, or refused with its name: an agent that
        believes it samples at a penalty which nobody applies would be trained on something else
        than it runs.
        """
        ...

    def written(self, reply: ChatReply) -> JSON:
        """The answer to a request that is not streamed."""
        ...

    def writer(self, reply: ChatReply) -> Writer:
        """The stream of a reply that has just begun."""
        ...
