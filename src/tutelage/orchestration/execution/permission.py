"""Whether a tool with side effects may run: each call is asked about, with its arguments.

`Permission()` refuses; with `ask`, a function that puts a question to a person, it asks, one
question at a time of one plan. `yes` answers for the plan as it was begun, never for a call that
may have been done already by a process that was killed, nor for what a planner added after it had
read what tools returned, which may be any user's words. A tool's result has no say in this.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

from tutelage.errors import RunError
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

    async def __call__(self, tool: Tool, arguments: str, doubt: Doubt) -> Said:
        """Empty where the tool may run, else why not, or the result of a call that was done. Raises
        `RunError` for a call of a process that was killed where there is nobody to ask: refused,
        it would end the run, which can go on where there is somebody."""
        if self._yes and not doubt:
            return ""
        words, ask = _DOUBTS[doubt], self._ask
        if ask is None and doubt == "again":
            raise RunError(
                f"{tool.name}: such a call may have been done already, by a run that was killed, "
                "and there is no terminal to ask at; look whether it was, then resume at one, and "
                "answer `done` where it was"
            )
        if ask is None:
            remedy = (
                ", and --yes does not hold for it" if doubt else "; --yes, or `permit`, permits it"
            )
            return f"it has side effects.{words} There is nobody to ask{remedy}"
        question = f"Side effects: {tool.name} {arguments}{words}"
        known = doubt in ("again", "late")
        forms = "y, n, done, or done RESULT" if known else "y or n"

        line = await call_in_thread(lambda: ask(question, forms))
        word, _, result = line.strip().partition(" ")
        word = word.lower().rstrip(".!:")
        if word == "done" and known:
            return WorkerAnswer(result or "null", nothing=not result)
        return "" if word in ("y", "yes") else "you said no"
