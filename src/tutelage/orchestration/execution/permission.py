"""Permission for tools with side effects: each call is approved or refused by its arguments.

`Permission()` refuses all calls. With `ask`, a function that asks the user, it asks about one call
of a plan at a time. `yes` permits the calls of the initial plan. It does not apply to calls that an
earlier process or a timed-out request may already have done, nor to calls that a planner added
after it had read tool results, which may contain text of any user. A tool's result never affects
permission.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

from tutelage.errors import RunError
from tutelage.orchestration.execution.workers import WorkerAnswer
from tutelage.tools.execute import call_in_thread
from tutelage.tools.tool import Tool

Doubt = Literal["", "again", "late", "replanned"]
"""Reason against a call besides its side effects. `again`: a killed process may have done the same
call already. `late`: an equal call was cut off and may still be running. `replanned`: a planner
added the call after it had read tool results."""
Said = str | WorkerAnswer
"""Decision about a call: an empty text permits it, other text is the reason of a refusal, and a
`WorkerAnswer` is the result of a call that is already done and must not be repeated."""
Permit = Callable[[Tool, str, Doubt], Awaitable[Said] | Said]
"""Called with the tool, the arguments as JSON and the doubt before a tool with side effects runs. A
return value other than `Said` is an error. Synchronous functions run in a thread."""
Ask = Callable[[str, str], str]
"""Prints a question about a call, with the possible answers, and returns the line that the user
types. Runs in a thread."""

_DOUBTS: dict[Doubt, str] = {
    "": "",
    "again": " It may have been done already, by a run that was killed.",
    "late": " It may have been done already, or be at work still: such a call was cut off.",
    "replanned": " It was planned after the results of tools were read, which may be any "
    "user's words.",
}


class Permission:
    """Permission check that asks the user, and refuses calls if no user can be asked."""

    def __init__(self, ask: Ask | None = None, *, yes: bool = False) -> None:
        self._ask, self._yes = ask, yes

    async def __call__(self, tool: Tool, arguments: str, doubt: Doubt) -> Said:
        """Return an empty string if the tool may run, the reason if it may not, or the result of a
        call that already ran. Raises `RunError` if a killed process may have made the call and no
        user can be asked; a refusal would end the run, which can be resumed in a terminal."""
        if self._yes and not doubt:
            return ""
        words, ask = _DOUBTS[doubt], self._ask
        if ask is None and doubt == "again":
            raise RunError(
                f"{tool.name}: a killed run may already have made this call, and no terminal is "
                "available to confirm it; check whether the call was made, then resume in a "
                "terminal and answer `done` if it was"
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
            return WorkerAnswer(result or "null")
        return "" if word in ("y", "yes") else "you said no"
