"""`tutelage index FILES`: build the corpus of the tool `search` (see `tools/corpus.py`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def index(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Texts: JSONL, JSON, CSV, Parquet, txt or md."),
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Index file to write; an existing one is replaced. Default: corpus.db.",
            show_default=False,
        ),
    ] = Path("corpus.db"),
) -> None:
    """Build a search index over local files."""
    from tutelage.cli.console import echo, output
    from tutelage.errors import pluralize
    from tutelage.tools import corpus

    count = pluralize(corpus.build(files, out), "passage")
    echo(
        output(),
        f"{count} indexed in {out}. Use it with: tools.search_index={out}",
    )
