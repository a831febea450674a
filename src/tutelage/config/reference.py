"""Markdown reference of every key, generated from the schema.

Sections become headings with their docstring; keys become table rows: name, type, default, other
spellings, help. `tutelage config` prints the same rows.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from tutelage.config.aliases import list_aliases
from tutelage.config.fields import tuples_to_lists
from tutelage.config.keys import (
    NO_NAMES,
    Names,
    defaults,
    get,
    json_schema,
    leaf_fields,
    value_text,
)
from tutelage.config.schema import RunConfig

_HEAD = "| key | type | default | other spellings | what it does |\n|---|---|---|---|---|"


class ReferenceRow(NamedTuple):
    """Row of the reference table: a key with its type, default, aliases and help, as text."""

    key: str
    type: str
    default: str
    aliases: tuple[str, ...]
    help: str


def reference_rows(names: Names = NO_NAMES) -> list[ReferenceRow]:
    """Return one row per key, in the order of the schema; `names` are registered names by key
    (`extensions.py`)."""
    return [
        ReferenceRow(
            key=key,
            type=" or ".join([*map(repr, names[key]), "FILE.py:name"])
            if key in names
            else value_text(json_schema(key)),
            default=json.dumps(tuples_to_lists(defaults()[key])),
            aliases=list_aliases(key),
            help=" ".join((field.description or "").split()),
        )
        for key, field in leaf_fields().items()
    ]


def reference_markdown(names: Names = NO_NAMES) -> str:
    """Return the reference page as Markdown, with one table per top-level section."""
    lines = ["# Configuration reference", ""]
    lines.append("Every key of a run. Set one with `KEY=VALUE`; other spellings mean the same key.")
    current: str | None = None
    for row in reference_rows(names):
        section = row.key.partition(".")[0] if "." in row.key else ""
        if section != current:
            current = section
            model = type(get(RunConfig(), section)) if section else RunConfig
            first_line = (model.__doc__ or "").strip().splitlines()[0]
            title = f"## `{section}`" if section else "## The run"
            lines += ["", title, "", first_line, "", _HEAD]
        aliases = ", ".join(f"`{name}`" for name in row.aliases)
        cells = (f"`{row.key}`", row.type, f"`{row.default}`", aliases, row.help)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"
