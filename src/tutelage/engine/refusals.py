"""What an answer of another server means that is no reply: which error it is, and whether the same
request may succeed later.

As for the openai client, only 408, 409, 425, 429, any 5xx and a broken connection are worth asking
again. `reply_forms.py` finds the error in an answer, `remote.py` is the client that asks.
"""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from typing import Any, cast

from tutelage.bounded import HTTPResponse
from tutelage.engine.reply_forms import as_status, error_of, failure, parsed, too_long
from tutelage.errors import ContextOverflowError, EngineError, MalformedReplyError, RemoteError
from tutelage.types import JSON

_AGAIN = frozenset({408, 409, 425, 429})
"""Statuses below 500 after which the same request may succeed."""
_SHOWN = 200
"""Characters of an answer that an error shows."""


def judged(response: HTTPResponse, url: str) -> tuple[HTTPResponse, JSON]:
    """An answer with the completion that it is; an error in a good one is an answer of its own.

    Raises `RemoteError` for one without a body, `MalformedReplyError` for one with nonsense.
    """
    if response.status_code >= 400:
        return response, {}
    if response.status_code >= 300 or response.status_code == 204:
        moved = response.headers.get("location")
        where = "" if moved is None else f" but a redirect to {moved!r}, which is not followed"
        words = f"the server {url!r} answered {response.status_code} without a reply{where}"
        refused = RemoteError(words, 502)
        refused.final = True
        raise refused
    try:
        data = parsed(response.content)
    except ValueError as error:
        raise malformed(response, url, f"invalid JSON ({error})") from error
    if not isinstance(data, dict):
        raise malformed(response, url, f"{type(data).__name__} instead of an object")
    failed = failure(cast("JSON", data))
    return response if failed is None else as_status(failed, response), cast("JSON", data)


def malformed(response: HTTPResponse, url: str, what: str) -> MalformedReplyError:
    """The error for a good answer that is no completion, with its first words."""
    began = response.text[:_SHOWN]
    status = response.status_code
    return MalformedReplyError(f"the server {url!r} answered {status} with {what}: {began!r}")


def refusal(response: HTTPResponse, url: str) -> EngineError:
    """What the server's error means here."""
    try:
        told = error_of(parsed(response.content)["error"])
    except (ValueError, KeyError, TypeError):
        told: JSON = {
            "message": response.text[:500]
        }  # not OpenAI's form: the text says what it can
    message = told["message"]
    if too_long(told):
        return ContextOverflowError(f"the server {url!r} refused the prompt as too long: {message}")
    status = response.status_code
    refused = RemoteError(f"the server {url!r} answered {status}: {message}", status)
    refused.retry_after = retry_after(response)
    refused.param, refused.code = _word(told.get("param")), _word(told.get("code"))
    return refused


def _word(value: Any) -> str | None:
    """What is a text, and no number, that a status has said already."""
    return value if isinstance(value, str) and value and not value.isdecimal() else None


def never_again(response: HTTPResponse) -> bool:
    """Whether the server says itself that asking again is pointless."""
    return response.headers.get("x-should-retry") == "false"


def worth_asking_again(response: HTTPResponse) -> bool:
    """Whether the same request may succeed later."""
    told: Any = response.headers.get("x-should-retry")
    if told in ("true", "false"):
        return told == "true"
    return response.status_code in _AGAIN or response.status_code >= 500


def retry_after(response: HTTPResponse) -> float | None:
    """Seconds that the server asks to wait, None where it says nothing that can be read."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        said = response.headers.get(name, "")
        try:
            return max(float(said) * unit, 0.0)
        except ValueError:
            pass
        try:
            return max(parsedate_to_datetime(said).timestamp() - time.time(), 0.0)
        except (OverflowError, TypeError, ValueError):
            pass
    return None
