"""`/v1/models`: what is served, as OpenAI's API lists it, or as Anthropic's does.

Both have the path, so the request's headers say which of the two is answered; `app.py` asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from tutelage.gateway.dialects.dialect import SessionView
from tutelage.gateway.dialects.paging import first_and_last, page
from tutelage.gateway.dialects.reading import MessageObject, read
from tutelage.gateway.errors import model_not_found
from tutelage.types import JSON


class _Page(MessageObject):
    limit: Annotated[int, Field(ge=1, le=1000)] = 20
    after_id: str | None = None
    before_id: str | None = None


def openai_list(path: Mapping[str, str], query: JSON, attempt: SessionView) -> JSON:
    """All models, as OpenAI lists them."""
    return {"object": "list", "data": [_openai(name) for name in attempt.models()]}


def openai_model(path: Mapping[str, str], query: JSON, attempt: SessionView) -> JSON:
    """One model. Raises `ApiError` 404."""
    return _openai(_name(path, attempt))


def anthropic_list(path: Mapping[str, str], query: JSON, attempt: SessionView) -> JSON:
    """A page of the models, as Anthropic lists them. Raises `ApiError` 400."""
    asked = read(_Page, query)
    models = [_anthropic(name) for name in attempt.models()]
    found, more = page(models, asked.limit, after_id=asked.after_id, before_id=asked.before_id)
    return {"data": found, "has_more": more, **first_and_last(found)}


def anthropic_model(path: Mapping[str, str], query: JSON, attempt: SessionView) -> JSON:
    """One model. Raises `ApiError` 404."""
    return _anthropic(_name(path, attempt))


def _name(path: Mapping[str, str], attempt: SessionView) -> str:
    wanted = path["model"]
    if wanted not in attempt.models():
        raise model_not_found(wanted, attempt.models())
    return wanted


def _openai(name: str) -> JSON:
    return {"id": name, "object": "model", "created": 0, "owned_by": "tutelage"}


def _anthropic(name: str) -> JSON:
    """When a model was released is not known here; the API has the epoch for that."""
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
        "lifecycle": "active",
    }
