"""Commands that resume a run or ask its questions, as a user would type them.

Every message with such a command uses these functions: errors, interruptions, pages on the console.
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
"""Maximum length of a question, in characters."""


def command_name() -> str:
    """Return `tutelage`, or `python -m tutelage` if it was started that way or is not on the
    PATH."""
    called = Path(sys.argv[0] if sys.argv else "")
    module = called.parts[-2:] == (_NAME, "__main__.py")
    if module or (called.name == _NAME and shutil.which(_NAME) is None):
        return f"{shlex.quote(sys.executable)} -m {_NAME}"
    return _NAME


def resume_command(run: Path) -> str:
    """Return the shell command that resumes a run."""
    return f"{command_name()} resume {shlex.quote(str(run))}"


def resume_hint(run: Path) -> str:
    """Return a sentence that explains how to resume a run, or how to show the result of a finished
    run."""
    result = _read_fields(run / "result.json")
    if result.get("status") == "finished" or "rollout" in result:
        return f"It has finished; see its result: {command_name()} show {shlex.quote(str(run))}"
    agent = _read_fields(run / "agent.json")
    if _read_fields(run / "config.json").get("python") or (agent and not agent.get("file")):
        return f"Continue by running its program again, with output_dir={str(run)!r}"
    return f"Continue with: {resume_command(run)}"


def format_question(task: Task) -> str | None:
    """Format a task as shell-quoted arguments of `tutelage ask`, or return None if its question
    does not fit on a line."""
    question = task.input if task.has_input else None
    if not isinstance(question, str) or not question.isprintable() or len(question) > _SHORT:
        return None
    quoted = f'"{question}"' if not set(question) & set('"$`\\!') else shlex.quote(question)
    listed = task.fields.get("prices")
    prices = cast("Mapping[Any, Any]", listed) if isinstance(listed, Mapping) else {}
    words = [f"prices.{item}={price}" for item, price in prices.items()]
    fit = all(re.fullmatch(r"prices\.\w+=[\d.]+", word) for word in words)
    return " ".join([quoted, *words]) if fit else None


def _read_fields(file: Path) -> dict[str, Any]:
    """Read a JSON object from a file, or return an empty dict if this fails."""
    with suppress(OSError, ValueError):
        return dict(json.loads(file.read_text(encoding="utf-8")))
    return {}
