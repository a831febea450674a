"""The command that resumes a run, in one place, so that it works where it is typed.

Every message that names it takes it from here: of an error, of a stop, of a page on the console.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from contextlib import suppress
from pathlib import Path

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
    """The sentence that names it, after a stop or an error."""
    return f"Continue with: {resume_command(run)}"
