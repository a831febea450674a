"""Error responses of the gateway: a status, and an error object in the format of OpenAI or
Anthropic.

SDKs retry 408, 409, 429 and 5xx on their own, so the status decides what an agent does next: errors
that would recur have another 4xx status. `ApiError` never leaves this package; `app.py` converts
exceptions of lower layers to it. `dialects/reading.py` raises most of them.
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
"""The header that tells OpenAI's SDKs not to retry."""

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
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
    """Error to return to the client, with its HTTP status. `param` names the invalid request
    field."""

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
        """Return the error type of OpenAI's API."""
        other = "server_error" if self.status >= 500 else "invalid_request_error"
        return _TYPES.get(self.status, other)

    def body(self) -> dict[str, Any]:
        """Return the response body in OpenAI's format."""
        return {"error": {k: getattr(self, k) for k in ("message", "type", "param", "code")}}

    def anthropic_body(self) -> dict[str, Any]:
        """Return the response body in Anthropic's format."""
        other = "api_error" if self.status >= 500 else "invalid_request_error"
        kind = _ANTHROPIC_TYPES.get(self.status, other)
        error: dict[str, Any] = {"type": kind, "message": self.message}
        if self.param == "thread":  # this code makes its SDK send the whole conversation
            error["details"] = {"error_code": "thread_unsupported_request"}
        return {"type": "error", "error": error}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return a 400 error that names the invalid request field."""
    return ApiError(400, message, param=param, code=code)


def attempt_closed() -> ApiError:
    """Return the 410 error for requests of an attempt that has ended."""
    return ApiError(410, "this attempt has ended", code="attempt_closed", headers=NO_RETRY)


def model_not_found(name: str, models: Sequence[str]) -> ApiError:
    """Return a 404 error that lists the available models."""
    message = f"the model {name!r} does not exist; available models: {', '.join(models)}"
    return ApiError(404, message, param="model", code="model_not_found")


def error_response(error: BaseException, prompt_field: str | None = None) -> ApiError:
    """Convert an exception to an error response. Details of unexpected errors are only logged.

    `prompt_field` is the field to name if the prompt is too long.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextOverflowError):
        # LiteLLM and others detect an overflow by OpenAI's or Anthropic's message.
        message = f"This model's maximum context length is exceeded, prompt is too long: {error}"
        if prompt_field is not None:
            message = f"`{prompt_field}`: {message}"
        return ApiError(400, message, param=prompt_field, code="context_length_exceeded")
    # The upstream call was already retried; retries by the client would multiply the wait.
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
        message = f"`{prompt_field}`: {error}"
        return ApiError(400, message, param=prompt_field, headers=NO_RETRY)
    if isinstance(error, TutelageError):
        return ApiError(400, str(error), headers=NO_RETRY)
    return ApiError(500, "internal gateway error; see its log for details", code="internal_error")
