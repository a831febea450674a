"""Requests that a catalog does not serve, to learn from when no tool fits.

They are everyday requests by topic (`other_requests.json`); a topic that the texts of a catalog's
tools speak of is left out. `planner/confidence.py` is fitted on them.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from tutelage.orchestration.plan.catalog import Catalog
from tutelage.seeds import SeedTree

_WORD = re.compile(r"[^\W\d_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@cache
def _topics() -> dict[str, Any]:
    place = files("tutelage.orchestration.data") / "other_requests.json"
    return json.loads(place.read_text(encoding="utf-8"))


def other_requests(catalog: Catalog, count: int, seeds: SeedTree) -> list[str]:
    """At most `count` different requests that no tool of the catalog has to do with."""
    known = {word for tool in catalog.tools for word in _words(f"{tool.name} {tool.description}")}
    data = _topics()
    open_ = [row for row in data["topics"] if not known.intersection(row["words"])]
    templates = [text for row in open_ for text in row["requests"]]
    draw, found = seeds.python(), dict[str, None]()
    draw.shuffle(templates)
    for text in [*templates, *templates][: count if templates else 0]:
        filled = re.sub(r"\{(\w+)\}", lambda m: draw.choice(data["slots"][m[1]]), text)
        ending = draw.choice(("", "", ".", "!", "?"))
        found[filled[:1].upper() + filled[1:] + ending] = None
    return list(found)


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(_CAMEL.sub(" ", text).replace("_", " "))}
