"""What the gateway answers when it cannot serve a request: an OpenAI error object and its status.

SDKs repeat 408, 409, 429 and 5xx by themselves, so the status decides what an agent does next: what
would fail again is another 4xx. `ApiError` never leaves this package; `app.py` turns what the
layers below raise into one. `dialects/reading.py` raises most of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NO_RETRY: Mapping[str, str] = {"x-should-retry": "false"}
"""The header by which OpenAI's SDKs know that a repeat is pointless."""

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class ApiError(Exception):
    """A refusal on its way to the client. `param` names the field that is to blame."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @property
    def type(self) -> str:
        """OpenAI's word for the kind of error."""
        other = "server_error" if self.status >= 500 else "invalid_request_error"
        return _TYPES.get(self.status, other)

    def body(self) -> dict[str, Any]:
        """The error as OpenAI writes it."""
        return {"error": {k: getattr(self, k) for k in ("message", "type", "param", "code")}}


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400 that names the field."""
    return ApiError(400, message, param=param, code=code)
