"""`tutelage init [DIR]`: write an agent with its tasks and settings, ready to train.

The files are copies of those in `starter/`.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from tutelage.errors import ConfigError

_STARTER = Path(__file__).parent / "starter"
_FILES = ("agent.py", "tasks.py", "train.toml", "README.md")


def init(
    endpoint: Annotated[
        bool, typer.Option("--endpoint", help="Also write a .env for a model at an endpoint.")
    ] = False,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write to.")] = Path(),
) -> None:
    """Write an agent, its tasks and its settings, ready to train."""
    from tutelage.cli.console import echo, output, print_steps

    names = (*_FILES, *[".env"] * endpoint)
    if existing := [name for name in names if (directory / name).exists()]:
        raise ConfigError(
            f"{str(directory)!r} already has {', '.join(existing)}, so nothing was written; choose "
            "another folder: tutelage init DIR"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copyfile(_STARTER / name.removeprefix("."), directory / name)
    except OSError as error:
        raise ConfigError(
            f"cannot write to {str(directory)!r}: {error.strerror or error}; choose another folder"
        ) from error
    console = output()
    echo(console, f"{', '.join(names)} are in {directory}\n")
    tasks = "--train train.jsonl --val val.jsonl --test test.jsonl --reward agent.py:right"
    search = f"tutelage train agent.py --algorithm auto {tasks}"
    print_steps(
        console,
        *[f"cd {directory}"] * (directory != Path()),
        *["put your key into .env"] * endpoint,
        "python tasks.py",
        search if endpoint else "tutelage train agent.py --config train.toml",
    )
