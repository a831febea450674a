"""How a planner reads a catalog and the requests over it: texts of tools, rarity, fitting types.

Over tools whose parameters are known, what may be an argument counts by its kind and not by its
words: "read notes/todo.txt" and "read letters/plan.md" are the same request, and a tool that takes
a path has that kind in its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from tutelage.errors import DataError, check_given
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool
from tutelage.orchestration.plan.parameters import parameters
from tutelage.orchestration.plan.spans import Span, by_kind, spans
from tutelage.orchestration.plan.titles import titles
from tutelage.orchestration.planner.text import BUCKETS, Features, features


def read_request(text: str, catalog: Catalog) -> Features:
    """The features of a request over a catalog."""
    if not has_schemas(catalog):
        return features(text)
    text = without_quotes(text)
    return features(by_kind(text, titles(text) if catalog.finder else ()))


_PLACE = re.compile(
    r"(?:[\w.-]*/)*[\w-][\w.-]*\.[A-Za-z][A-Za-z0-9]{0,4}|(?:/[\w.-]+)+|[\w./*-]*\*[\w./*-]*"
)
"""A file, a path from the root, or a pattern."""
_OPENING = re.compile(r"(?:^|(?<=[.!?]\s))\W*[A-Z][a-z]+\b(?!['’])")
_VERBS = """add answer append archive arrange ask attach begin book bring build buy calculate call
can cancel change check choose clean clear close compare compute convert copy correct could count
create cut delete describe display divide download draw drop edit email erase explain extract fetch
figure file fill find fix forward get give have hello help hey hide identify improve insert install
join keep launch leave let list load log look mail make measure merge message move multiply name
need note notify now okay open order paste pay phone pick place play please post prepare print
produce pull push put read record remind remove rename replace reply report reset resize return ring
run save say schedule search see select send set share show sort speak split start stop store submit
subtract sum summarise summarize swap take tell text thanks then throw transfer translate trash turn
type undo update upload use what when where which who why work would write zip"""
"""Words that begin a sentence and are no names, whatever their first letter is there."""


def without_quotes(text: str) -> str:
    """A request without the quotes around its files and paths. Where one stands outside of quotes,
    those in quotes are taken for texts: "replace 'a.txt' with 'b.txt' in notes/c.txt"."""
    found = spans(text)
    if any(span.kind in ("path", "file", "pattern") for span in found):
        return text
    for span in reversed(found):
        if span.kind == "quoted" and _PLACE.fullmatch(str(span.value)):
            text = f"{text[: span.start]}{span.value}{text[span.end :]}"
    return text


def without_capitals(text: str, catalog: Catalog) -> str:
    """A request with small letters for verbs that begin a sentence, those of tools among them: in
    "Send Ana a card" the name is Ana. What is in quotes, a file or the like stays."""
    verbs = {*_VERBS.split()} | {re.split(r"[\W_]", name)[0].lower() for name in catalog.names}
    kept = [s for s in spans(text) if s.kind not in ("name", "word", "clause")]

    def lowered(match: re.Match[str]) -> str:
        word = re.sub(r"\W", "", match[0]).lower()
        whole = all(s.end <= match.start() or match.end() <= s.start for s in kept)
        return match[0].lower() if word in verbs and whole else match[0]

    return _OPENING.sub(lowered, text)


def as_written(found: Iterable[Span], text: str, request: str) -> list[Span]:
    """The spans of a request that was read as `text`, without some of its quotes and capitals: each
    value has the letters and quotes of the request, since those are the user's."""
    places: list[int] = []
    for letter in text:
        place = places[-1] + 1 if places else 0
        while request[place].lower() != letter.lower():
            place += 1
        places.append(place)
    lost = sorted({*range(len(request))} - {*places})
    pairs = [*zip(lost[::2], lost[1::2], strict=False)]

    def written(span: Span) -> Span:
        value, start = span.value, text.find(str(span.value), span.start, span.end)
        if start < 0 or not isinstance(value, str) or not value:
            return span
        first, last = places[start], places[start + len(value) - 1]
        for opening, closing in pairs:
            if (first <= opening <= last) is not (first <= closing <= last):
                first, last = min(first, opening), max(last, closing)
        return replace(span, value=request[first : last + 1])

    return [written(span) for span in found]


def check_instructions(texts: object) -> None:
    """Raise `DataError` for what is no list of texts: of one text each letter would be planned."""
    check_given("instructions", texts, (list, tuple), "a list of texts, ['Say it']", DataError)
    for index, text in enumerate(cast("Sequence[object]", texts)):
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"instruction {index} is {text!r:.80}; say what is to be done")


def has_schemas(catalog: Catalog) -> bool:
    """Whether the parameters of a catalog's tools are known."""
    return any(tool.schema.get("properties") for tool in catalog.tools)


def described(catalog: Catalog) -> list[Features]:
    """What each tool is called, what it does, and what it takes and gives."""
    check_given("the catalog", catalog, Catalog, "a Catalog(tools); read_catalog(FILE) reads one")
    return [
        features(
            " ".join([tool.name, tool.description, *tool.inputs, *tool.outputs, *_kinds(tool)])
        )
        for tool in catalog.tools
    ]


def _kinds(tool: CatalogTool) -> list[str]:
    """Kinds that a tool's parameters take, as requests have them."""
    found = {kind for each in parameters(tool) for kind in each.kinds}
    return [by_kind(kind, name=True) for kind in sorted(found)]


def compatibility(catalog: Catalog) -> Tensor:
    """(T, T): 1 where a type that row gives is one that column takes, 0 where none is, 0.5 where
    nothing is known of either.
    """
    items = [{kind.lower() for kind in tool.outputs} for tool in catalog.tools]
    taken = [{kind.lower() for kind in tool.inputs} for tool in catalog.tools]
    return torch.tensor(
        [[float(not a.isdisjoint(b)) if a and b else 0.5 for b in taken] for a in items]
    )


def inverse_frequency(texts: Sequence[Features]) -> Tensor:
    """(BUCKETS,) IDF: log(N / texts with the bucket), at least 0.1; log(N) for unseen ones."""
    counts = np.zeros(BUCKETS)
    for text in texts:
        counts[np.unique(text.ids)] += 1
    total = max(2, len(texts))
    idf = np.log(total / np.maximum(counts, 1.0)) + 0.1
    return torch.from_numpy(idf.astype(np.float32))
