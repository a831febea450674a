"""What the gateway answers when it cannot serve a request: a status, and an error object as OpenAI
or Anthropic writes it.

SDKs repeat 408, 409, 429 and 5xx by themselves, so the status decides what an agent does next: what
would fail again is another 4xx. `ApiError` never leaves this package; `app.py` turns what the
layers below raise into one. `dialects/reading.py` raises most of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tutelage.errors import (
    ConstraintError,
    ContextOverflowError,
    DataError,
    EngineError,
    MalformedReplyError,
    OutOfMemoryError,
    RemoteError,
    TutelageError,
    UnreachableError,
)

NO_RETRY: Mapping[str, str] = {"x-should-retry": "false"}
"""The header by which OpenAI's SDKs know that a repeat is pointless."""

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ANTHROPICS_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
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

    def anthropics_body(self) -> dict[str, Any]:
        """The error as Anthropic writes it."""
        other = "api_error" if self.status >= 500 else "invalid_request_error"
        kind = _ANTHROPICS_TYPES.get(self.status, other)
        told: dict[str, Any] = {"type": kind, "message": self.message}
        if self.param == "thread":  # by these words its SDK sends the whole conversation instead
            told["details"] = {"error_code": "thread_unsupported_request"}
        return {"type": "error", "error": told}


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A 400 that names the field."""
    return ApiError(400, message, param=param, code=code)


def model_not_found(name: str, models: Sequence[str]) -> ApiError:
    """A 404 that says which models there are."""
    words = f"the model {name!r} does not exist; available models: {', '.join(models)}"
    return ApiError(404, words, param="model", code="model_not_found")


def error_response(error: BaseException, prompt_field: str | None = None) -> ApiError:
    """The answer to an exception from below; what nobody foresaw keeps its details to the log.

    `prompt_field` is the field that is to blame for a prompt that is too long.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextOverflowError):
        # LiteLLM and others know an overflow by OpenAI's words, or by Anthropic's.
        words = f"This model's maximum context length is exceeded, prompt is too long: {error}"
        if prompt_field is not None:
            words = f"`{prompt_field}`: {words}"
        return ApiError(400, words, param=prompt_field, code="context_length_exceeded")
    # Its server was asked again already: a client that did so too would multiply the waiting.
    if isinstance(error, RemoteError):
        headers = NO_RETRY if error.final else {}
        code = error.code or "upstream_error"
        return ApiError(error.status, str(error), param=error.param, code=code, headers=headers)
    if isinstance(error, UnreachableError | MalformedReplyError):
        return ApiError(502, str(error), code="upstream_error", headers=NO_RETRY)
    if isinstance(error, OutOfMemoryError):
        return ApiError(400, str(error), param=prompt_field, code="out_of_memory", headers=NO_RETRY)
    if isinstance(error, EngineError):
        return ApiError(500, str(error), code="engine_error")
    if isinstance(error, ConstraintError):
        return ApiError(400, str(error), param=error.field or None, headers=NO_RETRY)
    if isinstance(error, DataError) and prompt_field is not None:
        words = f"`{prompt_field}`: {error}"
        return ApiError(400, words, param=prompt_field, headers=NO_RETRY)
    if isinstance(error, TutelageError):
        return ApiError(400, str(error), headers=NO_RETRY)
    return ApiError(500, "internal gateway error; see its log for details", code="internal_error")
