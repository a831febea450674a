"""`tutelage rm RUN`: delete a run's folder after listing its content."""

from __future__ import annotations

from typing import Annotated

import typer


def rm(
    run: Annotated[str, typer.Argument(help="Run folder, or the beginning of its name in runs/.")],
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
) -> None:
    """Delete a run's folder and everything in it."""
    import os
    import shutil
    from pathlib import Path

    from tutelage.cli.console import escape, format_path
    from tutelage.cli.runs import format_disk_use
    from tutelage.errors import RunError
    from tutelage.runs.folder import find, lock_run

    folder = find(run)
    if Path.cwd().is_relative_to(folder.path.resolve()) or folder.path.is_symlink():
        raise RunError(
            f"cannot delete {str(folder.path)!r}: it is the working directory or a link; pass the "
            "folder itself and run from another directory"
        )
    with lock_run(folder):
        size, names = format_disk_use(folder.path), sorted(os.listdir(folder.path))
        text = f"{escape(format_path(folder.path))} ({size}: {escape(', '.join(names))})"
        if not yes:
            typer.confirm(f"Delete {text}?", abort=True)
        shutil.rmtree(folder.path)
    typer.echo(f"deleted {escape(format_path(folder.path))}, {size}")
