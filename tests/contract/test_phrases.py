"""The list of phrases is long enough, and what reads it finds them where they stand."""

from __future__ import annotations

from pathlib import Path

import pytest
from phrases import LEAST, found_in, hits, phrases

OF_THE_RULE = ("who waits", "that is none", "so many", "ours stays")


def test_the_list_has_enough_phrases_each_with_a_better_one() -> None:
    known = phrases()
    assert len(known) >= LEAST
    assert {*OF_THE_RULE} <= {*known}
    assert all(phrase == phrase.lower().strip() and instead for phrase, instead in known.items())


@pytest.mark.parametrize("phrase", sorted(phrases()))
def test_a_phrase_is_found_in_any_case_and_over_lines(phrase: str) -> None:
    broken = f"First line.\nThen {phrase.upper()}".replace(" ", "\n    ")
    assert phrase in {found.lower() for _, found in found_in(broken)}


def test_what_is_code_is_left_alone() -> None:
    odd = "```text\na\n```\nwhom `b`\n\n` whom\n\nwhom `"
    assert [line for line, _ in found_in(odd)] == [3, 5, 7]
    assert [*found_in("`so many`\n```python\nwhom = 1\n```\nso manyfold, whom")] == [(4, "whom")]


def test_docstrings_messages_and_pages_are_read(tmp_path: Path) -> None:
    room = tmp_path / "src" / "tutelage"
    room.mkdir(parents=True)
    tmp_path.joinpath("docs").mkdir()
    text = (
        '"""A door."""\n\n\ndef f(n: int) -> None:\n    raise ValueError(f"so many {n} of whom")\n'
    )
    room.joinpath("a.py").write_text(text)
    tmp_path.joinpath("README.md").write_text("x\n\nThe run is under\nway.\n")
    tmp_path.joinpath("docs", "b.md").write_text("nothing\n")
    assert [(str(path), line, phrase) for path, line, phrase in hits(tmp_path)] == [
        ("src/tutelage/a.py", 5, "so many"),
        ("src/tutelage/a.py", 5, "whom"),
        ("src/tutelage/a.py", 1, "door"),
        ("README.md", 3, "under way"),
    ]
