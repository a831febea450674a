"""The table of what each dialect of the gateway does with a field, made from the requests' models.

`python tests/docs/gateway_fields.py` writes it into `docs/gateway.md`; a test looks whether it is
what stands there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tutelage.gateway.dialects import DIALECTS
from tutelage.gateway.dialects.dialect import Dialect

PAGE = Path(__file__).parents[2] / "docs" / "gateway.md"
BEGIN, END = "<!-- fields -->\n", "<!-- /fields -->\n"

_JSON_ONLY = ("yes, `json` in it", {"structured_outputs": {"regex": "a+"}})
LIMITS: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {
    ("chat.completions", "structured_outputs"): _JSON_ONLY,
    ("responses", "structured_outputs"): _JSON_ONLY,
    ("messages", "structured_outputs"): _JSON_ONLY,
    ("completions", "structured_outputs"): _JSON_ONLY,
    ("completions", "best_of"): ("only as `n`", {"best_of": 2}),
    ("completions", "echo"): ("yes, without `logprobs`", {"echo": True, "logprobs": 1}),
    ("responses", "reasoning"): (
        'yes, `effort` in it only `"none"`',
        {"reasoning": {"effort": "low"}},
    ),
    ("messages", "output_config"): ("yes, `format` in it", {"output_config": {"effort": "low"}}),
}
"""Fields that are honoured in part: the words for that, and what is refused, as a test sees."""


def cell(dialect: Dialect, name: str) -> str:
    """What a dialect does with a field."""
    request = dialect.request
    if name in request.harmless:
        return "no effect"
    if name in request.known:
        return LIMITS[dialect.name, name][0] if (dialect.name, name) in LIMITS else "yes"
    values = [json.dumps(value) for value in request.neutral.get(name, ())]
    return "only " + ", ".join(f"`{value}`" for value in values) if values else ""


def table() -> str:
    """The table in Markdown."""
    names = {n for d in DIALECTS for n in (*d.request.known, *d.request.neutral)}
    lines = ["| field | " + " | ".join(d.name.replace(".", " ") for d in DIALECTS) + " |"]
    lines.append("|---" * (len(DIALECTS) + 1) + "|")
    for name in sorted(names):
        cells = [cell(d, name) for d in DIALECTS]
        if any(cells):
            lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """The page with the table of now."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
