"""What a dialect is: one API of model calls, read into the internal request and written from the
internal reply, and nothing else.

Admission, repeats, sampling, what a stream may say when, and errors are the gateway's and the same
for all. A further dialect is one file beside this one and its entry in `DIALECTS`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, runtime_checkable

from tutelage.gateway.dialects.reading import RequestObject
from tutelage.gateway.dialects.stored import StoredResponses
from tutelage.gateway.reply import ChatReply, Writer
from tutelage.gateway.request import ChatRequest
from tutelage.types import JSON, Sampling


class SessionView(Protocol):
    """What the further paths of a dialect may ask of the attempt whose key was sent."""

    sampling: Sampling
    responses: StoredResponses

    def models(self) -> list[str]:
        """Names that requests may use; the first is the main one."""
        ...

    async def count(self, name: object, read: Callable[[], ChatRequest]) -> int:
        """Tokens of the prompt of a request to the model of that name, which is read when they can
        be counted. Raises `ApiError` where nobody here can count them."""
        ...


Path = Callable[[Mapping[str, str], JSON, SessionView], JSON | Awaitable[JSON]]
"""Answers a further path: from its parameters, the body (of a request without one the query) and
the attempt."""


class Dialect(Protocol):
    """One API."""

    name: str
    """As records of calls have it."""
    path: str
    prefix: str
    """Of the ids of its replies."""
    prompt_field: str
    """The field of its requests with what the model is asked."""
    paths: Mapping[str, Mapping[str, Path]]
    """Its further paths, by method."""

    @property
    def request(self) -> type[RequestObject]:
        """What its requests may have, for the table of `docs/gateway.md`."""
        ...

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


@runtime_checkable
class Passing(Protocol):
    """A dialect whose requests may go on to another server, which is asked by chat completions.
    Those of other dialects are written for it from what was read of them."""

    def read_passed(self, body: JSON, defaults: Sampling, stored: StoredResponses) -> ChatRequest:
        """The request, as `Dialect.read` gives it, with `passed`: the body of a chat completion
        that asks for the same. What another server may honour is not refused. Raises `ApiError`,
        for what chat completions have no words for too.
        """
        ...
