"""What a dialect is: one API of model calls, read into the internal request and written from the
internal reply, and nothing else.

Admission, repeats, sampling, what a stream may say when, and errors are the gateway's and the same
for all. A further dialect is one file beside this one and its entry in `DIALECTS`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from tutelage.gateway.completions import KeptAnswers, PendingCompletion
from tutelage.gateway.dialects.reading import RequestReader
from tutelage.gateway.reply import Writer
from tutelage.gateway.request import ChatRequest
from tutelage.types import JSON, Sampling

if TYPE_CHECKING:
    from tutelage.gateway.session import AttemptSession

Path = Callable[[Mapping[str, str], JSON, "AttemptSession"], JSON | Awaitable[JSON]]
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
    def request(self) -> type[RequestReader]:
        """What its requests may have."""
        ...

    def read(self, body: JSON, defaults: Sampling, kept: KeptAnswers) -> ChatRequest:
        """Return the request; `defaults` says what holds where it is silent, and what it continues
        is among the `kept` answers of its attempt. Raises `ApiError`.

        What would change the reply is honoured or refused by its name: an agent that believes it
        samples at a penalty which nobody applies would be trained on something else than it runs.
        """
        ...

    def written(self, reply: PendingCompletion) -> JSON:
        """Return the answer to a request that is not streamed."""
        ...

    def writer(self, reply: PendingCompletion) -> Writer:
        """Return the stream of a reply that has just begun."""
        ...
