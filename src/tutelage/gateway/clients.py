"""Whose client a request is from, as far as that matters beside its body: where the key stands, by
which header an answer is named, how errors read, and what a base URL is like.

OpenAI's clients are the rule. A dialect whose clients differ says how (`OwnClients` in
`dialects/dialect.py`), and nothing here knows any of them. `app.py` looks once a request.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from starlette.types import Scope

from tutelage.gateway.http import request_headers

_LONGEST_ID = 200
_PROCESS = os.urandom(6).hex().encode()
_count = itertools.count()


@dataclass(frozen=True, slots=True)
class Clients:
    """What the clients of an API have in common."""

    key_variable: str
    """The environment variable of their key."""
    base_variable: str
    """That of their base URL."""
    adds_v1: bool = False
    """Whether they add /v1 to it."""
    key_header: bytes | None = None
    """Their header of a key, where it is not `authorization`; that is read anyway."""
    id_header: bytes | None = None
    """Their header of a request's id, beside `x-request-id`."""

    @property
    def base_url(self) -> str:
        """What their base URL is like."""
        return f"{self.base_variable} must {'not ' if self.adds_v1 else ''}end in /v1"


OPENAI = Clients("OPENAI_API_KEY", "OPENAI_BASE_URL")


class SentKey(NamedTuple):
    """The key of a request, empty where it has none, and how its client sends one."""

    key: bytes
    form: str = "Authorization: Bearer KEY"
    variable: str = OPENAI.key_variable
    """The environment variable that such a client has its key from."""


def sent_key(scope: Scope, clients: Clients, known: Sequence[Clients]) -> SentKey:
    """How a request says its key: as a bearer, or by a header that any of the `known` clients has;
    these may send a bearer's key, too."""
    sent = request_headers(scope)
    scheme, _, bearer = sent.get(b"authorization", b"").partition(b" ")
    key = bearer.strip() if scheme.lower() == b"bearer" else b""
    for each in known:
        if each.key_header is None:
            continue
        own = sent.get(each.key_header)
        if own is not None or each is clients:
            if key:
                return SentKey(key, variable=each.key_variable)
            return SentKey(
                (own or b"").strip(), f"{each.key_header.decode()}: KEY", each.key_variable
            )
    return SentKey(key, variable=clients.key_variable)


def request_ids(scope: Scope, clients: Clients) -> list[tuple[bytes, bytes]]:
    """Headers by which clients name a request: its own name for it, or a new one."""
    named = request_headers(scope).get(b"x-request-id")
    if named is None or len(named) > _LONGEST_ID:
        named = b"req_%b%012x" % (_PROCESS, next(_count))
    ids = [(b"x-request-id", named)]
    if clients.id_header is not None:
        ids.append((clients.id_header, named))
    return ids
