"""What a dialect is: one API of model calls, read into the internal request and written from the
internal reply, and nothing else.

Admission, repeats, sampling, what a stream may say when, and errors are the gateway's and the same
for all. A further dialect is one file beside this one and its entry in `DIALECTS`.
"""

from __future__ import annotations

from typing import Protocol

from tutelage.gateway.reply import ChatReply, Writer
from tutelage.gateway.request import ChatRequest
from tutelage.types import JSON, Message, Sampling


class Stored(Protocol):
    """What earlier replies of the attempt left."""

    def conversation(self, response_id: str) -> tuple[Message, ...] | None:
        """The messages up to and with that response, None when it is not known."""
        ...

    def item(self, item_id: str) -> JSON | None:
        """An output item."""
        ...


class Dialect(Protocol):
    """One API."""

    name: str
    """As records of calls have it."""
    path: str
    prefix: str
    """Of the ids of its replies."""

    def read(self, body: JSON, defaults: Sampling, stored: Stored) -> ChatRequest:
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
