"""Trust in the code that a run folder names.

The configuration of a run can name code: tools, a reward or an agent in a file, a command that
serves tools. A run folder may come from any user, so verbs that resume, ask or evaluate a run
execute its code only if the run was begun on this machine by this user (`record_trust`), or with
`--trust`. What is remembered is a hash outside of the run folder, of the configuration and of the
paths of the files that it names: another configuration, or the same one elsewhere, is another run.
The code itself may change.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from tutelage.errors import ConfigError
from tutelage.runs.folder import RunFolder
from tutelage.tools.loading import is_file_reference
from tutelage.tools.registry import MCP_PREFIXES


def _is_code(reference: str) -> bool:
    """Return True if a name refers to code outside of this package."""
    return is_file_reference(reference) or reference.startswith(MCP_PREFIXES)


def find_code(folder: RunFolder) -> list[str]:
    """Return all references to code in the configuration of a run."""
    try:
        told = json.loads(folder.config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []  # whoever reads it next says what is wrong
    with suppress(OSError, ValueError):  # most runs train no agent of a file
        told = [told, json.loads(folder.agent.read_text(encoding="utf-8")).get("file")]
    return sorted({text for text in iter_texts(told) if _is_code(text)})


def record_trust(folder: RunFolder) -> None:
    """Record that a run was started on this machine. If this fails, `--trust` is required later."""
    if not find_code(folder):
        return
    mark = _trust_file(folder)
    with suppress(OSError):
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


def check_trusted(folder: RunFolder, code: Sequence[str], *, trust: bool) -> None:
    """Raise `ConfigError` if a run of another user refers to code, unless `trust` is True."""
    named = [reference for reference in code if _is_code(reference)]
    if trust or not named or _trust_file(folder).is_file():
        return
    raise ConfigError(
        f"the run in {str(folder.path)!r} would run the code {', '.join(map(repr, named))}, but it "
        "was not started on this machine by this user from this directory, or its config.json has "
        "changed since; review the code, and pass --trust to run it"
    )


def state_folder() -> Path:
    """Return the folder of this user's records of runs, outside of all run folders."""
    state = os.environ.get("XDG_STATE_HOME", "").strip()
    return (Path(state) if state else Path("~/.local/state").expanduser()) / "tutelage"


def _trust_file(folder: RunFolder) -> Path:
    places = [os.path.abspath(text.rpartition(":")[0] or text) for text in find_code(folder)]
    data = json.dumps(places).encode() + b"\0" + folder.config.read_bytes()
    return state_folder() / "runs" / hashlib.blake2b(data, digest_size=16).hexdigest()


def iter_texts(value: Any) -> Iterator[str]:
    """Yield all strings in nested lists and dicts, in order."""
    stack: list[Any] = [value]
    while stack:
        here = stack.pop()
        if isinstance(here, str):
            yield here
        elif isinstance(here, dict):
            stack += reversed(cast("dict[str, Any]", here).values())
        elif isinstance(here, list):
            stack += reversed(cast("list[Any]", here))
