"""What a run leaves in its folder that ended, or was killed, before its `config.json` was there.

The same command begins it then: it is in the way of no run, and goes with the next one. A folder
holds nothing else where all in it has these names, and a lock that nobody holds tells that there
was a run; what has another name, or lies in a folder without that lock, is the user's.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tutelage import files

LOCK = ".lock"
"""The file by which one process at a time holds a run."""

SERVER_LOG = "vllm.log"
"""In a run folder, what a vLLM server of the run's own prints. It stays where that did not start,
to be read, and is in the way of no other run."""

_CHECKPOINTS, _TASKS = "checkpoints", "tasks"
_RECORDS = ("agent.json", "fingerprint.json")
"""What is written before `config.json`, beside the tasks."""
_SPLITS = ("train.jsonl", "val.jsonl", "test.jsonl")


def is_locked(path: Path) -> bool:
    """Whether a process holds the run of a folder now."""
    import fcntl

    try:
        with (path / LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def content(path: Path) -> str | None:
    """What a folder holds, in words, that no run left which did not begin; None where it holds
    nothing else."""
    return files.folder_content(path, besides=_left_behind(path))


def _left_behind(path: Path) -> set[str]:
    names = {SERVER_LOG}
    if files.folder_content(path / _CHECKPOINTS) is None:
        names.add(_CHECKPOINTS)  # empty, it is what a run has made that was killed at once
    if not (path / LOCK).is_file() or is_locked(path):
        return names
    names |= {LOCK, *files.temporary_names(path)}
    names.update(name for name in _RECORDS if (path / name).is_file())
    tasks = path / _TASKS
    known = {*_SPLITS, *files.temporary_names(tasks)}
    if not tasks.is_symlink() and files.folder_content(tasks, besides=known) is None:
        names.add(_TASKS)
    return names


def remove_records(path: Path) -> None:
    """Remove what such a run has written down of its agent and tasks. The caller has seen that
    `content` is None."""
    tasks = path / _TASKS
    with suppress(OSError):
        files.remove_temporary(tasks)
        for file in (*(path / name for name in _RECORDS), *(tasks / name for name in _SPLITS)):
            file.unlink(missing_ok=True)
        tasks.rmdir()
