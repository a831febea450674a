"""The page of commands is what the program has, and every owner that it names is there."""

from __future__ import annotations

from commands_page import PAGE, written


def test_the_page_has_every_command_flag_and_key() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == written(text), (
        "flags or keys have changed: python tests/docs/commands_page.py writes the page again"
    )
