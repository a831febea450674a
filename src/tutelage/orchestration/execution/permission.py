"""Whether a tool with side effects may run: each call is asked about, with its arguments.

`Permission()` refuses; with `ask`, a function that puts a question to a person, it asks, one
question at a time. `yes` answers for the plan as it was begun, never for a call that may have been
done already by a process that was killed, nor for what a planner added after it had read what tools
returned, which may be any user's words. A tool's result has no say in this.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Literal, cast

from tutelage.orchestration.execution.workers import WorkerAnswer
from tutelage.tools.execute import call_in_thread
from tutelage.tools.tool import Tool

Doubt = Literal["", "again", "late", "replanned"]
"""What speaks against running a tool beside its side effects: it may have run with these arguments
already, in a process that was killed, or may be at work still in a call that was cut off; or a
planner added it after it had read what tools returned."""
Said = str | WorkerAnswer
"""What is said of a call: an empty text permits it, any other is why not, and an answer is that of
the call where it was done already, which is not done again then."""
Permit = Callable[[Tool, str, Doubt], Awaitable[Said] | Said]
"""Asked before a tool with side effects runs, with its arguments as JSON; what it returns but
`Said` is an error. One that is not async has a thread."""
Ask = Callable[[str, str], str]
"""Shows a question about a call (its words, and the forms of an answer) and returns the line that
is typed; it has a thread."""

_SHOWN, _ITEMS, _TRIES = 200, 20, 3
"""Characters of a text, and items of a list, that are shown; questions about one call."""
_NO = "you said no"
_ANSWER = re.compile(
    r"|(?:(?P<yes>y|yes)|n|no)[.!]*|(?P<done>done)(?:(?:\s*:\s*|[.,!]?\s+)(?P<result>\S.*)|[.!:]*)",
    re.IGNORECASE,
)
_DOUBTS: dict[Doubt, str] = {
    "": "",
    "again": " It may have been done already, by a run that was killed.",
    "late": " It may have been done already, or be at work still: such a call was cut off.",
    "replanned": " It was planned after the results of tools were read, which may be any "
    "user's words.",
}


class Permission:
    """A `Permit` that asks, and refuses where nobody can be asked."""

    def __init__(self, ask: Ask | None = None, *, yes: bool = False) -> None:
        self._ask, self._yes = ask, yes
        self._asking: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    async def __call__(self, tool: Tool, arguments: str, doubt: Doubt) -> Said:
        """Empty where the tool may run, else why not, or the result of a call that was done."""
        if self._yes and not doubt:
            return ""
        words, ask = _DOUBTS[doubt], self._ask
        if ask is None:
            remedy = (
                ", and --yes does not hold for it" if doubt else "; --yes, or `permit`, permits it"
            )
            return f"it has side effects.{words} There is nobody to ask{remedy}"
        loop = asyncio.get_running_loop()
        if self._asking is None or self._asking[0] is not loop:
            self._asking = (loop, asyncio.Lock())
        question = f"Side effects: {tool.name} {shown_arguments(json.loads(arguments))}{words}"
        known = doubt in ("again", "late")
        async with self._asking[1]:
            return await call_in_thread(lambda: _answered(ask, question, known))


def _answered(ask: Ask, question: str, known: bool) -> Said:
    """What is answered; of a call that may be `known` as done, that it was is one answer. The
    question is asked again where the answer has no known form, and at last that is a no."""
    forms = "y, n, done, or done RESULT" if known else "y or n"
    for _ in range(_TRIES):
        answer = _ANSWER.fullmatch(ask(question, forms).strip())
        if answer is not None and answer["done"] and known:
            return WorkerAnswer(answer["result"] or "null", nothing=not answer["result"])
        if answer is not None and not answer["done"]:
            return "" if answer["yes"] else _NO
        question = f"That is no answer: the answers are {forms}."
    return _NO


def shown_arguments(value: object) -> str:
    """Arguments as JSON, with every name. Of a long text the beginning and the end are shown, of a
    long list the first items, and how much is left out; that stands outside of the quotes."""
    if isinstance(value, dict):
        named = cast("dict[str, object]", value).items()
        pairs = (f"{shown_arguments(name)}: {shown_arguments(each)}" for name, each in named)
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        listed = cast("list[object]", value)
        items = [shown_arguments(each) for each in listed[:_ITEMS]]
        more = len(listed) - _ITEMS
        return f"[{', '.join([*items, *([f'... {more:,} more items'] if more > 0 else [])])}]"
    if isinstance(value, str) and (more := len(value) - _SHOWN) > 0:
        first, last = value[: _SHOWN // 2], value[-_SHOWN // 2 :]
        ends = (json.dumps(part, ensure_ascii=False) for part in (first, last))
        return f" ... {more:,} characters left out ... ".join(ends)
    return json.dumps(value, ensure_ascii=False)
