"""A SELECT that a plain question asks for, over tables that a tool's description lists.

Tables are read from texts such as "people(name, city, phone)". A question names a column, a
person, a place or a thing, or asks how many or how much; what is not so plain has no query. It is
one argument that `planner/arguments.py` may give.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tutelage.orchestration.plan.catalog import CatalogTool
from tutelage.orchestration.plan.spans import Span, begins, spans

Tables = Mapping[str, tuple[str, ...]]
_TABLE = re.compile(r"\b([A-Za-z_]\w*)\(([A-Za-z_]\w*(?:, [A-Za-z_]\w*)+)\)")
_PEOPLE = ("name", "person", "customer", "buyer", "employee", "author", "user", "owner", "client")
_PLACES = ("city", "town", "place", "country", "location")
_AMOUNTS = ("amount", "price", "total", "cost", "value", "quantity", "salary", "budget")
_SPOKEN: Mapping[str, str] = {
    "phone": r"telephone|call|reach|ring|number",
    "birthday": r"born|birth|birthdate",
    "city": r"live|lives|living|where|town|home",
    "email": r"mail|write to",
    "amount": r"spend|spent|paid|pay|cost|worth",
    "price": r"cost|costs|expensive|cheap",
    "item": r"buy|buys|bought|order|ordered|purchase|purchased|what",
    "day": r"when|date",
    "date": r"when|day",
}
"""Words that speak of a column of that name."""
_DOES = r"buy|buys|bought|order|ordered|spend|spent|paid|purchase|purchased"
_THING = re.compile(rf"\b(?:{_DOES}) (?:any |the |some )?([a-z]+)\b")
_NO_THING = frozenset(
    [
        "a",
        "all",
        "altogether",
        "and",
        "anything",
        "at",
        "for",
        "from",
        "here",
        "in",
        "last",
        "lately",
        "most",
        "of",
        "on",
        "or",
        "since",
        "so",
        "the",
        "there",
        "this",
        "to",
        "total",
        "with",
    ]
)
_COUNTS = re.compile(r"\bhow many\b|\bnumber of\b|\bcount\b", re.IGNORECASE)
_SUMS = re.compile(r"\bhow much\b|\btotal\b|\baltogether\b|\bin all\b|\bsum\b", re.IGNORECASE)
_MOST = re.compile(r"\b(most expensive|biggest|largest|highest)\b", re.IGNORECASE)
_LEAST = re.compile(r"\b(cheapest|smallest|lowest|least)\b", re.IGNORECASE)
_MEAN = re.compile(r"\b(average|mean)\b", re.IGNORECASE)
_NO_NAME = re.compile(
    r"^(?:(?:what|which|who|where|when|how|please|can|could|would|is|are|do|does|did|tell|give|show|"
    r"find|look|i|list|count|in|on|the|add|get|hey|hi)\b[\s,]*)+",
    re.IGNORECASE,
)
"""Words at the beginning of a sentence that are in capitals for that reason."""


@dataclass(frozen=True, slots=True)
class _Named:
    """A value that a question names."""

    text: str
    lead: str
    """The word before it."""


def tables_of(tool: CatalogTool) -> Tables:
    """The tables that a description lists with their columns."""
    found = _TABLE.findall(tool.description)
    return {name: tuple(columns.split(", ")) for name, columns in found}


def query_for(text: str, tables: Tables) -> str | None:
    """The query of a plain question, or None."""
    named = _named(text)
    scored = sorted(tables, key=lambda table: -_score(text, table, tables[table], named))
    if not scored:
        return None
    table = scored[0]
    columns = tables[table]
    where: dict[str, str] = {}
    for each in named:
        column = _column_of(each, columns)
        if column is None or column in where:
            return None
        where[column] = each.text
    if "item" in columns and (thing := _THING.search(text)) and thing[1] not in _NO_THING:
        where["item"] = thing[1]
    spoken = [c for c in columns if c not in where and _speaks(text, c)]
    asked = _asked(text, table, columns, where, spoken)
    if asked is None:
        return None
    conditions = " AND ".join(_condition(column, value) for column, value in where.items())
    return f"SELECT {asked} FROM {table}" + (f" WHERE {conditions}" if where else "")


def _condition(column: str, value: str) -> str:
    text = value.replace("'", "''")
    # A first name alone stands for who has it.
    whole = column not in _PEOPLE or " " in value
    return f"{column} = '{text}'" if whole else f"{column} LIKE '{text}%'"


def _asked(
    text: str, table: str, columns: Sequence[str], where: Mapping[str, str], spoken: Sequence[str]
) -> str | None:
    """What is selected."""
    amount = next((c for c in columns if c in _AMOUNTS), None)
    person = next((c for c in columns if c in _PEOPLE), None)
    about = bool(where) or re.search(rf"\b{re.escape(table)}\b", text, re.IGNORECASE)
    if _COUNTS.search(text) and not re.search(r"\bphone number\b", text):
        return "count(*)" if about else None
    if amount and (about or re.search(rf"\b{_stem(table)}\w*\b", text, re.IGNORECASE)):
        for form, call in ((_MOST, "max"), (_LEAST, "min"), (_MEAN, "avg"), (_SUMS, "sum")):
            if form.search(text):
                return f"{call}({amount})"
    if not where:
        return None
    if person and person not in where and re.search(r"\bwho\b|\beveryone\b|\bpeople\b", text, re.I):
        return person
    exact = [c for c in spoken if re.search(rf"\b{_stem(c)}", text, re.IGNORECASE)]
    chosen = exact or list(spoken)
    return ", ".join(chosen) if len(chosen) in (1, 2) else None


def _named(text: str) -> list[_Named]:
    found: list[_Named] = []
    for span in spans(text):
        if span.kind not in ("name", "quoted") or _first_word(text, span):
            continue
        value = re.sub(r"['’]s?$", "", _NO_NAME.sub("", str(span.value)))
        if not value or not value[0].isupper():
            continue
        start = text.find(value, span.start)
        lead = re.findall(r"\w+", text[:start])
        found.append(_Named(value, lead[-1].lower() if lead else ""))
    return found


def _first_word(text: str, span: Span) -> bool:
    """Whether a name is the one word in capitals that begins a sentence."""
    single = not re.search(r"\s|['’]", str(span.value))
    return single and begins(text, span)


def _column_of(value: _Named, columns: Sequence[str]) -> str | None:
    """The column that a named value stands in."""
    people = [c for c in columns if c in _PEOPLE]
    places = [c for c in columns if c in _PLACES]
    placed = value.lead in ("in", "from", "at", "near") and " " not in value.text
    ordered = [*places, *people] if placed else [*people, *places]
    return ordered[0] if ordered else None


def _speaks(text: str, column: str) -> bool:
    words = rf"\b(?:{_stem(column)}\w*|{_SPOKEN.get(column, _stem(column))})\b"
    return re.search(words, text, re.IGNORECASE) is not None


def _score(text: str, table: str, columns: Sequence[str], named: Sequence[_Named]) -> float:
    """How much a question speaks of a table."""
    score = 2.0 * bool(re.search(rf"\b{_stem(table)}\w*\b", text, re.IGNORECASE))
    score += sum(_speaks(text, c) for c in columns if c not in _PEOPLE)
    score += any(c in _AMOUNTS for c in columns) * bool(re.search(rf"\b(?:{_DOES})\b", text, re.I))
    placed = [n for n in named if n.lead in ("in", "from", "at", "near")]
    return score + bool(placed) * any(c in _PLACES for c in columns)


def _stem(word: str) -> str:
    return re.escape(word.lower().removesuffix("s"))


def query_span(text: str, tool: CatalogTool) -> Span | None:
    """The query of a request as a span over all of it; None without one."""
    made = query_for(text, tables_of(tool))
    return None if made is None else Span("sql", 0, len(text), made)
