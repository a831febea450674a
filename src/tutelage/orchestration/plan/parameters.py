"""What a tool's parameter takes, as its JSON schema tells: its type, and kinds of text that fit.

The kinds come from the schema's format and enum, from the examples in its description ("such as
notes/todo.txt"), and from its name. `spans.py` has the kinds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from tutelage.orchestration.plan.spans import spans

if TYPE_CHECKING:
    from tutelage.orchestration.plan.catalog import CatalogTool

_FORMATS = {"date": "date", "date-time": "date", "email": "email", "uri": "url", "url": "url"}
_NAMES: Mapping[str, tuple[str, ...]] = {
    "path": ("path", "file", "filename", "folder", "directory", "source", "destination"),
    "pattern": ("pattern", "glob"),
    "date": ("date", "day", "birthday", "checkin", "checkout", "departure"),
    "url": ("url", "link", "website"),
    "unit": ("unit", "units", "currency"),
    "email": ("email", "recipient", "mail"),
    "expression": ("expression", "formula", "equation"),
    "name": ("name", "city", "person", "place", "location", "country", "destination", "origin"),
}
_SPOKEN: Mapping[str, str] = {
    "weather": r"weather|forecast|temperature|warm|cold|hot|rain\w*|snow\w*|sun|sunny|umbrella|"
               r"coat|degrees|wind\w*",
    "news": r"news|headlines?",
    "prices": r"prices?|price list",
    "events": r"events?|programme",
}  # fmt: skip
"""Words that speak of a page of that name, beside the name itself."""
_TEXTS = ("text", "content", "body", "message", "document", "input", "query", "sentence", "data")
"""Names of parameters that take any text."""
_PLAIN = {"word", "clause", "unit"}
"""Kinds that an example tells nothing by."""
_EXAMPLES = re.compile(r"\b(?:such as|for example|e\.g\.|like)\s+(.+?)(?:\.\s|\.?$)", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a tool."""

    name: str
    types: frozenset[str]
    """Types of JSON; empty where any may be given."""
    required: bool
    kinds: frozenset[str]
    """Kinds of spans that its schema speaks of; empty where it does not tell."""
    words: frozenset[str]
    """Of its name."""
    about: frozenset[str]
    """Of its description."""
    options: tuple[object, ...] = ()
    """Values that are allowed, or examples that are single words."""

    @property
    def takes_text(self) -> bool:
        """Whether any text fits, such as another tool's result."""
        return bool(self.words & set(_TEXTS)) and "string" in self.types


def parameters(tool: CatalogTool) -> tuple[Parameter, ...]:
    """The parameters of a tool, in their order; none where its schema is not known."""
    fields = cast("Mapping[str, Any]", tool.schema.get("properties", {}))
    required = set(tool.schema.get("required", ()))
    found = [
        _parameter(name, cast("Mapping[str, Any]", field), name in required)
        for name, field in fields.items()
        if isinstance(field, Mapping)
    ]
    # Units, languages and the like: what one parameter lists as examples fits its like.
    listed = [(each.words, each.options) for each in found if each.options]
    return tuple(
        replace(each, options=next((o for words, o in listed if words & each.words), ()))
        if not each.options and not each.kinds
        else each
        for each in found
    )


def _parameter(name: str, field: Mapping[str, Any], required: bool) -> Parameter:
    words = _words(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name))
    text = str(field.get("description", ""))
    examples = _examples(text) + [str(each) for each in field.get("examples", ())]
    kinds = {kind for kind, names in _NAMES.items() if words & set(names)}
    found = {span.kind for example in examples for span in spans(example)} - _PLAIN
    types = _types(field)
    if types == frozenset({"string"}):
        found -= {"number", "numbers"}
    if found - {"name"}:
        kinds = found - {"name"} if "number" not in found else found | kinds
    if isinstance(field.get("format"), str) and field["format"] in _FORMATS:
        kinds = {_FORMATS[field["format"]]}
    if kinds & {"path", "file"} and "url" not in kinds:
        kinds |= {"path", "file"}
    if any(example.startswith("SELECT ") for example in examples):
        kinds = {"sql"}
    if types and types <= {"integer", "number", "array"}:
        kinds = {"number"} | ({"numbers"} if "array" in types else set())
        kinds = kinds if types != frozenset({"array"}) else {"numbers"}
    options = tuple(field.get("enum", ())) or _options(examples)
    return Parameter(
        name, types, required, frozenset(kinds), words, frozenset(_words(text)), options
    )


def _examples(text: str) -> list[str]:
    return [found[1] for found in _EXAMPLES.finditer(text)]


def _options(examples: Sequence[str]) -> tuple[str, ...]:
    """Single words that are listed as examples."""
    listed = [part for text in examples for part in re.split(r",\s*(?:or\s+)?|\s+or\s+", text)]
    plain = tuple(part for part in listed if re.fullmatch(r"[A-Za-z]+", part))
    return plain if len(plain) > 1 else ()


def _types(field: Mapping[str, Any]) -> frozenset[str]:
    found: set[str] = set()
    for each in (field, *field.get("anyOf", ()), *field.get("oneOf", ())):
        kind = each.get("type") if isinstance(each, Mapping) else None
        found |= {kind} if isinstance(kind, str) else set(kind or ())
    return frozenset(found)


def _words(text: str) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORD.findall(text.replace("_", " ")))


def gives(tool: CatalogTool) -> str:
    """What kind of result a tool's description promises: date, number, numbers, list, path or
    text."""
    text = tool.description.lower()
    first = re.split(r"[.;]", text)[0]
    if re.match(r"(today|the date|current date)", text):
        return "date"
    if re.match(r"(the )?numbers? (in|of)|list the numbers|extract (all )?numbers", text):
        return "numbers"
    if re.search(r"\bas a list\b|\blist of\b", text):
        return "list"
    if re.match(r"(count|evaluate|calculate|compute|add up|sum|how many|convert)", text):
        return "number"
    if "path" in text and "return" in text:
        return "path"
    return "text" if re.search(r"\b(read|text|content|page|lines|words)\b", first) else "other"


def finds(tool: CatalogTool) -> bool:
    """Whether a tool searches by a pattern, and lists what it finds."""
    own = [each for each in parameters(tool) if each.required]
    return len(own) == 1 and own[0].kinds == frozenset({"pattern"}) and gives(tool) == "list"


def templates(tool: CatalogTool) -> tuple[str, ...]:
    """Paths that a description lists, such as /weather/CITY, with a name in capitals."""
    found = re.findall(r"(?<![\w/])/[a-z]+(?:/[A-Z]{2,})?(?![\w/])", tool.description)
    return tuple(dict.fromkeys(found))


def spoken_of(template: str, text: str) -> tuple[int, int] | None:
    """Where a text speaks of what a listed path is for; None where it does not."""
    word = template.split("/")[1]
    words = _SPOKEN.get(word, rf"{re.escape(word.removesuffix('s'))}s?")
    found = re.search(rf"\b(?:{words})\b", text, re.IGNORECASE)
    return None if found is None else found.span()
