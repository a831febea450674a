"""Formats and line wrapping."""

import io

from hypothesis import given
from hypothesis import strategies as st

from tutelage.cli.console import PlainConsole, echo_pairs, escape, shorten


@given(st.text(st.characters()))
def test_what_is_shown_can_be_written_and_moves_no_cursor(text: str) -> None:
    shown = escape(text)
    shown.encode("utf-8")
    assert not any(c < " " and c not in "\n\t" for c in shown)
    assert "\x7f" not in shown
    assert escape(shown) == shown


@given(st.text(st.characters()), st.integers(2, 40))
def test_one_line_is_one_line_of_that_width(text: str, width: int) -> None:
    shown = shorten(text, width)
    assert len(shown) <= width
    assert "\n" not in shown


def console(*, terminal: bool, width: int = 40) -> PlainConsole:
    return PlainConsole(file=io.StringIO(), force_terminal=terminal, width=width, no_color=True)


def written(to: PlainConsole) -> str:
    assert isinstance(to.file, io.StringIO)
    return to.file.getvalue()


def test_facts_hang_on_a_terminal_and_stay_whole_in_a_pipe() -> None:
    pairs = [("device", "cpu, because torch sees no GPU on this machine"), ("run", "r/" + "x" * 50)]
    narrow, pipe = console(terminal=True), console(terminal=False)
    for to in (narrow, pipe):
        echo_pairs(to, pairs)
    lines = written(pipe).splitlines()
    assert lines == [
        "device  cpu, because torch sees no GPU on this machine",
        "run     r/" + "x" * 50,
    ]
    assert "\n        on this machine\n" in written(narrow)
    assert "r/" + "x" * 50 in written(narrow), "a path must stay in one piece"


def test_markup_in_a_value_is_text() -> None:
    to = console(terminal=False)
    echo_pairs(to, [("tools", "[bold]x[/bold] [/nope] :smile:")])
    assert written(to) == "tools  [bold]x[/bold] [/nope] :smile:\n"
