"""Every field of every dialect, from the code's own tables: what is accepted and not used changes
nothing that is asked of a model, and what is
refused is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.in_one_item import in_one_item

from tutelage.gateway.completions import AnswerCache
from tutelage.gateway.dialects import DIALECTS, Dialect
from tutelage.gateway.errors import ApiError
from tutelage.gateway.request import ChatRequest
from tutelage.types import Sampling

from .conftest import ASK

BODIES: dict[str, dict[str, Any]] = {
    "chat.completions": {"model": "m", "messages": ASK},
    "responses": {"model": "m", "input": "hi"},
    "messages": {"model": "m", "messages": ASK, "max_tokens": 9},
    "completions": {"model": "m", "prompt": "hi"},
}
VALUES = ("words", 7, 0.5, True, ["a"], {"a": "b"}, None)
UNUSED = ("user", "metadata", "service_tier", "client_metadata", "betas", "what_nobody_knows")
REFUSED = [(d, name) for d in DIALECTS for name in sorted(d.request.refused)]
NONE_OF_OURS = {"a": ["value", "that", "no", "table", "has"]}


def asked(dialect: Dialect, **more: Any) -> ChatRequest:
    """What a request asks of a model; what an answer repeats of it is no part of that."""
    body = BODIES[dialect.name] | more
    request = dialect.read(body, Sampling(), AnswerCache())
    return replace(request, echo={})


def named(case: Any) -> str:
    return case if isinstance(case, str) else case.name


def test_every_dialect_is_asked() -> None:
    assert {d.name for d in DIALECTS} == set(BODIES)


@pytest.mark.parametrize("dialect", DIALECTS, ids=named)
@in_one_item("name", UNUSED)
def test_what_is_accepted_without_effect_asks_for_the_same(dialect: Dialect, name: str) -> None:
    for value in VALUES:
        assert asked(dialect, **{name: value}) == asked(dialect)
        unused = dialect.request.unused_fields(BODIES[dialect.name] | {name: value})
        assert unused == ({} if value is None else {name: value}), "for the record"


@in_one_item(("dialect", "name"), REFUSED)
def test_values_that_ask_for_nothing_ask_for_the_same(dialect: Dialect, name: str) -> None:
    for value in (*dialect.request.refused[name], None):
        assert asked(dialect, **{name: value}) == asked(dialect)


@in_one_item(("dialect", "name"), REFUSED)
def test_other_values_are_refused_by_name(dialect: Dialect, name: str) -> None:
    with pytest.raises(ApiError, match=name) as caught:
        asked(dialect, **{name: NONE_OF_OURS})
    assert caught.value.status == 400
    assert caught.value.param == name


@pytest.mark.parametrize("dialect", DIALECTS, ids=named)
def test_each_field_that_is_honoured_is_read_or_refused_by_name(dialect: Dialect) -> None:
    """No field is honoured in words alone: nonsense in it is noticed."""
    fields: dict[str, Any] = dict(dialect.request.model_fields)
    for name in sorted(field.alias or name for name, field in fields.items()):
        with pytest.raises(ApiError, match=name) as caught:
            asked(dialect, **{name: [[[7]]]})
        assert caught.value.status == 400
