"""What a chat template does with earlier turns, above all with what the assistant thought.

A turn merges into the training row of the one before it where its prompt begins with that prompt
and reply (`rollouts/rows.py`). Templates of reasoning models drop earlier thoughts and others trim
white space; then each turn becomes a row of its own. What a template does is found by rendering a
conversation of two turns, never by the name of a model. `codec.py` renders by the choice that is
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
"""What may follow a turn: its name, fields of the turn that it answers, and the message."""

Render = Callable[[list[JSON], list[JSON], bool, JSON], str]
"""Gives a template's text of messages, tools, whether to open the assistant's turn, and further
variables. Raises `ModelError` where the template refuses."""


class Thoughts:
    """The history of one chat template, and the choice that a run made of it."""

    def __init__(self, template: str, render: Render, ends: Sequence[str]) -> None:
        """`ends` are the texts of the end-of-turn tokens."""
        self._render_template, self._ends = render, ends
        found = _CLOSING.search(template)
        self.known = found is not None
        """Whether the template has a marker that closes a thought."""
        self.closing = "</think>" if found is None else found[0]
        self.opening = self.closing.replace("/", "", 1)
        self.max_tokens: int | None = None
        """The most sampled tokens of a turn while its thought is not closed."""
        self.keeps = False
        """Whether a run keeps thoughts that the template drops."""

    def choose(self, history: Literal["keep", "drop"] | None, max_tokens: int | None) -> None:
        """Keep earlier thoughts in the history or drop them; None leaves it to the template.

        Raises `ModelError` where the template allows only the other, or marks no thought.
        """
        self.keeps, self.max_tokens = False, max_tokens
        if max_tokens is not None and not self.known:
            raise ModelError(
                f"agent.max_thinking_tokens={max_tokens} needs a chat template that marks the end "
                "of thinking, such as with '</think>'; this one does not; leave it out, or set "
                "agent.template to that of a reasoning model"
            )
        dropped = self._dropping_followers()
        if history == "drop" and not dropped:
            raise ModelError(
                "agent.thinking='drop': the chat template includes the reasoning of earlier turns; "
                "use agent.thinking=keep, or set another template with agent.template"
            )
        self.keeps = history == "keep" and bool(dropped)
        for name, fields, message in _FOLLOWERS if self.keeps else ():
            turn = {"role": "assistant", "content": self._with_thought(_ANSWER), **fields}
            if name in dropped and self.appended_text(turn, [message]) is None:
                self.keeps = False
                raise ModelError(
                    "agent.thinking='keep': the chat template does not mark the end of a turn when "
                    f"{name} appended_text, so its reasoning cannot be restored; use "
                    "agent.thinking=drop, or set another template with agent.template"
                )

    def appended_text(self, turn: JSON, more: Sequence[JSON]) -> str | None:
        """What the template adds for messages that follow the end of an assistant's turn.

        None when it rewrites that turn, so that nothing can be appended. The content of a turn
        without a thought is not tried: a template of the Qwen3 kind shows an empty thought in the
        last turn only, and would append after some turns but not after others like them.
        """
        thinks = self.closing in turn["content"] and not self.keeps
        for text in (self._with_thought("x"),) if thinks else ("x", self._with_thought("x")):
            said = {**turn, "content": text}
            before = self._render([_QUESTION, said], False)
            after = self._render([_QUESTION, said, *more], True)
            at = self.end_of_turn(before)
            kept = not thinks or _THOUGHT in after or self._shows_no_content(turn)
            if at >= 0 and after[:at] == before[:at] and kept:
                return after[at:]
        if not self.keeps:
            return None
        # What appended_text a turn whose thought the template dropped; None where no end is shown.
        text = self._render([_QUESTION, {**turn, "content": _ANSWER}, *more], True)
        begin = text.find(_ANSWER)
        places = [at + len(e) for e in self._ends if (at := text.find(e, max(begin, 0))) >= 0]
        return text[min(places) :] if begin >= 0 and places else None

    def _shows_no_content(self, turn: JSON) -> bool:
        """Whether the template leaves out all content of such a turn, as Llama's beside a call."""
        return _ANSWER not in self._render([_QUESTION, {**turn, "content": _ANSWER}], False)

    def end_of_turn(self, text: str) -> int:
        """Where the last turn's end lies in a template's text, -1 if nowhere."""
        return max((text.rfind(e) + len(e) for e in self._ends if e in text), default=-1)

    @property
    def rewriting(self) -> str | None:
        """What the template does to earlier turns, in words; None where it only appends."""
        if (dropped := self._dropping_followers()) and not self.keeps:
            followers = " or ".join(dropped)
            return (
                f"drops reasoning (to {self.closing}) from a turn that {followers} appended_text "
                "(agent.thinking=keep keeps it, and one row)"
            )
        _, fields, message = _FOLLOWERS[0]
        turn = {"role": "assistant", "content": f" \n{_ANSWER} \n", **fields}
        try:
            text = self._render([_QUESTION, turn, message], True)
            trims = _ANSWER in text and turn["content"] not in text
            if trims or self.appended_text({**turn, "content": ""}, [message]) is None:
                return "changes earlier turns or the white space around them"
        except ModelError:
            pass  # it refuses this talk, so no rollout has it either
        return None

    def ignores_variables(self, messages: list[JSON], tools: list[JSON], given: JSON) -> bool:
        """Whether the template gives the same text with these further variables."""
        try:
            text = self._render_template(messages, tools, True, {})
            return self._render_template(messages, tools, True, given) == text
        except ModelError:  # such as for a variable that is always given
            return False

    def unclosed(self, prompt: str, sampled: str) -> bool:
        """Whether a turn that begins after `prompt` is in a thought after `sampled`."""
        opened = prompt.rstrip().endswith(self.opening)
        opened = opened or sampled.lstrip().startswith(self.opening)
        return opened and self.closing not in sampled

    @cached_property
    def begun(self) -> bool:
        """Whether the template opens a turn inside a thought."""
        try:
            return self.unclosed(self._render([_QUESTION], True), "")
        except ModelError:  # it refuses this talk
            return False

    @property
    def close(self) -> str:
        """What closes a thought and leads over to the answer, as the template writes it."""
        said = {"role": "assistant", "content": self._with_thought(_ANSWER)}
        text = self._render([_QUESTION, said], False)
        shown = re.search(f"{_THOUGHT}(.*?){_ANSWER}", text, re.DOTALL)
        return f"\n{self.closing}\n\n" if shown is None else shown[1]

    def _render(self, messages: list[JSON], open_turn: bool) -> str:
        return self._render_template(messages, [], open_turn, {})

    def _with_thought(self, said: str) -> str:
        return f"{self.opening}\n{_THOUGHT}\n{self.closing}\n\n{said}"

    def _dropping_followers(self) -> list[str]:
        """What, when it appended_text a turn, has the template leave out that turn's thought."""
        out: list[str] = []
        for name, fields, message in _FOLLOWERS:
            turn = {"role": "assistant", "content": self._with_thought(_ANSWER), **fields}
            try:
                text = self._render([_QUESTION, turn, message], True)
                if _ANSWER in text and _THOUGHT not in text:
                    out.append(name)
            except ModelError:
                continue  # it has no such turns
        return out
