"""Incremental decoding of a sampled reply, and the parts of its text that clients see.

Tokens are decoded in windows, and text is sent only if no later token can change it: not a possible
start of a tool call or a stop string, not a partial character, and not white space at the ends,
which the codec strips. Streamed text is therefore always a prefix of the finished reply.
`completions.py` collects the tokens, the dialects send the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tutelage.engine.logprobs import TokenLogprob
from tutelage.replies import leading_spaces, overlap_length
from tutelage.types import JSON

if TYPE_CHECKING:
    from tutelage.engine.scripted import ByteCodec
    from tutelage.policy.codec import Codec

    TextDecoder = Codec | ByteCodec

_CALL = "<tool_call>"
_WINDOW = 16


def token_entry(decoder: TextDecoder, token: int, logprob: TokenLogprob) -> JSON:
    """Return the log-probability entry of a token with its most probable alternatives."""
    value, top = logprob
    others = [_format_logprob(decoder, *other) for other in top]
    return {**_format_logprob(decoder, token, value), "top_logprobs": others}


def _format_logprob(decoder: TextDecoder, token: int, logprob: float | None) -> JSON:
    """Return a log-probability entry of one token; `bytes` is None for a partial character."""
    text = decoder.decode([token])
    exact = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": logprob, "bytes": exact}


def find_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Find the first stop string in a text. Return its position and the string, or None."""
    return min(((at, stop) for stop in stops if (at := text.find(stop)) >= 0), default=None)


def truncate_at_stop(
    content: str | None, stops: Sequence[str], *, exact: bool = False, raw_text: str = ""
) -> str | None:
    """Truncate content at its first stop string, as in OpenAI's API.

    Unless `exact`, also strip white space before the stop string. `raw_text` is the text before the
    codec stripped it: a stop string that starts in its leading white space leaves no content.
    """
    if content is None or not stops:
        return content
    early = find_stop(raw_text, stops)
    if early is not None and early[0] < leading_spaces(raw_text):
        return ""
    match = find_stop(content, stops)
    if match is None:
        return content
    return content[: match[0]] if exact else content[: match[0]].rstrip()


class TextStream:
    """Incremental decoder of the text of one choice.

    With `exact` the text has no tool calls and keeps its white space.
    """

    def __init__(
        self, decoder: TextDecoder, stops: Sequence[str] = (), *, exact: bool = False
    ) -> None:
        self.sent = ""
        self._decoder, self._exact = decoder, exact
        self._strips = decoder.strips and not exact
        self._llama = decoder.call_format == "llama" and not exact
        # In Llama's format a call is possible after a thought.
        call = "{" if self._llama and decoder.think_tags.known else _CALL
        self._marks = tuple(stops) if exact else (call, *stops)
        self._ids: list[int] = []
        self._start = 0
        """Index of the first token of the undecided window."""
        self._text = ""
        """Text of the tokens before the window."""
        self._closed = False

    def feed(self, ids: Sequence[int]) -> str:
        """Add new tokens and return the new text that is ready to send."""
        if self._closed:
            return ""
        self._ids += [i for i in ids if i not in self._decoder.eos_ids]
        undecided = self._decode_window()
        text = self._text + undecided
        # A stop string may start in stripped white space.
        end, begin = self._safe_length(text), leading_spaces(text) if self._strips else 0
        text, end = text[begin:], end - begin
        if not text.startswith(self.sent) or end <= len(self.sent):
            return ""
        new = text[len(self.sent) : end]
        self.sent += new
        return new

    def finish(self, content: str | None) -> str:
        """Return the unsent part of the finished content."""
        text = content or ""
        return text[len(self.sent) :] if text.startswith(self.sent) else ""

    def _decode_window(self) -> str:
        """Return the text of the latest tokens.

        The text of older tokens moves to `_text`, so that they are not decoded again.
        """
        while len(self._ids) - self._start > 2 * _WINDOW:
            # The text of a token may depend on its left neighbour only.
            middle = self._start + _WINDOW
            head = self._decoder.decode(self._ids[self._start : middle])
            both = self._decoder.decode(self._ids[self._start : middle + _WINDOW])
            if head.endswith("\ufffd") or not both.startswith(head):
                return self._decoder.decode(self._ids[self._start :])
            self._text += head
            self._start = middle
        return self._decoder.decode(self._ids[self._start :])

    def _safe_length(self, text: str) -> int:
        if self._llama and (text.lstrip().startswith(("{", "<")) or not text):
            return 0
        positions = [at for mark in self._marks if (at := text.find(mark)) >= 0]
        if positions:
            self._closed = True
            end = min(positions)
        else:
            end = len(text) - max((overlap_length(text, mark) for mark in self._marks), default=0)
        # A later stop string would also strip the white space before it.
        safe = text[:end]
        while safe and (safe[-1] == "\ufffd" or (safe[-1].isspace() and not self._exact)):
            safe = safe[:-1]
        return len(safe)
