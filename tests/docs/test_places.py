"""The pages that say which file to open name files that are there."""

from __future__ import annotations

import re

from pages import ROOT
from tests.in_one_item import in_one_item

SOURCE = ROOT / "src" / "tutelage"
PAGES = ("CONTRIBUTING.md", "docs/architecture.md")
PLACE = re.compile(r"`([\w./]+(?:\.(?:py|j2|txt|toml|md)|/))`")


def places(text: str) -> set[str]:
    """Files and folders that a page names, as it names them."""
    return set(PLACE.findall(text))


@in_one_item("page", PAGES)
def test_what_a_page_names_is_there(page: str) -> None:
    named = places((ROOT / page).read_text(encoding="utf-8"))
    assert len(named) > 20
    gone = [name for name in named if not any((at / name).exists() for at in (SOURCE, ROOT))]
    assert sorted(gone) == []


def test_a_file_that_is_gone_is_found() -> None:
    text = "`a/b.py` and `store/` and `c.md`, not `d`, `e.f()` or f.py"
    assert places(text) == {"a/b.py", "c.md", "store/"}
