"""The table of fields in `docs/gateway.md` is what the code does."""

from __future__ import annotations

import re

import pytest
from gateway_fields import DIALECTS, LIMITS, PAGE, page
from tests.in_one_item import in_one_item

from tutelage.gateway.dialects import StoredResponses
from tutelage.gateway.errors import ApiError
from tutelage.types import Sampling


def test_the_table_is_that_of_the_code() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "run: python tests/docs/gateway_fields.py"
    assert all(f"POST {dialect.path}" in text for dialect in DIALECTS)


@in_one_item(("dialect", "field"), LIMITS)
def test_what_is_honoured_in_part_is_otherwise_refused(dialect: str, field: str) -> None:
    (found,) = (d for d in DIALECTS if d.name == dialect)
    asked = [{"role": "user", "content": "hi"}]
    prompt = {found.prompt_field: asked if found.prompt_field == "messages" else "hi"}
    body = {"model": "m", **prompt, **LIMITS[dialect, field][1]}
    with pytest.raises(ApiError, match=re.escape(f"`{field}")):
        found.read(body, Sampling(), StoredResponses())
