"""Whether a plan takes what its request names, each file and address for the step it is named for.

The trained planner copies arguments from a request and may give the file that is to be read to the
tool that deletes. `misread` reads the request once more, in another way, for plans with side
effects: it splits it into clauses, and looks in each for a tool's verb and for names (what has a
point, a slash, a star or an at sign, and what stands in quotes). It is strict, and wrong on the
side of declining: `consent.py` asks it, and tells the user.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from tutelage.orchestration.plan.dag import Plan, references
from tutelage.tools.tool import Tool

_NAME = re.compile(
    r"(?<!\w)'([^'\n]{1,400})'(?!\w)|\"([^\"\n]{1,400})\"|[“„«]([^”“»\n]{1,400})[”“»]|`([^`\n]{1,400})`"
    r"|(https?://[^\s'\"<>]*[\w/])|([^\s,;:!?'\"“”„«»()\[\]<>`]*[./\\~*@][^\s,;:!?'\"“”„«»()\[\]<>`]*)"
)
_MARKED = re.compile(r"[./\\~*@]")
_NO_NAME = re.compile(
    r"[-+−$€£]?\d[\d.,/:*+x-]*%?|(?:[a-z]\.)+[a-z]?|[^\w]*|etc|and/or", re.IGNORECASE
)
_BREAK = re.compile(r"[.!?;]\s|,|\b(?:and|then|or|but|after|before|plus|while)\b|&", re.IGNORECASE)
_FILLER = re.compile(
    r"\W*(?:(?:please|kindly|can|could|would|will|you|now|also|just|i|we|want|need|like|to|so|hey|hi|hello"
    r"|ok|okay|and|then|next|finally|first|afterwards|that|d)\b[\W]*){0,12}",
    re.IGNORECASE,
)
_MORE = re.compile(
    r"(?:[\W_]*(?:(?:the|both|my|file|files|note|notes|of)\b)?){0,6}[\W_]*"
    r"(?:\b(?:to|into|in|from|out of|onto|over to|there)\b.*)?",
    re.IGNORECASE | re.DOTALL,
)
"""A clause of names alone, or with where they are or go, which goes on with the list before it."""
_BACK = re.compile(r"\b(?:it|them|this|that|those|these|both|its|there)\b", re.IGNORECASE)
_NO_VERBS = frozenset(
    ["a", "an", "the", "this", "how", "what", "which", "where", "when", "if", "all", "one"]
)
_FROM = re.compile(r"\b(?:source|src|old|from|origin)", re.IGNORECASE)
_INTO = re.compile(r"(?:\b|_)(?:to|into|as)\s*$", re.IGNORECASE)
MOST = 4000
"""Characters of a request that is read."""


@dataclass(slots=True)
class _Clause:
    """A part of a request: the tools that its verb names, and what it names."""

    tools: frozenset[str]
    names: list[str] = field(default_factory=list[str])


def names_of(request: str) -> list[tuple[int, int, str]]:
    """What a request names, with where it stands: files, paths, addresses, what is in quotes."""
    found: list[tuple[int, int, str]] = []
    for match in _NAME.finditer(request):
        group = match.lastindex or 0
        text = match[group] if group <= 5 else match[group].rstrip(".…")
        sure = group <= 5 or (_MARKED.search(text) and not _NO_NAME.fullmatch(text))
        if text.strip() and sure:
            found.append((match.start(), match.start(group) + len(text), text))
    return found


def verb(text: str) -> str:
    """The first word of a name or a description, which says what a tool does."""
    found = re.match(r"[^\W_]+?(?=[\W_A-Z]|$)", text)
    word = "" if found is None else found[0].lower()
    return "" if word in _NO_VERBS else word


def misread(plan: Plan, changing: Sequence[int], tools: Mapping[str, Tool]) -> str:
    """Why a plan, whose nodes `changing` have side effects, is not what its request asks for; the
    empty text where nothing speaks against it."""
    request = plan.instruction
    if len(request) > MOST:
        return f"has {len(request):,} characters, of which {MOST:,} are read"
    names = names_of(request)
    takes = [_taken(node.arguments, names) for node in plan.nodes]
    for _, _, name in names:
        if not any(name in taken for taken in takes):
            return f"names {name!r}, and no call of the plan takes it"
    clauses = list(_clauses(request, names, tools))
    for clause in clauses:
        if reason := _unserved(clause, plan, takes):
            return reason
    for index in changing:
        reason = _misplaced(index, clauses, plan, takes) or _turned(
            request, names, plan, index, takes
        )
        if reason:
            return reason
    return ""


def _taken(arguments: object, names: Sequence[tuple[int, int, str]]) -> set[str]:
    texts = list(_texts(arguments))
    return {
        name
        for _, _, name in names
        if any(re.search(_bounded(name), text, re.IGNORECASE) for text in texts)
    }


def _bounded(name: str) -> str:
    """A name in a text, not as a part of another one; a folder may stand before a file alone."""
    before = r"(?<![\w.~\\-])" if "/" not in name else r"(?<![\w./~\\-])"
    return rf"{before}{re.escape(name)}(?![\w/\\-]|\.\w)"


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in cast("Mapping[str, object]", value).values():
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in cast("Sequence[object]", value):
            yield from _texts(each)


def _clauses(
    request: str, names: Sequence[tuple[int, int, str]], tools: Mapping[str, Tool]
) -> Iterator[_Clause]:
    """The clauses of a request; one that is names alone belongs to that before it."""
    verbs, said = _verbs(tools), request
    for begin, end, _ in names:
        said = said[:begin] + "_" * (end - begin) + said[end:]
    clause: _Clause | None = None
    begin = 0
    ends = [(found.start(), found.end()) for found in _BREAK.finditer(said)]
    for stop, after in [*ends, (len(said), len(said))]:
        text = said[begin:stop]
        inside = [name for start, _, name in names if begin <= start < stop]
        begin = after
        if not text.strip():
            continue
        lead = _FILLER.match(text)
        head = re.match(r"[^\W_]+", text[lead.end() if lead else 0 :])
        known = verbs.get(head[0].lower(), set()) if head else set[str]()
        if clause is not None and inside and not known and _MORE.fullmatch(text):
            clause.names += inside
            continue
        if clause is not None and known and not inside and _BACK.search(text):
            inside = list(clause.names)
        if clause is not None:
            yield clause
        clause = _Clause(frozenset(known), inside)
    if clause is not None:
        yield clause


def _verbs(tools: Mapping[str, Tool]) -> Mapping[str, set[str]]:
    """The tools by the verbs that they are named and described by: of tools without side effects
    where one alone has the verb."""
    verbs: dict[str, set[str]] = {}
    for name, tool in tools.items():
        for word in {verb(name), verb(tool.description)} - {""}:
            verbs.setdefault(word, set()).add(name)
    return {
        word: found
        for word, found in verbs.items()
        if len(found) == 1 or all(tools[name].destructive for name in found)
    }


def _unserved(clause: _Clause, plan: Plan, takes: Sequence[set[str]]) -> str:
    """Why the plan does not do what a clause asks for by the verb of a tool."""
    if not clause.tools or not clause.names:
        return ""
    own = [k for k, node in enumerate(plan.nodes) if node.tool in clause.tools]
    if not own:
        return f"asks for {' or '.join(sorted(clause.tools))}, and no call of the plan does that"
    fed = {k for node in own for k in (node, *_feeding(plan, node))}
    for name in clause.names:
        if not any(name in takes[k] for k in fed):
            return f"names {name!r} for {' or '.join(sorted(clause.tools))}, and the plan does not"
    return ""


def _misplaced(
    index: int, clauses: Sequence[_Clause], plan: Plan, takes: Sequence[set[str]]
) -> str:
    """Why a call with side effects takes a name that stands elsewhere, or too early."""
    tool = plan.nodes[index].tool
    asked = [k for k, clause in enumerate(clauses) if tool in clause.tools]
    unknown = [k for k, clause in enumerate(clauses) if not clause.tools and clause.names]
    allowed = asked or unknown
    for name in takes[index]:
        place = next((k for k in allowed if name in clauses[k].names), None)
        if place is None or (not asked and len(unknown) > 1):
            return f"does not say clearly that {name!r} is for {tool}"
        for other, taken in enumerate(takes):
            earlier = any(
                name in clauses[k].names
                and plan.nodes[other].tool in (clauses[k].tools or {plan.nodes[other].tool})
                for k in range(place)
            )
            if other != index and name in taken and earlier and other not in _before(plan, index):
                return f"wants {plan.nodes[other].tool} of {name!r} before {tool}"
    return ""


def _turned(
    request: str,
    names: Sequence[tuple[int, int, str]],
    plan: Plan,
    index: int,
    takes: Sequence[set[str]],
) -> str:
    """Why a call takes for its goal what is the source, or the other way round."""
    goals = {name for begin, _, name in names if _INTO.search(request[:begin].rstrip("'\"“„«` "))}
    if not goals:
        return ""
    for key, value in plan.nodes[index].arguments.items():
        own = _taken(value, names)
        if _FROM.search(key) and own and own <= goals:
            return f"names {min(own)!r} as the goal, and the plan takes it for {key!r}"
    if takes[index] and not takes[index] & goals:
        fed = set[str]().union(*(takes[k] for k in _feeding(plan, index)))
        if fed & goals:
            return f"names {min(fed & goals)!r} as the goal, and the plan reads it"
    return ""


def _feeding(plan: Plan, index: int) -> set[int]:
    """The nodes whose results a node takes, those of its parents too."""
    found: set[int] = set()
    left = [index]
    while left:
        for parent in references(plan.nodes[left.pop()].arguments):
            if parent not in found:
                found.add(parent)
                left.append(parent)
    return found


def _before(plan: Plan, index: int) -> set[int]:
    """The nodes that have ended before a node starts."""
    found: set[int] = set()
    left = [index]
    while left:
        for parent in plan.dependencies[left.pop()]:
            if parent not in found:
                found.add(parent)
                left.append(parent)
    return found
