"""Track which request fields a server accepts, based on its error responses.

Servers that are called OpenAI-compatible differ in a few names. They are not probed in advance: a
request is sent with the fields that were accepted last, and one that is rejected for a field by its
name is sent again without it. `remote.py` is the client that sends.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from tutelage.errors import RemoteError
from tutelage.types import JSON

_FOR_TOKEN_IDS = {"return_token_ids", "logprobs"}


@dataclass(slots=True)
class ServerFields:
    """Request fields that a server accepts. The clients of a server share one object."""

    seed: bool = True
    token_ids: bool = True
    """Accepts `return_token_ids`, and reports log-probabilities with them."""
    completion_tokens: bool = False
    """`max_tokens` is called `max_completion_tokens`, as for reasoning models."""

    def translate(self, body: JSON) -> JSON:
        """Return a request with only the fields that the server accepts, renamed if necessary."""
        unknown = {*(() if self.seed else ("seed",)), *(() if self.token_ids else _FOR_TOKEN_IDS)}
        renamed = {"max_tokens": "max_completion_tokens"} if self.completion_tokens else {}
        return {renamed.get(k, k): v for k, v in body.items() if k not in unknown}

    def adapt(self, error: RemoteError, body: JSON) -> ServerFields | None:
        """Return the fields to retry with after an error, or None if the error names no field."""
        message = str(error)
        if error.status not in (400, 422):  # the statuses of servers for an unknown field
            return None
        if "max_tokens" in body and "max_completion_tokens" in message:
            return replace(self, completion_tokens=True)
        if "return_token_ids" in body and any(name in message for name in _FOR_TOKEN_IDS):
            return replace(self, token_ids=False)
        if "seed" in body and "seed" in message.lower():
            return replace(self, seed=False)
        return None

    def adopt(self, other: ServerFields) -> None:
        """Copy the fields of an accepted request, for all clients of the server."""
        for field in fields(other):
            setattr(self, field.name, getattr(other, field.name))
