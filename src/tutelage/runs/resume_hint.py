"""The commands that resume a run and ask its questions, in one place, so that they work as typed.

Every message that names it takes it from here: of an error, of a stop, of a page on the console.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from tutelage.types import Task

_NAME = "tutelage"
_SHORT = 120
"""The characters of a question at most."""


def command_name() -> str:
    """How this command is typed: its name where that is what the shell finds, else the path by
    which it was called, or `python -m tutelage`. Another program is named as such."""
    called = sys.argv[0] if sys.argv else ""
    if Path(called).parts[-2:] == (_NAME, "__main__.py"):
        return f"{shlex.quote(sys.orig_argv[0])} -m {_NAME}"
    if Path(called).name != _NAME or os.sep not in called:
        return _NAME
    text = shutil.which(_NAME)
    with suppress(OSError):
        if text is not None and os.path.samefile(text, called):
            return _NAME
    place = Path(called)
    with suppress(OSError, ValueError):
        place = place.absolute().relative_to(Path.cwd())
    return shlex.quote(str(place))


def resume_command(run: Path) -> str:
    """What continues the run in this folder."""
    return f"{command_name()} resume {shlex.quote(str(run))}"


def offered_command(run: Path) -> str:
    """What can be done with the run in a folder that is taken: continue it, or look at one that
    has ended, as one of a plan has with any result."""
    result = _fields(run / "result.json")
    if result.get("status") == "finished" or "rollout" in result:
        return f"see the run there, which has ended: {command_name()} show {shlex.quote(str(run))}"
    return f"continue what is there: {resume_command(run)}"


def resume_hint(run: Path) -> str:
    """The sentence on how to continue a run: its command, or the program that has its agent; of a
    finished one, how to see it."""
    if _fields(run / "result.json").get("status") == "finished":
        return f"It has finished; see its result: {command_name()} show {shlex.quote(str(run))}"
    agent = _fields(run / "agent.json")
    if _fields(run / "config.json").get("python") or (agent and not agent.get("file")):
        return f"Continue by running its program again, with output_dir={str(run)!r}"
    return f"Continue with: {resume_command(run)}"


def asked_again(task: Task) -> str | None:
    """What follows the run in `tutelage ask`, quoted for a shell: the question, and the prices that
    it is about. None for a question that does not fit a line."""
    question = task.input if task.has_input else None
    if not isinstance(question, str) or not question.isprintable() or len(question) > _SHORT:
        return None
    quoted = f'"{question}"' if not set(question) & set('"$`\\!') else shlex.quote(question)
    listed = task.fields.get("prices")
    prices = cast("Mapping[Any, Any]", listed) if isinstance(listed, Mapping) else {}
    words = [f"prices.{item}={price}" for item, price in prices.items()]
    fit = all(re.fullmatch(r"prices\.\w+=[\d.]+", word) for word in words)
    return " ".join([quoted, *words]) if fit else None


def _fields(file: Path) -> dict[str, Any]:
    """The object in a file; empty if it cannot be read."""
    with suppress(OSError, ValueError):
        return dict(json.loads(file.read_text(encoding="utf-8")))
    return {}
