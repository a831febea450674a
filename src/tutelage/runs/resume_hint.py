"""The commands that resume a run and ask its questions, in one place, so that they work as typed.

Every message that names it takes it from here: of an error, of a stop, of a page on the console.
"""

from __future__ import annotations

import json
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
    """How this command is typed: its name, or `python -m tutelage` where it was called so, or where
    the shell does not find it. Another program is named as such."""
    called = Path(sys.argv[0] if sys.argv else "")
    module = called.parts[-2:] == (_NAME, "__main__.py")
    if module or (called.name == _NAME and shutil.which(_NAME) is None):
        return f"{shlex.quote(sys.executable)} -m {_NAME}"
    return _NAME


def resume_command(run: Path) -> str:
    """What continues the run in this folder."""
    return f"{command_name()} resume {shlex.quote(str(run))}"


def resume_hint(run: Path) -> str:
    """The sentence on how to continue a run: its command, or the program that has its agent; of a
    finished one, as one of a plan is with any result, how to see it."""
    result = _fields(run / "result.json")
    if result.get("status") == "finished" or "rollout" in result:
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
