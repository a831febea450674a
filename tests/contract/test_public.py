"""The public names and their signatures are those that were promised."""

from __future__ import annotations

from public import PINNED, surface


def test_the_public_surface_is_the_pinned_one() -> None:
    assert surface() == PINNED.read_text(encoding="utf-8"), (
        "what `from tutelage import ...` gives has changed: if that is meant, write "
        "tests/contract/public.txt again with `python tests/contract/public.py`, and name it in "
        "CHANGELOG.md"
    )
