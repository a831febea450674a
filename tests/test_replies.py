"""A reply's thought and its answer: what is cut, and what only mentions the marks."""

from __future__ import annotations

import pytest

from tutelage.replies import ThinkTags, split_thought

BRACKETS = ThinkTags(opening="[THINK]", closing="[/THINK]")
BEGUN = ThinkTags(begun=True)


@pytest.mark.parametrize(
    ("text", "answer", "marks"),
    [
        ("<think>\n6? No.\n</think>\n\n5", "5", None),
        (" \n<think>6?</think>5", "5", None),
        ("<think>a</think>\n<think>b</think>\n5", "5", None),
        ("<think></think>" * 20_000 + "5", "5", None),
        ("<think>\nThe answer is 5.", "", None),
        ("<think>a</think>\n<think>5", "", None),
        ("", "", None),
        ("6? No.\n</think>\n\n5", "5", None),
        ("6? No.</think>5", "5", None),
        ("Say <think>6</think> first. 5", "Say <think>6</think> first. 5", None),
        ("t.split('</think>')[-1]", "t.split('</think>')[-1]", None),
        ("The tag </think> ends it.", "The tag </think> ends it.", None),
        ("[THINK]6?[/THINK]\n5", "[THINK]6?[/THINK]\n5", None),
        ("[THINK]6?[/THINK]\n5", "5", BRACKETS),
        ("<think>6?</think>5", "<think>6?</think>5", BRACKETS),
        ("6?\n</think>\n\n5", "6?\n</think>\n\n5", ThinkTags()),
        ("6?\n</think>\n\n5", "5", BEGUN),
        ("<think>6?</think>5", "5", BEGUN),
        ("The answer is 5.", "", BEGUN),
    ],
)
def test_the_answer_is_what_follows_the_thought(
    text: str, answer: str, marks: ThinkTags | None
) -> None:
    thought, rest = split_thought(text, marks)
    assert (rest, thought + rest) == (answer, text)
