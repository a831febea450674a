"""What a parameter may get, and the features of each pair of a parameter and a candidate.

Candidates are the spans of a request, a query over tables, paths that a tool's description lists,
and the results of earlier nodes. `arguments.py` weighs the features and chooses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tutelage.orchestration.plan.catalog import Catalog, CatalogTool
from tutelage.orchestration.plan.dag import Node, references
from tutelage.orchestration.plan.parameters import Parameter, gives, spoken_of, templates
from tutelage.orchestration.plan.queries import query_span, tables_of
from tutelage.orchestration.plan.spans import NUMBERS, Span, spans

FEATURES: Mapping[str, float] = {
    "constant": -3.0,
    "its kind": 4.0,
    "another kind": -3.0,
    "its type": 0.5,
    "another type": -6.0,
    "an option": 4.0,
    "quoted, for a text": 3.5,
    "a clause, for a text": 2.0,
    "a number, for a text": -1.0,
    "a name, for a text": 0.5,
    "a single word": -1.5,
    "after its name": 1.5,
    "before its name": 1.0,
    "after to, in, as, with or many, for where it goes": 1.5,
    "after to, in, as, with or many, for where it comes from": -1.0,
    "after from or of, for where it comes from": 1.5,
    "same place among its like": 1.0,
    "a word of the tool": -2.0,
    "taken by an earlier node": -1.0,
    "a number that an earlier node took for something else": -4.0,
    "a path that an earlier node took": 0.0,
    "a word, for a folder": 2.0,
    "after in, of or from, for a folder": 2.0,
    "after in, of or from, for a folder that is all a tool takes": 4.0,
    "a file, for a folder": -8.0,
    "beside the word folder": 3.0,
    "a word, for one of a list": 2.0,
    "right after a number, for where it comes from": 2.0,
    "right after a number, for where it goes": -2.0,
    "after what an earlier node took": 0.5,
    "a path that the tool lists": 4.0,
    "a result": -0.5,
    "a result it waits for": 2.0,
    "a result of its kind": 3.5,
    "a result of another kind": -3.0,
    "the result before": 0.5,
    "today, where a time that is past ends": 2.5,
    "today, where a time that is past begins": -2.5,
    "where plans have it from": 1.0,
}
"""Names of the features, and the weights that they begin with. All are 0 or 1, but the last: a
log-odds, see `origins.py`."""
GOES = frozenset({"to", "destination", "target", "new", "second", "end", "into", "until", "output"})
_COMES = frozenset({"from", "source", "old", "first", "start", "origin", "begin", "input"})
_SAME = {"file": "path", "path": "path"}


_PAST = re.compile(r"\b(ago|since|gone by|past|back|earlier|before today)\b", re.IGNORECASE)
_SKIPPED = frozenset(
    ["the", "a", "an", "my", "our", "your", "this", "file", "folder", "directory", "files"]
)
"""Words between a preposition and what it is for."""


@dataclass(frozen=True, slots=True)
class ArgumentValue:
    """Something that a parameter may get: a span, or the result of an earlier node."""

    value: object
    span: Span | None = None
    node: int | None = None
    listed: bool = False


def candidates_of(
    text: str, tool: CatalogTool, found: Sequence[Span], before: Sequence[Node]
) -> list[ArgumentValue]:
    """What the parameters of a tool may get."""
    past = _PAST.search(text) is not None and "below 0" in str(tool.schema)
    made = [ArgumentValue(_before(span) if past else span.value, span) for span in found]
    query = query_span(text, tool)
    made += [] if query is None else [ArgumentValue(query.value, query)]
    for template in templates(tool):
        where = spoken_of(template, text)
        if where is None:
            continue
        names = [s for s in found if s.kind == "name" and s.start > 0] or [None]
        for name in names if re.search(r"[A-Z]{2,}", template) else [None]:
            if name is None and re.search(r"[A-Z]{2,}", template):
                continue
            value = template if name is None else re.sub(r"[A-Z]{2,}", str(name.value), template)
            span = (
                Span("path", *where, value)
                if name is None
                else replace(name, value=value, kind="path")
            )
            made.append(ArgumentValue(value, span, listed=True))
    return made + [ArgumentValue(f"<node-{i}>", node=i) for i in range(len(before))]


def _ends_today(text: str) -> bool:
    """Whether a time that is spoken of ends today: it is past, or today is named after the date."""
    days = [span.end for span in spans(text) if span.kind == "date"]
    named = [found.start() for found in re.finditer(r"\b(today|now|this day)\b", text, re.I)]
    told_after = len(days) == 1 and any(start >= days[0] for start in named)
    return told_after or _PAST.search(text) is not None


def _before(span: Span) -> object:
    """The value of a span for a time that is past: a number of days is below 0."""
    value = span.value
    return -value if span.kind == "number" and isinstance(value, (int, float)) else value


def pair_features(
    text: str, tool: CatalogTool, own: Sequence[Parameter], parameter: Parameter,
    candidate: ArgumentValue, node: Node, before: Sequence[Node], catalog: Catalog,
    leaning: float = 0.0,
) -> list[float]:  # fmt: skip
    """The features of a pair of a parameter and a candidate, in the order of `FEATURES`.

    `leaning` is how much plans speak for the candidate, by where it is from.
    """
    on = {"constant"}
    if candidate.node is not None:
        on |= _of_result(parameter, candidate.node, node, before, catalog)
        dates = [each.name for each in own if "date" in each.kinds]
        if len(dates) == 2 and parameter.name in dates and _ends_today(text):
            ends = parameter.name == dates[1]
            on.add(f"today, where a time that is past {'ends' if ends else 'begins'}")
    elif candidate.span is not None:
        on |= _of_span(text, tool, own, parameter, candidate.span, before)
        if _is_taken(text, parameter, candidate.span, node, before):
            on.add("a number that an earlier node took for something else")
        if candidate.listed:
            on |= {"a path that the tool lists"}
    return [*(float(name in on) for name in [*FEATURES][:-1]), leaning if before else 0.0]


def _of_result(
    parameter: Parameter, source: int, node: Node, before: Sequence[Node], catalog: Catalog
) -> set[str]:
    on = {"a result"}
    kind = gives(catalog[before[source].tool])
    fits = (
        kind in parameter.kinds
        or ("date" in parameter.kinds and bool(tables_of(catalog[before[source].tool])))
        or (kind == "numbers" and "array" in parameter.types)
        or (parameter.takes_text and kind in ("text", "number", "numbers", "list", "date"))
    )
    on.add("a result of its kind" if fits else "a result of another kind")
    if source in node.after:
        on.add("a result it waits for")
    if source == len(before) - 1:
        on.add("the result before")
    return on


def _of_span(
    text: str, tool: CatalogTool, own: Sequence[Parameter], parameter: Parameter, span: Span,
    before: Sequence[Node],
) -> set[str]:  # fmt: skip
    on = _of_form(parameter, span) | _of_cues(text, own, parameter, span)
    like = [each for each in own if each.kinds == parameter.kinds and each.types == parameter.types]
    same = [(s.start, s.end) for s in spans(text) if _kind(s.kind) == _kind(span.kind)]
    there = (span.start, span.end)
    if there in same and like.index(parameter) == same.index(there) and len(like) <= len(same):
        on.add("same place among its like")
    words = set(re.findall(r"[a-z]+", f"{tool.name} {tool.description}".replace("_", " ").lower()))
    if span.kind in ("word", "name") and str(span.value).lower() in words:
        on.add("a word of the tool")
    given = [value for each in before for value in each.arguments.values()]
    if any(equal(span.value, value) for value in given):
        path = _kind(span.kind) == "path"
        on.add("a path that an earlier node took" if path else "taken by an earlier node")
    elif given:
        on.add("after what an earlier node took")
    return on


def _is_taken(
    text: str, parameter: Parameter, span: Span, node: Node, before: Sequence[Node]
) -> bool:
    """Whether a number went to an earlier node and hardly means this parameter too: it is another
    one's, or the node waits for what was made of it, and the request has it no second time."""
    if span.kind != "number":
        return False
    took = [
        (place, name)
        for place, each in enumerate(before)
        for name, value in each.arguments.items()
        if equal(span.value, value)
    ]
    there = sum(s.kind == "number" and equal(s.value, span.value) for s in spans(text))
    else_ = any(name != parameter.name or place in node.after for place, name in took)
    return else_ and len(took) >= there


def _of_cues(text: str, own: Sequence[Parameter], parameter: Parameter, span: Span) -> set[str]:
    """What the words around a span say for a parameter."""
    lead = re.findall(r"[A-Za-z]+", text[max(0, span.start - 30) : span.start])
    after = re.findall(r"[A-Za-z]+", text[span.end : span.end + 20])
    words = [word.lower() for word in lead]
    while len(words) > 1 and words[-1] in _SKIPPED:
        words.pop()
    last = words[-1] if words else ""
    folder = {*(word.lower() for word in after[:1]), *(word.lower() for word in lead[-1:])}
    holds = last in ("in", "of", "from", "inside", "to", "into", "under")
    writes = any(each.takes_text for each in own) and "path" in parameter.kinds
    goes, comes = bool(parameter.words & GOES) or writes, bool(parameter.words & _COMES)
    number = re.search(r"\d ?$", text[: span.start]) is not None or last in NUMBERS
    into = last in ("to", "into", "as", "with", "until", "in", "by", "many")
    from_ = last in ("from", "of", "replace", "change", "swap", "exchange")
    found = {
        "after its name": last in parameter.words,
        "before its name": bool(after) and after[0].lower() in parameter.words,
        "after in, of or from, for a folder": _is_folder(parameter) and holds,
        "after in, of or from, for a folder that is all a tool takes": _is_folder(parameter)
        and holds
        and len(own) == 1,
        "beside the word folder": _is_folder(parameter) and bool(folder & {"folder", "directory"}),
        "right after a number, for where it comes from": number and comes,
        "right after a number, for where it goes": number and goes,
        "after to, in, as, with or many, for where it goes": into and goes,
        "after to, in, as, with or many, for where it comes from": into and comes,
        "after from or of, for where it comes from": from_ and comes,
    }
    return {name for name, holds in found.items() if holds}


def _is_folder(parameter: Parameter) -> bool:
    return bool((parameter.words | parameter.about) & {"folder", "directory"})


def _of_form(parameter: Parameter, span: Span) -> set[str]:
    """What the form of a span says for a parameter."""
    on: set[str] = set()
    kinds = {_kind(each) for each in parameter.kinds}
    if _kind(span.kind) in kinds:
        on.add("its kind")
    elif kinds and span.kind != "quoted":
        folder = span.kind == "word" and _is_folder(parameter)
        on |= set() if folder else {"another kind"}
    types = {"number": {"number", "integer", "string"}, "numbers": {"array"}}
    fits = types.get(span.kind, {"string"})
    if isinstance(span.value, float) and parameter.types == frozenset({"integer"}):
        fits = set()
    on.add("its type" if not parameter.types or fits & parameter.types else "another type")
    if any(stem(str(each)) == stem(str(span.value)) for each in parameter.options):
        on.add("an option")
    plain = not kinds and "string" in parameter.types
    if plain and span.kind in _FORMS:
        on.add(_FORMS[span.kind])
    if parameter.words & {"folder", "directory"} and re.search(r"\w\.\w+$|\*", str(span.value)):
        on.add("a file, for a folder")
    if span.kind == "word":
        on.add("a single word")
        on |= {"a word, for a folder"} if _is_folder(parameter) else set()
        on |= {"a word, for one of a list"} if parameter.options else set()
    return on


_FORMS = {
    "quoted": "quoted, for a text", "clause": "a clause, for a text",
    "number": "a number, for a text", "numbers": "a number, for a text",
    "name": "a name, for a text",
}  # fmt: skip


def _kind(kind: str) -> str:
    return _SAME.get(kind, kind)


def stem(text: str) -> str:
    return text.lower().removesuffix("s")


def overlap(a: ArgumentValue, b: ArgumentValue) -> bool:
    if a.span is None or b.span is None:
        return a.node is not None and a.node == b.node
    return a.span.start < b.span.end and b.span.start < a.span.end


def typed(value: object, parameter: Parameter) -> object:
    """A value as the parameter's type has it."""
    if isinstance(value, (int, float)) and parameter.types == frozenset({"string"}):
        return str(value)
    if parameter.options and isinstance(value, str):
        return next((o for o in parameter.options if stem(str(o)) == stem(value)), value)
    return value


def equal(made: object, wanted: object) -> bool:
    """Whether a value is the one that was wanted, whatever its case and type."""
    if references(wanted) or references(made):
        return references(made) == references(wanted)
    alike = isinstance(made, bool) is isinstance(wanted, bool)  # to Python, True is 1
    told = str(made).strip().lower() == str(wanted).strip().lower()
    return told or (alike and made == wanted)
