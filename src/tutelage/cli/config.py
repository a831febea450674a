"""`tutelage config [WORD]`: every key with its type, default, other spellings and meaning.

The rows are made from the schema in `config/reference.py`, as is the page in the docs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tutelage.config import ReferenceRow


def config(
    word: Annotated[
        str | None, typer.Argument(help="Only keys whose name or another spelling contains this.")
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The whole page as Markdown.")
    ] = False,
    prompts: Annotated[
        bool, typer.Option("--prompts", help="The keys of prompt searches instead.")
    ] = False,
) -> None:
    """List the keys of a run: type, default, other spellings, meaning."""
    from tutelage.config import reference_markdown, reference_rows
    from tutelage.prompts.config import prompt_rows
    from tutelage.weights.config.extensions import registered_names

    names = registered_names()
    if markdown:
        typer.echo(reference_markdown(names), nl=False)
        return
    rows = prompt_rows() if prompts else reference_rows(names)
    _show(rows if word is None else _matching(rows, word))


def _matching(rows: list[ReferenceRow], word: str) -> list[ReferenceRow]:
    from tutelage.config.aliases import nearest
    from tutelage.errors import ConfigError

    asked = word.lower().removeprefix("--").replace("-", "_")
    found = [row for row in rows if any(asked in name for name in (row.key, *row.aliases))]
    if not found:
        near = nearest(asked)
        hint = f"Did you mean {near!r}?" if near else "`tutelage config` lists every key."
        raise ConfigError(f"no key contains {word!r}. {hint}")
    return found


def _show(rows: list[ReferenceRow]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from tutelage.cli.console import output, say

    console = output()
    for row in rows:
        say(console, (f"{row.key}={row.default}", "bold"), (f"   {row.type}", "dim"))
        also = f" Also: {', '.join(row.aliases)}." if row.aliases else ""
        console.print(Padding(Text(row.help + also), (0, 0, 0, 4)))
