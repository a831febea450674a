"""Which fields of a request another server takes, as its refusals have told.

Servers that are called OpenAI-compatible differ in a few names. Nothing is asked beforehand: a
request is sent in the words that were taken last, and one that is refused for a field by its name
is sent again without it. `remote.py` is the client that sends.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from tutelage.errors import RemoteError
from tutelage.types import JSON

_UNFIT = (400, 422)
"""Statuses by which a server says that it does not know a field."""
_FOR_TOKEN_IDS = {"return_token_ids", "logprobs"}


@dataclass(slots=True)
class ServerFields:
    """Which fields a server takes, as its refusals have told; its clients share one."""

    seed: bool = True
    token_ids: bool = True
    """Whether it knows `return_token_ids`, and gives log-probabilities beside them."""
    completion_tokens: bool = False
    """Whether `max_tokens` is called `max_completion_tokens`, as reasoning models have it."""

    def spoken(self, body: JSON, asked: Set[str] = frozenset()) -> JSON:
        """A request in these words. `asked` names what a client wants itself: log-probabilities
        among it are not there for token ids alone."""
        unknown = set() if self.seed else {"seed"}
        if "return_token_ids" in body and not self.token_ids:
            unknown |= {"return_token_ids", *(_FOR_TOKEN_IDS - asked)}
        fields = {k: v for k, v in body.items() if k not in unknown} if unknown else body
        if not self.completion_tokens:
            return fields
        renamed = {"max_tokens": "max_completion_tokens"}
        return {renamed.get(k, k): v for k, v in fields.items()}

    def after(self, refusal: RemoteError, sent: JSON) -> ServerFields | None:
        """The words to try next, after a refusal of what was sent; None where it names no field."""
        message = str(refusal)
        if refusal.status not in _UNFIT:
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
        self.seed = words.seed
        self.token_ids = words.token_ids
        self.completion_tokens = words.completion_tokens
