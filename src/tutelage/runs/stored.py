"""From a run folder to its store, local or not, and to the run's id in it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tutelage.errors import RunError
from tutelage.runs.folder import RUNS, RunFolder, every, is_run
from tutelage.runs.trust import state_folder

if TYPE_CHECKING:
    from tutelage.store import Store


def note_folder(folder: RunFolder) -> None:
    """Note where a run lies, so that its rollouts are found from any directory. Where that cannot
    be written, they are found from the directory above."""
    place, path = _notes(), folder.path.resolve()
    with suppress(OSError):
        if path in _noted():
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("a", encoding="utf-8") as file:
            file.write(f"{path}\n")


def known_runs(runs: Path = RUNS) -> list[RunFolder]:
    """The runs below a folder, and all others that this user has started here; the newest first."""
    below = every(runs)
    there = {folder.path.resolve() for folder in below}
    others = [path for path in reversed(_noted()) if path not in there and is_run(path)]
    return [*below, *map(RunFolder, others)]


def _noted() -> list[Path]:
    with suppress(OSError, UnicodeDecodeError):
        return [Path(line) for line in _notes().read_text(encoding="utf-8").splitlines()]
    return []


def _notes() -> Path:
    return state_folder() / "folders.txt"


@contextmanager
def open_run(folder: RunFolder) -> Generator[tuple[Store, str]]:
    """The store of a run, and the run's id in it. Raises `RunError` when there is no store yet."""
    from tutelage.runs.resume_hint import resume_hint
    from tutelage.store import open_store

    address = folder.store_address()
    if address is None:
        raise RunError(
            f"the run {folder.name!r} has no store: it ended before its first rollout. "
            f"{resume_hint(folder.path)}"
        )
    with open_store(address, create=False) as store:
        yield store, id_in(store, folder, own=address == folder.store)


def id_in(store: Store, folder: RunFolder, *, own: bool) -> str:
    """The id of a folder's run in its store: the name that the folder had as the run began. With a
    store of its `own` that is known where it was renamed or copied since."""
    ids = [run.id for run in store.runs()] if own else []
    return ids[0] if len(ids) == 1 else folder.name
