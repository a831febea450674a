"""The table of fields in `docs/gateway.md` is what the code does."""

from __future__ import annotations

from gateway_fields import DIALECTS, PAGE, page


def test_the_table_is_that_of_the_code() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "run: python tests/docs/gateway_fields.py"
    assert all(f"POST {dialect.path}" in text for dialect in DIALECTS)
