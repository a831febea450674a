"""Store of a run: its own file, or a database that several runs share.

A shared database identifies a run by the name of its folder. Two runs that begin at the same time
would write to one record, so a new run claims its name before it writes anything.
"""

from __future__ import annotations

import platform
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutelage.errors import RunError
from tutelage.runs.folder import RunFolder
from tutelage.runs.resume_hint import resume_hint
from tutelage.types import JSON, RolloutStatus

if TYPE_CHECKING:
    from tutelage.runs.kinds import RunHeader
    from tutelage.store import Store


@contextmanager
def open_run(folder: RunFolder) -> Generator[tuple[Store, str]]:
    """Open the store of a run and yield it with the run's id. Raises `RunError` if there is no
    store yet."""
    from tutelage.store import open_store

    address = folder.store_address()
    if address is None:
        raise RunError(
            f"the run {folder.name!r} has no store: it ended before its first rollout. "
            f"{resume_hint(folder.path)}"
        )
    with open_store(address, create=False) as store:
        yield store, find_run_id(store, folder, own_store=address == folder.store)


def find_run_id(store: Store, folder: RunFolder, *, own_store: bool) -> str:
    """Return the id of a run in its store, which is the original name of its folder.

    With `own_store`, the id is known even if the folder was renamed or copied.
    """
    ids = [run.id for run in store.runs()] if own_store else []
    return ids[0] if len(ids) == 1 else folder.name


def make_run_row(head: RunHeader, folder: RunFolder, config: JSON) -> dict[str, Any]:
    """Return the database row of a run that starts or resumes."""
    return {
        "name": head.title or folder.name,
        "recipe": head.recipe,
        "algorithm": head.algorithm,
        "config": config,
        "seed": head.settings.seed,
        "folder": str(folder.path.absolute()),
        "status": RolloutStatus.RUNNING,
    }


def claim_name(head: RunHeader, folder: RunFolder) -> None:
    """Reserve the name of a new run in a shared database. Raises `StoreError` if the database
    cannot be opened or already has a run with this name."""
    from tutelage.store import open_store

    if head.store is not None:
        owner = {"claimed by": platform.node()}
        with open_store(head.store) as store:
            store.put_run(folder.name, **make_run_row(head, folder, owner), claim=True)


def check_owner(head: RunHeader, folder: RunFolder) -> None:
    """Raise `RunError` if a shared database has no run with this name, or if it belongs to another
    folder."""
    from tutelage.store import open_store

    if head.store is None:
        return
    with open_store(head.store) as store:
        owner = next((run.folder for run in store.runs() if run.id == folder.name), None)
    if owner is None:
        raise RunError(
            f"the store has no run {folder.name!r}, although this run has started; if the folder "
            "was renamed or is a link, use its original name; to start a new record, resume with "
            "--allow-changes (in Python: the key allow_changes)"
        )
    if Path(owner).resolve() != folder.path.resolve():
        raise RunError(
            f"the run {folder.name!r} in the store belongs to the folder {owner!r}, not to "
            f"{str(folder.path.absolute())!r}. If the folder was moved, continue with "
            "--allow-changes (in Python: the key allow_changes); a copy would mix both records"
        )
