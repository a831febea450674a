"""Whether a tool with side effects may run: the person at the terminal is asked, each time.

The arguments are shown as the tool would get them. `--yes` answers for the plan as it was begun,
not for what may have been done already by a process that was killed, nor for what a planner adds
after it has read results.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tutelage.cli.failures import tell
from tutelage.errors import RunError
from tutelage.tools.execute import call_in_thread

if TYPE_CHECKING:
    from rich.live import Live

    from tutelage.orchestration.execution.pools.tools import Doubt, Said
    from tutelage.orchestration.planner.llm import LLMPlanner
    from tutelage.runs.folder import RunFolder
    from tutelage.runs.lifecycle import Run
    from tutelage.tools.tool import Tool

_SHOWN, _ITEMS = 200, 20
"""Characters of a text, and items of a list, that are shown."""
_ASKED, _NO = 3, "you said no"
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
_REMEDY: dict[Doubt, str] = {
    "": "; --yes permits it",
    "again": "",
    "late": ", and --yes does not hold for it",
    "replanned": ", and --yes does not hold for it",
}


class Permission:
    """Asks, one question at a time; see `Permit` of `execution/pools/tools.py`."""

    def __init__(self, *, yes: bool) -> None:
        self._yes = yes
        self._asking: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self.display: Live | None = None
        """What is redrawn meanwhile, and stands still while another question is open."""

    async def __call__(self, tool: Tool, arguments: str, doubt: Doubt) -> Said:
        """Empty where the tool may run, else why not, or the result of a call that was done."""
        if self._yes and not doubt:
            return ""
        told = _DOUBTS[doubt]
        if not sys.stdin.isatty():
            return f"it has side effects.{told} There is no terminal to ask at{_REMEDY[doubt]}"
        loop = asyncio.get_running_loop()
        if self._asking is None or self._asking[0] is not loop:
            self._asking = (loop, asyncio.Lock())
        async with self._asking[1]:
            known = doubt in ("again", "late")
            return await call_in_thread(lambda: self._ask(tool.name, arguments, told, known))

    def _ask(self, name: str, arguments: str, told: str, known: bool) -> Said:
        """What is answered; of a call that may be `known` as done, that it was is one answer. The
        question is asked again where the answer has no known form, and at last that is a no."""
        from tutelage.cli.console import messages, say, visible

        if self.display is not None:
            self.display.stop()
        try:
            console = messages()
            shown = visible(shown_arguments(json.loads(arguments)))
            say(console, ("\nSide effects: ", "bold yellow"), visible(name), f" {shown}{told}")
            more = "(where it was done: done, or done RESULT) " if known else ""
            for left in reversed(range(_ASKED)):
                _forget_typed()
                console.print(f"Run it? [y/N] {more}", end="", markup=False)
                said = _answered(sys.stdin.readline().strip(), known)
                if said is not None:
                    return said
                forms = "y, n, done, or done RESULT" if known else "y or n"
                then = "" if left else ", so it does not run"
                console.print(f"That is no answer{then}: the answers are {forms}.", markup=False)
            return _NO
        finally:
            if self.display is not None:
                self.display.start(refresh=True)


def _answered(said: str, known: bool) -> Said | None:
    """What an answer means, None where nobody knows; no answer at all is a no."""
    found = _ANSWER.fullmatch(said)
    if found is None or (found["done"] and not known):
        return None
    if not found["done"]:
        return "" if found["yes"] else _NO
    from tutelage.orchestration.execution.workers import WorkerAnswer

    return WorkerAnswer(found["result"] or "null", nothing=not found["result"])


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


def _forget_typed() -> None:
    """Drop what was typed before the question, which it cannot have answered."""
    with suppress(ImportError, OSError, ValueError):  # no terminals of this kind here
        import termios

        with suppress(termios.error):
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


_BEGAN = "tools_began"


def keep_place(run: Run, llm: LLMPlanner | None) -> None:
    """Write down in which directory the tools of a run begin, and what the model that plans costs
    by the table of prices there; say so where that is not what it cost before."""
    price = None
    if llm is not None and llm.priced:
        price = [llm.price(1_000_000, 0), llm.price(0, 1_000_000)]
    before = [event for event in run.folder.read_events() if event["event"] == _BEGAN]
    if before and llm is not None and (old := before[-1].get("price")) != price:
        then, now = _price_words(old), _price_words(price)
        tell(f"The model that plans costs {now} from here on, and cost {then} before.")
    run.event(_BEGAN, place=str(Path.cwd()), price=price)


def _price_words(price: Sequence[float] | None) -> str:
    if price is None:
        return "nobody knows what"
    return f"{price[0]:g} and {price[1]:g} USD for a million tokens read and written"


def check_terminal(journal: Path, tools: Mapping[str, Tool]) -> None:
    """Raise `RunError` where a call with side effects may have been done by a run that was killed,
    and there is no terminal to ask at: refused, it would end the run."""
    from tutelage.orchestration.execution.journal import read_events

    if sys.stdin.isatty():
        return
    doubtful: dict[int, str] = {}
    for event in read_events(journal):
        match event["event"]:
            case "request":
                doubtful[event["node"]] = event["worker"]
            case "answer" if (event["answer"].get("error") or {}).get("kind") != "cancelled":
                doubtful.pop(event["node"], None)
            case "node":
                doubtful.pop(event["result"]["node"], None)
            case _:
                pass
    known = [name for _, name in sorted(doubtful.items()) if name in tools]
    if calls := [name for name in known if tools[name].destructive]:
        raise RunError(
            f"{', '.join(calls)}: such a call may have been done already, by a run that was "
            "killed, and there is no terminal to ask at; look whether it was, then resume at one, "
            "and answer `done` where it was"
        )


def check_place(folder: RunFolder) -> None:
    """Raise `RunError` where tools would work in another directory than they began in: a relative
    path is another file there."""
    places = [event["place"] for event in folder.read_events() if event["event"] == _BEGAN]
    if places and Path(places[-1]) != Path.cwd():
        raise RunError(
            f"{folder.name!r} ran in {places[-1]!r}, and a relative path is another file here: "
            "resume it there, or here with --allow-changes"
        )
