"""What several verbs do with their options before they hand them on."""

from __future__ import annotations

from typing import Annotated

import typer

Trust = Annotated[
    bool,
    typer.Option("--trust", help="Run code that the run names, also when it is somebody else's."),
]


def names(text: str | None) -> list[str] | None:
    """`a, b` as a list; None when the option was not given, an empty list for an empty text."""
    if text is None:
        return None
    return [name.strip() for name in text.split(",") if name.strip()]
