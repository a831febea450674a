"""From the beginning of a rollout's id to the rollout.

Rollout ids come from the seed, so two runs of one seed have the same; the newest run wins, and the
others are named. `show.py` and `export.py` use this.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tutelage.errors import RunError, StoreError

if TYPE_CHECKING:
    from tutelage.runs.folder import RunFolder
    from tutelage.types import Rollout


def find_rollout(
    prefix: str, folders: list[RunFolder], where: Path
) -> tuple[Rollout, list[RunFolder]]:
    """The rollout whose id begins with `prefix`, and the folders that have it, the newest first.

    Raises `StoreError` when several rollouts of one run do, `RunError` when none does.
    """
    from tutelage.runs.stored import open_run

    found: list[tuple[Rollout, RunFolder]] = []
    for folder in folders:
        if folder.store_address() is None:
            continue
        with open_run(folder) as (store, run_id):
            try:
                found.append((store.find_rollout(prefix, run_id), folder))
            except StoreError as error:
                if len(folders) == 1 or "begins several" in str(error):
                    raise
    if not found:
        looked = ", ".join(folder.name for folder in folders[:5]) or "no runs"
        raise RunError(f"no rollout begins with {prefix!r} below {str(where)!r} ({looked}).")
    first = found[0][0]
    return first, [folder for rollout, folder in found if rollout.id == first.id]
