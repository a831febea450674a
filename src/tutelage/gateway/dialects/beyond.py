"""Reading a request that is passed on, where it asks for more than can be honoured here: a
temperature above ours, no tokens at all, more stop strings. The server that gets it decides.
"""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError

from tutelage.gateway.dialects.reading import PASSING, SamplingReader, read
from tutelage.gateway.errors import ApiError
from tutelage.types import JSON

T = TypeVar("T", bound=SamplingReader)
_BOUNDED = frozenset({
    "max_completion_tokens", "max_output_tokens", "max_tokens", "min_tokens", "seed", "stop",
    "stop_sequences", "temperature", "top_k", "top_logprobs", "top_p",
})  # fmt: skip
"""Fields whose bounds are ours; those of messages and tools protect the gateway itself."""
_BOUNDS = frozenset({
    "greater_than", "greater_than_equal", "less_than", "less_than_equal", "string_too_short",
    "too_long",
})  # fmt: skip
"""Errors of a value that is of the right kind."""


def read_beyond(model: type[T], body: JSON) -> T:
    """The request, without fields whose values are beyond ours: those go on as they came.

    Raises `ApiError` for whatever else does not fit.
    """
    try:
        return read(model, body, passing=True)
    except ApiError:
        beyond = _beyond(model, body)
        if not beyond:
            raise
    rest = {name: value for name, value in body.items() if name not in beyond}
    return read(model, rest, passing=True)


def _beyond(model: type[T], body: JSON) -> set[str]:
    """The fields of a body that are beyond ours and nothing worse."""
    try:
        model.model_validate(body, context=PASSING)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
    else:
        return set()
    kinds: dict[str, set[str]] = {}
    for each in found:
        kinds.setdefault(str(each["loc"][0]) if each["loc"] else "", set()).add(each["type"])
    return {name for name, types in kinds.items() if name in _BOUNDED and types <= _BOUNDS}
