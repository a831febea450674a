"""A dialect: one model API, parsed into the internal request and written from the internal reply.

Admission, retries, sampling, the timing of streamed text, and errors are handled by the gateway in
the same way for all dialects. A new dialect needs one file here and an entry in `DIALECTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tutelage.gateway.completions import AnswerCache, PendingCompletion
from tutelage.gateway.dialects.reading import RequestReader
from tutelage.gateway.reply import Writer
from tutelage.gateway.request import ChatRequest
from tutelage.types import JSON, Sampling

if TYPE_CHECKING:
    from tutelage.gateway.session import AttemptSession

Path = Callable[[Mapping[str, str], JSON, "AttemptSession"], JSON]
"""Handles an extra path, given its parameters, the body (or the query of a request without one) and
the attempt."""
_NO_PATHS: Callable[[], Mapping[str, Mapping[str, Path]]] = dict


@dataclass(frozen=True, slots=True)
class Dialect:
    """Functions that parse the requests of one model API and write its replies."""

    name: str
    """The name used in records of calls."""
    path: str
    prefix: str
    """The prefix of reply ids."""
    prompt_field: str
    """The request field that has the prompt."""
    request: type[RequestReader]
    """The pydantic model of the API's requests."""
    read: Callable[[JSON, Sampling, AnswerCache], ChatRequest]
    """Parses a request, given the values of omitted sampling fields and the attempt's answers that
    the request may continue. Raises `ApiError`.

    Fields that would change the reply are honoured or rejected by name: an agent that relies on an
    ignored penalty would be trained on a different distribution than it assumes.
    """
    write_reply: Callable[[PendingCompletion], JSON]
    """Returns the JSON reply to a non-streaming request."""
    writer: type[Writer]
    """Writes a streamed reply."""
    paths: Mapping[str, Mapping[str, Path]] = field(default_factory=_NO_PATHS)
    """Handlers of extra paths, by path and method."""
