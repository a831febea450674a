"""The reference of every key as Markdown, made from the schema so that it cannot fall behind.

Sections become headings with their docstring; keys become table rows: name, type, default, other
spellings, help. The same rows serve the command line's help.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from tutelage.config.aliases import spellings
from tutelage.config.fields import plain
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
    """One key: type in words, default as an override would write it, other spellings, help."""

    key: str
    type: str
    default: str
    aliases: tuple[str, ...]
    help: str


def reference_rows(names: Names = NO_NAMES) -> list[ReferenceRow]:
    """Every key, in the order of the schema; `names` are the registered ones of keys that take
    such (`extensions.py`)."""
    return [
        ReferenceRow(
            key=key,
            type=" or ".join([*map(repr, names[key]), "FILE.py:name"])
            if key in names
            else value_text(json_schema(key)),
            default=json.dumps(plain(defaults()[key])),
            aliases=spellings(key),
            help=" ".join((field.description or "").split()),
        )
        for key, field in leaf_fields().items()
    ]


def reference_markdown(names: Names = NO_NAMES) -> str:
    """The reference page: one table for each top-level section; `names` as for the rows."""
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
