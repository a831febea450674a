"""From a run folder to its store, wherever that is, and to the run's id in it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tutelage.errors import RunError
from tutelage.runs.folder import RunFolder

if TYPE_CHECKING:
    from tutelage.store import Store


@contextmanager
def open_run(folder: RunFolder) -> Generator[tuple[Store, str]]:
    """The store of a run, and the run's id in it. Raises `RunError` when there is no store yet."""
    from tutelage.runs.resume_hint import resume_command
    from tutelage.store import open_store

    address = folder.store_address()
    if address is None:
        raise RunError(
            f"the run {folder.name!r} has no store, so it ended before its first rollout. "
            f"Continue it: {resume_command(folder.path)}"
        )
    with open_store(address, create=False) as store:
        ids = [run.id for run in store.runs()]
        # A folder that was renamed still holds the one run that it was made for.
        run_id = ids[0] if len(ids) == 1 else folder.name
        yield store, run_id
