"""The interface of a dialect: one model API, parsed into the internal request and written from the
internal reply.

Admission, retries, sampling, the timing of streamed text, and errors are handled by the gateway in
the same way for all dialects. A new dialect needs one file here and an entry in `DIALECTS`.
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
"""Handles an extra path, given its parameters, the body (or the query of a request without one) and
the attempt."""


class Dialect(Protocol):
    """Translate one model API: parse its requests and write its replies."""

    name: str
    """The name used in records of calls."""
    path: str
    prefix: str
    """The prefix of reply ids."""
    prompt_field: str
    """The request field that has the prompt."""
    paths: Mapping[str, Mapping[str, Path]]
    """Handlers of extra paths, by path and method."""

    @property
    def request(self) -> type[RequestReader]:
        """Return the pydantic model of the API's requests."""
        ...

    def read(self, body: JSON, defaults: Sampling, kept: KeptAnswers) -> ChatRequest:
        """Parse a request of the API. Raises `ApiError`.

        `defaults` has the values of omitted sampling fields, and `kept` the attempt's answers that
        the request may continue. Fields that would change the reply are honoured or rejected by
        name: an agent that relies on an ignored penalty would be trained on a different
        distribution than it assumes.
        """
        ...

    def write_reply(self, reply: PendingCompletion) -> JSON:
        """Return the JSON reply to a non-streaming request."""
        ...

    def writer(self, reply: PendingCompletion) -> Writer:
        """Return the stream writer of a reply that has just started."""
        ...
