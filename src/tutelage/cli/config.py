"""`tutelage config [WORD]`: every key with its type, default, aliases, help, and values in recipes.

The rows come from the schema (`config/reference.py`), like the page in the docs.
"""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from itertools import product
from typing import Annotated

import typer


def config(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The whole page as Markdown.")
    ] = False,
    prompts: Annotated[
        bool, typer.Option("--prompts", help="The keys of prompt searches instead.")
    ] = False,
    word: Annotated[
        str | None, typer.Argument(help="Only keys whose name or another spelling contains this.")
    ] = None,
) -> None:
    """List the keys of a run, with each recipe's values.

    A terminal shows them page by page: q ends it.
    """
    from rich.padding import Padding
    from rich.text import Text

    from tutelage.cli.console import echo, output
    from tutelage.config.aliases import find_nearest
    from tutelage.config.reference import reference_markdown, reference_rows
    from tutelage.errors import ConfigError
    from tutelage.prompts.config import prompt_rows
    from tutelage.weights.config.extensions import registered_names

    names = registered_names()
    if markdown:
        typer.echo(reference_markdown(names), nl=False)
        return
    rows = prompt_rows() if prompts else reference_rows(names)
    if word is not None:
        pattern = word.lower().removeprefix("--").replace("-", "_")
        rows = [row for row in rows if any(pattern in name for name in (row.key, *row.aliases))]
        if not rows:
            match = find_nearest(pattern)
            hint = f"Did you mean {match!r}?" if match else "`tutelage config` lists every key."
            raise ConfigError(f"no key contains {word!r}. {hint}")
    recipes = {} if prompts else _collect_recipe_values()
    console = output()
    os.environ.setdefault("LESS", "FRX")  # colours, and no pager where it fits the screen
    with console.pager(styles=True) if console.is_terminal else nullcontext():
        for row in rows:
            echo(console, (f"{row.key}={row.default}", "bold"), (f"   {row.type}", "dim"))
            texts = [row.help, *(f"In {value}." for value in recipes.get(row.key, ()))]
            texts += [f"Also: {', '.join(row.aliases)}."] if row.aliases else []
            console.print(Padding(Text(" ".join(texts)), (0, 0, 0, 4)))


def _collect_recipe_values() -> dict[str, list[str]]:
    """Return by key the recipe values that differ from the default, and the values for a custom
    model that differ from the recipe's."""
    from tutelage.config.keys import defaults
    from tutelage.weights.config.presets import RECIPES, recipe_preset

    by_key: dict[str, list[str]] = {}
    for own, recipe in product((False, True), RECIPES):
        algorithm = "sft" if recipe == "sft" else "rl"
        first, values = (
            recipe_preset(recipe, level="default", algorithm=algorithm, own_model=model)[1]
            for model in (False, own)
        )
        for key in {**first, **values}:
            value = values.get(key, defaults()[key])
            if not own or value != first.get(key, defaults()[key]):
                source = f"{recipe} with your own model" if own else recipe
                by_key.setdefault(key, []).append(f"{source}: {json.dumps(value)}")
    return by_key
