"""Text that goes out while it is sampled: always a beginning of what the reply says in the end."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tutelage.engine.scripted import ScriptedClient
from tutelage.gateway.text import TextStream, truncate_at_stop


class Stripping(type(ScriptedClient.codec)):
    """Bytes of a policy, whose codec strips what a turn says."""

    strips = True


BYTES, AS_SAID = Stripping(), ScriptedClient.codec
PIECES = st.lists(
    st.sampled_from(
        ["<tool_call>", "</tool_call>", "<tool", "<", ">", "a", " ", "\n", "é", "🙂", "STOP", "ST",
         "tool_call>", '{"name": "f", "arguments": {}}', "<tool_call>\n{}\n</tool_call>", "\ufffd"]
    ),
    max_size=12,
)  # fmt: skip
CUTS = st.lists(st.integers(0, 400), max_size=12)


def parts(ids: list[int], cuts: list[int]) -> list[list[int]]:
    """The ids in pieces."""
    edges = sorted({0, len(ids), *(c for c in cuts if c < len(ids))})
    return [ids[a:b] for a, b in pairwise(edges)]


def hermes(text: str) -> str | None:
    """The content as the codec reads it."""
    from tutelage.policy import codec

    return vars(codec)["_parse_hermes"](text, lambda i: f"c{i}").message.content


@settings(max_examples=300, deadline=None)
@given(
    pieces=PIECES,
    cuts=CUTS,
    stop=st.sampled_from([(), ("STOP",), ("\n", "ST"), (" ",), (" a", "\n\n")]),
)
def test_what_was_sent_is_a_beginning_of_the_content(
    pieces: list[str], cuts: list[int], stop: tuple[str, ...]
) -> None:
    text = "".join(pieces)
    ends = [text.find(s) + len(s) for s in stop if s in text]
    text = text[: min(ends)] if ends else text  # an engine stops there
    stream = TextStream(BYTES, stop)
    ids = [*text.encode(), BYTES.end]
    sent = [stream.feed(part) for part in parts(ids, cuts)]
    content = truncate_at_stop(hermes(text), stop, raw_text=text)
    assert (content or "").startswith("".join(sent))
    assert "".join(sent) + stream.finish(content) == (content or "")


@settings(max_examples=200, deadline=None)
@given(pieces=PIECES, cuts=CUTS, stop=st.sampled_from([(), ("STOP",)]))
def test_a_script_is_streamed_with_its_white_space(
    pieces: list[str], cuts: list[int], stop: tuple[str, ...]
) -> None:
    """Its text is what its line says, which nobody strips."""
    text = "".join(p for p in pieces if "tool" not in p and p != "<")
    stream, whole = TextStream(AS_SAID, stop), truncate_at_stop(text, stop)
    sent = [stream.feed(part) for part in parts([*text.encode(), AS_SAID.end], cuts)]
    assert "".join(sent) + stream.finish(whole) == whole


def test_a_llama_reply_that_may_be_a_call_waits() -> None:
    class Llama(Stripping):
        call_format = "llama"

    stream = TextStream(Llama())
    assert stream.feed(b'{"name"') == ""
    assert stream.feed(b": 1}") == ""
    assert stream.finish('{"name": 1}') == '{"name": 1}'
    plain = TextStream(Llama())
    assert plain.feed(b"Well") == "Well"
