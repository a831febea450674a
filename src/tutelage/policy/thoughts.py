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
from tutelage.types import JSON

_CLOSING = re.compile(r"[<\[◁]/[a-z:]*think[a-z]*[>\]▷]", re.IGNORECASE)
_THOUGHT, _SAID = "zq_thought", "zq_said"
_ASK: JSON = {"role": "user", "content": "x"}
_CALL: JSON = {
    "id": "zq_call",
    "type": "function",
    "function": {"name": "zq_tool", "arguments": {}},
}
_ALWAYS = frozenset(
    {"messages", "conversation", "tools", "documents", "chat_template", "add_generation_prompt"}
)
_FOLLOWERS: tuple[tuple[str, JSON, JSON], ...] = (
    ("a user message", {}, {"role": "user", "content": "y"}),
    (
        "a tool result",
        {"tool_calls": [_CALL]},
        {"role": "tool", "content": "y", "tool_call_id": "zq_call", "name": "zq_tool"},
    ),
)
"""What may follow a turn: its name, fields of the turn that it answers, and the message."""


class Thoughts:
    """The history of one chat template, and the choice that a run made of it."""

    def __init__(
        self,
        template: str,
        render: Callable[[list[JSON], list[JSON], bool, JSON], str],
        ends: Sequence[str],
    ) -> None:
        """`render(messages, tools, open_turn, options)` gives the template's text and raises
        `ModelError` where it refuses; `ends` are the texts of the end-of-turn tokens."""
        self._template, self._templated, self._ends = template, render, ends
        found = _CLOSING.search(template)
        self.known = found is not None
        """Whether the template has a marker that closes a thought."""
        self.closing = "</think>" if found is None else found[0]
        self.opening = self.closing.replace("/", "", 1)
        self.options: JSON = {}
        """Further variables of the template (`chat_template_kwargs`)."""
        self.max_tokens: int | None = None
        """The most sampled tokens of a turn while its thought is not closed."""
        self.keeps = False
        """Whether a run keeps thoughts that the template drops."""

    def choose(self, history: Literal["keep", "drop"] | None, max_tokens: int | None) -> None:
        """Keep earlier thoughts in the history or drop them; None leaves it to the template.

        Raises `ModelError` where the template allows only the other, or marks no thought.
        """
        self.options, self.keeps, self.max_tokens = {}, False, max_tokens
        self.__dict__.pop("begun", None)
        if max_tokens is not None and not self.known:
            raise ModelError(
                f"agent.max_thinking_tokens={max_tokens} needs a chat template that marks the end "
                "of thinking, such as with '</think>'; this one does not; leave it out, or set "
                "agent.template to that of a reasoning model"
            )
        if history is None or (history == "keep") is (not self._dropped({})):
            return
        self.options = self._switch(keep=history == "keep") or {}
        if history == "drop" and not self.options:
            raise ModelError(
                "agent.thinking='drop': the chat template always includes the reasoning of "
                "earlier turns, with no option to drop it; use agent.thinking=keep, or set another "
                "template with agent.template"
            )
        self.keeps = history == "keep"
        for name, fields, message in _FOLLOWERS if self.keeps else ():
            turn = {"role": "assistant", "content": self._thinking(_SAID), **fields}
            if name in self._dropped({}) and self.follows(turn, [message]) is None:
                self.keeps = False
                raise ModelError(
                    "agent.thinking='keep': the chat template does not mark the end of a turn when "
                    f"{name} follows, so its reasoning cannot be restored; use "
                    "agent.thinking=drop, or set another template with agent.template"
                )

    @property
    def optional(self) -> bool:
        """Whether thoughts are dropped, and `agent.thinking=keep` would keep them."""
        return not self.keeps and bool(self._dropped(self.options))

    def follows(self, turn: JSON, more: Sequence[JSON]) -> str | None:
        """What the template adds for messages that follow the end of an assistant's turn.

        None when it rewrites that turn, so that nothing can be appended. The content of a turn
        without a thought is not tried: a template of the Qwen3 kind shows an empty thought in the
        last turn only, and would append after some turns but not after others like them.
        """
        thinks = self.closing in turn["content"] and not self.keeps
        for text in (self._thinking("x"),) if thinks else ("x", self._thinking("x")):
            said = {**turn, "content": text}
            before = self._render([_ASK, said], False, self.options)
            after = self._render([_ASK, said, *more], True, self.options)
            at = self.end_of_turn(before)
            kept = not thinks or _THOUGHT in after or self._shows_no_content(turn)
            if at >= 0 and after[:at] == before[:at] and kept:
                return after[at:]
        return self._after_dropped(turn, more) if self.keeps else None

    def _shows_no_content(self, turn: JSON) -> bool:
        """Whether the template leaves out all content of such a turn, as Llama's beside a call."""
        return _SAID not in self._render([_ASK, {**turn, "content": _SAID}], False, self.options)

    def _after_dropped(self, turn: JSON, more: Sequence[JSON]) -> str | None:
        """What follows a turn whose thought the template dropped; None where no end is shown."""
        text = self._render([_ASK, {**turn, "content": _SAID}, *more], True, self.options)
        begin = text.find(_SAID)
        places = [at + len(e) for e in self._ends if (at := text.find(e, max(begin, 0))) >= 0]
        return text[min(places) :] if begin >= 0 and places else None

    def end_of_turn(self, text: str) -> int:
        """Where the last turn's end lies in a template's text, -1 if nowhere."""
        return max((text.rfind(e) + len(e) for e in self._ends if e in text), default=-1)

    @property
    def rewriting(self) -> str | None:
        """What the template does to earlier turns, in words; None where it only appends."""
        parts: list[str] = []
        if dropped := self._dropped(self.options):
            where = " or ".join(dropped)
            parts.append(f"drops reasoning (to {self.closing}) from a turn that {where} follows")
        name, fields, message = _FOLLOWERS[0]
        padded = {"role": "assistant", "content": f" \n{_SAID} \n", **fields}
        turn = {"role": "assistant", "content": self._thinking(_SAID), **fields}
        try:
            text = self._render([_ASK, padded, message], True, self.options)
            if _SAID in text and padded["content"] not in text:
                parts.append("trims white space around the assistant's text")
            if name not in dropped and self.follows({**turn, "content": ""}, [message]) is None:
                before = self._render([_ASK, turn], False, self.options)
                after = self._render([_ASK, turn, message], True, self.options)
                pairs = enumerate(zip(before, after, strict=False))
                same = next((i for i, (a, b) in pairs if a != b), len(after))
                parts.append(f"turns {before[same:][:40]!r} into {after[same:][:40]!r}")
        except ModelError:
            pass  # it refuses this talk, so no rollout has it either
        return " and ".join(parts) or None

    def renders_alike(self, messages: list[JSON], tools: list[JSON], given: JSON) -> bool:
        """Whether the template gives the same text with these further variables. Those that it does
        not read change nothing; those that it is always given are not for others to set."""
        from jinja2 import Environment, TemplateError, meta

        try:
            parsed = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(self._template)
            options = {k: given[k] for k in given.keys() & meta.find_undeclared_variables(parsed)}
            if options.keys() & _ALWAYS:
                return False
            text = self._templated(messages, tools, True, self.options)
            return self._templated(messages, tools, True, {**self.options, **options}) == text
        except (ModelError, TemplateError):
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
            return self.unclosed(self._render([_ASK], True, self.options), "")
        except ModelError:  # it refuses this talk
            return False

    @property
    def close(self) -> str:
        """What closes a thought and leads over to the answer, as the template writes it."""
        said = {"role": "assistant", "content": self._thinking(_SAID)}
        text = self._render([_ASK, said], False, self.options)
        shown = re.search(f"{_THOUGHT}(.*?){_SAID}", text, re.DOTALL)
        return f"\n{self.closing}\n\n" if shown is None else shown[1]

    def _render(self, messages: list[JSON], open_turn: bool, options: JSON) -> str:
        return self._templated(messages, [], open_turn, options)

    def _thinking(self, said: str) -> str:
        return f"{self.opening}\n{_THOUGHT}\n{self.closing}\n\n{said}"

    def _dropped(self, options: JSON) -> list[str]:
        """What, when it follows a turn, has the template leave out that turn's thought."""
        out: list[str] = []
        for name, fields, message in _FOLLOWERS:
            turn = {"role": "assistant", "content": self._thinking(_SAID), **fields}
            try:
                text = self._render([_ASK, turn, message], True, options)
                if _SAID in text and _THOUGHT not in text:
                    out.append(name)
            except ModelError:
                continue  # it has no such turns
        return out

    def _switch(self, *, keep: bool) -> JSON | None:
        """A variable of the template that keeps thoughts, or drops them, and does nothing else to
        a first prompt; None where it has none."""
        from jinja2 import Environment, TemplateError, meta

        try:
            parsed = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(self._template)
        except TemplateError:
            return None
        first = self._render([_ASK], True, {})
        for name in sorted(meta.find_undeclared_variables(parsed) - {"messages", "tools"}):
            for value in (True, False):
                try:
                    same = self._render([_ASK], True, {name: value}) == first
                except ModelError:
                    continue  # a function that the template calls
                if same and bool(self._dropped({name: value})) is not keep:
                    return {name: value}
        return None
