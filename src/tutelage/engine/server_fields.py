"""Which fields of a request another server takes, as its refusals show.

Servers that are called OpenAI-compatible differ in a few names. They are not asked beforehand: a
request is sent in the words that were taken last, and one that is refused for a field by its name
is sent again without it. `remote.py` is the client that sends.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from tutelage.errors import RemoteError
from tutelage.types import JSON

_FOR_TOKEN_IDS = {"return_token_ids", "logprobs"}


@dataclass(slots=True)
class ServerFields:
    """Which fields a server takes; its clients share one."""

    seed: bool = True
    token_ids: bool = True
    """Whether it knows `return_token_ids`, and gives log-probabilities beside them."""
    completion_tokens: bool = False
    """Whether `max_tokens` is called `max_completion_tokens`, as reasoning models have it."""

    def spoken(self, body: JSON) -> JSON:
        """Return a request in these words."""
        unknown = {*(() if self.seed else ("seed",)), *(() if self.token_ids else _FOR_TOKEN_IDS)}
        renamed = {"max_tokens": "max_completion_tokens"} if self.completion_tokens else {}
        return {renamed.get(k, k): v for k, v in body.items() if k not in unknown}

    def after(self, refusal: RemoteError, sent: JSON) -> ServerFields | None:
        """Return the words to try after a refusal of what was sent; None if it names no field."""
        message = str(refusal)
        if refusal.status not in (400, 422):  # what servers answer to a field they do not know
            return None
        if "max_tokens" in sent and "max_completion_tokens" in message:
            return replace(self, completion_tokens=True)
        if "return_token_ids" in sent and any(name in message for name in _FOR_TOKEN_IDS):
            return replace(self, token_ids=False)
        if "seed" in sent and "seed" in message.lower():
            return replace(self, seed=False)
        return None

    def learn(self, words: ServerFields) -> None:
        """Take over the words that a server took, for all its clients."""
        for field in fields(words):
            setattr(self, field.name, getattr(words, field.name))
