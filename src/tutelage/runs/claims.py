"""What a run tells a database of itself, and how a new one has its name there to itself.

A database that several runs share knows a run by the name of its folder. Two that begin at the same
time would play into one record, so a new run claims its name before it writes anything.
"""

from __future__ import annotations

import platform
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tutelage.errors import RunError, StoreError
from tutelage.runs.folder import RunFolder
from tutelage.runs.kinds import RunHeader
from tutelage.store import open_store
from tutelage.types import JSON, RolloutStatus


def stored_row(head: RunHeader, folder: RunFolder, config: JSON) -> dict[str, Any]:
    """A run that begins, or goes on, as the store has it."""
    return {
        "name": head.title or folder.name,
        "recipe": head.recipe,
        "algorithm": head.algorithm,
        "config": config,
        "seed": head.settings.seed,
        "folder": str(folder.path.absolute()),
        "status": RolloutStatus.RUNNING,
    }


@contextmanager
def name_claimed(head: RunHeader, folder: RunFolder) -> Generator[None]:
    """Have a new run's name in a named database before another one has it, and give it up where
    the run does not begin. Raises `StoreError` for a database that cannot be opened, or has a run
    of that name."""
    if head.store is None:
        yield
        return
    who = {"claimed by": platform.node()}
    with open_store(head.store) as store:
        store.put_run(folder.name, **stored_row(head, folder, who), claim=True)
    try:
        yield
    except BaseException:
        if not folder.config.is_file():  # else it has begun, and can be resumed
            with suppress(StoreError), open_store(head.store) as store:
                store.remove_claim(folder.name, who)
        raise


def check_owner(head: RunHeader, folder: RunFolder, *, allow_changes: bool) -> None:
    """Raise `RunError` where a named database has no run of this name to continue, or has it for
    another folder, unless that is allowed: a record would be cut in two, or be that of two."""
    if head.store is None or allow_changes:
        return
    with open_store(head.store) as store:
        place = next((run.folder for run in store.runs() if run.id == folder.name), None)
    if place is None:
        raise RunError(
            f"the store has no run {folder.name!r}, although this run has started; if the folder "
            "was renamed, or is a link, use its original name, by which the record is found; to "
            "start a new record, resume with --allow-changes (in Python: the key allow_changes)"
        )
    if not Path(place).is_absolute():  # a row of before
        return
    if Path(place).resolve() != folder.path.resolve():
        raise RunError(
            f"the run {folder.name!r} in the store belongs to the folder {place!r}, not to "
            f"{str(folder.path.absolute())!r}. If the folder was moved, continue with "
            "--allow-changes (in Python: the key allow_changes); a copy would mix both records"
        )
