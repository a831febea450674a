"""The command that resumes a run, in one place, so that it works where it is typed.

Every message that names it takes it from here: of an error, of a stop, of a page on the console.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

_NAME = "tutelage"


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


def resume_hint(run: Path) -> str:
    """The sentence on how to continue a run: its command, or the program that has its agent; of a
    finished one, how to see it."""
    if _fields(run / "result.json").get("status") == "finished":
        return f"It has finished; see its result: {command_name()} show {shlex.quote(str(run))}"
    agent = _fields(run / "agent.json")
    if _fields(run / "config.json").get("python") or (agent and not agent.get("file")):
        return f"Continue by running its program again, with output_dir={str(run)!r}"
    return f"Continue with: {resume_command(run)}"


def _fields(file: Path) -> dict[str, Any]:
    """The object in a file; empty if it cannot be read."""
    with suppress(OSError, ValueError):
        return dict(json.loads(file.read_text(encoding="utf-8")))
    return {}
