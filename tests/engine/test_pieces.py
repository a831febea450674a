"""Texts that come in pieces are kept as pieces, and are whole for whoever looks."""

from __future__ import annotations

import pytest

from tutelage.engine.pieces import Pieces, collect, joined, merge
from tutelage.engine.streamed import Completion


def test_a_text_is_a_list_of_its_pieces_until_it_is_whole() -> None:
    whole: dict[str, object] = {}
    for piece in ("", "a", "", "b", "c"):
        collect(whole, "text", piece)
    assert isinstance(whole["text"], Pieces)
    assert joined({"in": [whole]}) == {"in": [{"text": "abc"}]}


def test_what_is_added_twice_is_as_with_whole_texts() -> None:
    deltas = [
        {"content": None, "reasoning": "R", "id": "x"},
        {"content": "", "reasoning": "S", "extra": {"note": "n", "list": [1]}, "id": "x"},
        {"content": "It ", "extra": {"note": "m", "list": [2]}},
        {"content": "is.", "refusal": None},
    ]
    one: dict[str, object] = {}
    other: dict[str, object] = {}
    for delta in deltas:
        merge(one, delta)
        merge(other, delta, collect)
    assert one == joined(other)
    assert one["content"] == "It is."
    assert one["extra"] == {"note": "nm", "list": [1, 2]}


def test_a_look_in_between_changes_nothing() -> None:
    found = Completion()
    for piece in "It is.":
        found.add({"choices": [{"delta": {"content": piece}}]})
        assert found.whole["choices"][0]["message"] == found.message
    assert found.message["content"] == "It is."


def test_a_text_after_what_is_none_is_no_reply() -> None:
    found = Completion()
    found.add({"choices": [{"delta": {"reasoning": {"text": "a"}}}]})
    with pytest.raises(TypeError):
        found.add({"choices": [{"delta": {"reasoning": "b"}}]})
