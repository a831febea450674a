"""The page of commands is what the program has, and every owner that it names is there."""

from __future__ import annotations

import re

from commands_page import PAGE, tables, written
from pages import ROOT


def test_the_page_has_every_command_flag_and_key() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == written(text), (
        "flags or keys have changed: python tests/docs/commands_page.py writes the page again"
    )


def test_every_owner_is_a_module() -> None:
    owners = {w for text in tables().values() for w in re.findall(r"`([\w/]+\.py)`", text)}
    assert len(owners) > 20
    assert [o for o in sorted(owners) if not (ROOT / "src" / "tutelage" / o).is_file()] == []
