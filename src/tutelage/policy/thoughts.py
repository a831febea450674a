"""Detect how a chat template changes earlier turns, especially their reasoning ("thoughts").

A turn merges into the training row of the one before it if its prompt begins with that prompt and
reply (`rollouts/rows.py`). Templates of reasoning models drop earlier thoughts and others trim
white space; then each turn becomes a row of its own. The behaviour is detected by rendering a
conversation of two turns, never by the name of a model. `codec.py` renders according to the choice
made here; `engine/chat.py` closes a thought that reaches its limit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Literal

from tutelage.errors import ModelError
from tutelage.policy.template_forms import template_forms
from tutelage.types import JSON, Message, ToolCall

_CLOSING = re.compile(r"[<\[◁]/[a-z:]*think[a-z]*[>\]▷]", re.IGNORECASE)
_THOUGHT, _ANSWER = "zq_thought", "zq_said"
_QUESTION: JSON = {"role": "user", "content": "x"}
_CALLS = template_forms([Message("assistant", None, (ToolCall("zq_call", "zq_tool", "{}"),))])[0]
_FOLLOWERS: tuple[tuple[str, JSON, JSON], ...] = (
    ("a user message", {}, {"role": "user", "content": "y"}),
    (
        "a tool result",
        {"tool_calls": _CALLS[0]["tool_calls"]},
        {"role": "tool", "content": "y", "tool_call_id": "zq_call", "name": "zq_tool"},
    ),
)
"""Messages that can follow a turn: the name, extra fields of the turn, and the message."""

Render = Callable[[list[JSON], list[JSON], bool, JSON], str]
"""Renders messages and tools with a template; the other arguments are whether to open the
assistant's turn, and further variables. Raises `ModelError` if the template fails."""


class Thoughts:
    """Handling of earlier thoughts (reasoning) by a chat template, and the run's setting."""

    def __init__(self, template: str, render: Render, end_tokens: Sequence[str]) -> None:
        """Detect the reasoning delimiters of a template.

        `end_tokens` are the texts of the end-of-turn tokens.
        """
        self._render_template, self._end_tokens = render, end_tokens
        match = _CLOSING.search(template)
        self.known = match is not None
        """True if the template has a marker that closes a thought."""
        self.closing = "</think>" if match is None else match[0]
        self.opening = self.closing.replace("/", "", 1)
        self.max_tokens: int | None = None
        """Maximum number of sampled tokens of a thought."""
        self.keeps = False
        """True if the run keeps thoughts that the template drops."""

    def choose(self, history: Literal["keep", "drop"] | None, max_tokens: int | None) -> None:
        """Set whether prompts keep or drop earlier thoughts; None leaves this to the template.

        Raises `ModelError` if the template does not support the choice, or has no marker for the
        end of a thought and `max_tokens` is set.
        """
        self.keeps, self.max_tokens = False, max_tokens
        if max_tokens is not None and not self.known:
            raise ModelError(
                f"agent.max_thinking_tokens={max_tokens} needs a chat template that marks the end "
                "of thinking, such as with '</think>'; remove the setting, or set "
                "agent.template to that of a reasoning model"
            )
        dropped = self._find_dropping_kinds()
        if history == "drop" and not dropped:
            raise ModelError(
                "agent.thinking='drop': the chat template includes the reasoning of earlier turns; "
                "use agent.thinking=keep, or set another template with agent.template"
            )
        self.keeps = history == "keep" and bool(dropped)
        for name, fields, message in _FOLLOWERS if self.keeps else ():
            turn = {"role": "assistant", "content": self._add_thought(_ANSWER), **fields}
            if name in dropped and self.appended_text(turn, [message]) is None:
                self.keeps = False
                raise ModelError(
                    "agent.thinking='keep': the chat template does not mark the end of a turn when "
                    f"{name} follows, so its reasoning cannot be restored; use "
                    "agent.thinking=drop, or set another template with agent.template"
                )

    def appended_text(self, turn: JSON, messages: Sequence[JSON]) -> str | None:
        """Return the text that the template adds for messages after an assistant turn.

        Returns None if the template rewrites the turn, so that nothing can be appended. Placeholder
        contents are rendered in place of the turn's own: templates such as Qwen3's add an empty
        thought to the last turn only, so the result would differ between similar turns.
        """
        has_thought = self.closing in turn["content"] and not self.keeps
        for text in (self._add_thought("x"),) if has_thought else ("x", self._add_thought("x")):
            probe = {**turn, "content": text}
            before = self._render([_QUESTION, probe], False)
            after = self._render([_QUESTION, probe, *messages], True)
            end = self.find_turn_end(before)
            kept = not has_thought or _THOUGHT in after or self._drops_content(turn)
            if end >= 0 and after[:end] == before[:end] and kept:
                return after[end:]
        if not self.keeps:
            return None
        # The text after a turn whose thought the template dropped; None if it marks no end.
        text = self._render([_QUESTION, {**turn, "content": _ANSWER}, *messages], True)
        begin = text.find(_ANSWER)
        places = [at + len(e) for e in self._end_tokens if (at := text.find(e, max(begin, 0))) >= 0]
        return text[min(places) :] if begin >= 0 and places else None

    def _drops_content(self, turn: JSON) -> bool:
        """Return True if the template drops a turn's content, as Llama's does with tool calls."""
        return _ANSWER not in self._render([_QUESTION, {**turn, "content": _ANSWER}], False)

    def find_turn_end(self, text: str) -> int:
        """Return the end position of the last turn in a rendered text, or -1."""
        return max((text.rfind(e) + len(e) for e in self._end_tokens if e in text), default=-1)

    @property
    def rewriting_notice(self) -> str | None:
        """Return a description of how the template changes earlier turns, or None if unchanged."""
        if (dropped := self._find_dropping_kinds()) and not self.keeps:
            followers = " or ".join(dropped)
            return (
                f"drops reasoning (to {self.closing}) from a turn that {followers} follows "
                "(agent.thinking=keep keeps it and gives one row)"
            )
        _, fields, message = _FOLLOWERS[0]
        turn = {"role": "assistant", "content": f" \n{_ANSWER} \n", **fields}
        try:
            text = self._render([_QUESTION, turn, message], True)
            trims = _ANSWER in text and turn["content"] not in text
            if trims or self.appended_text({**turn, "content": ""}, [message]) is None:
                return "changes earlier turns or the white space around them"
        except ModelError:
            pass  # the template refuses these messages, so no rollout has them
        return None

    def is_open(self, prompt: str, sampled: str) -> bool:
        """Return True if a sampled turn is still inside a thought."""
        opened = prompt.rstrip().endswith(self.opening)
        opened = opened or sampled.lstrip().startswith(self.opening)
        return opened and self.closing not in sampled

    @cached_property
    def starts_open(self) -> bool:
        """Return True if the generation prompt of the template opens a thought."""
        try:
            return self.is_open(self._render([_QUESTION], True), "")
        except ModelError:  # the template refuses these messages
            return False

    @property
    def closing_text(self) -> str:
        """Return the template's separator between a thought and the answer."""
        turn = {"role": "assistant", "content": self._add_thought(_ANSWER)}
        text = self._render([_QUESTION, turn], False)
        match = re.search(f"{_THOUGHT}(.*?){_ANSWER}", text, re.DOTALL)
        return f"\n{self.closing}\n\n" if match is None else match[1]

    def _render(self, messages: list[JSON], open_turn: bool) -> str:
        return self._render_template(messages, [], open_turn, {})

    def _add_thought(self, answer: str) -> str:
        return f"{self.opening}\n{_THOUGHT}\n{self.closing}\n\n{answer}"

    def _find_dropping_kinds(self) -> list[str]:
        """Return the message kinds for which the template drops the previous turn's thought."""
        out: list[str] = []
        for name, fields, message in _FOLLOWERS:
            turn = {"role": "assistant", "content": self._add_thought(_ANSWER), **fields}
            try:
                text = self._render([_QUESTION, turn, message], True)
                if _ANSWER in text and _THOUGHT not in text:
                    out.append(name)
            except ModelError:
                continue  # the template does not support such turns
        return out
