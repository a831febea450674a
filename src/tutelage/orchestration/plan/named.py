"""Whether a plan takes what its request names, each file and address for the step it is named for.

The trained planner copies arguments from a request and may give the file that is to be read to the
tool that deletes. `misread` reads the request once more, in another way, for plans with side
effects: it splits it into clauses, and looks in each for a tool's verb and for names (what has a
point, a slash, a star or an at sign, and what stands in quotes). It is strict, and wrong on the
side of declining: `consent.py` asks it, and tells the user.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    r"[-+−$€£]?\d+(?:[.,/:*+x-]\d+)*(?:%|[a-z€$£]{1,3})?|(?:e\.g|i\.e|a\.m|p\.m)\.?|\W*|etc|and/or|he/she|w/o",
    re.IGNORECASE,
)
_BREAK = re.compile(
    r"[.!?;:]\s|,|[()\n]|\s[-–—]\s|\b(?:and|then|or|but|after|before|plus|while)\b|&", re.IGNORECASE
)
_FILLER = re.compile(
    r"\W*(?:(?:please|kindly|can|could|would|will|you|now|also|just|i|we|want|need|like|to|so|hey|hi|hello"
    r"|ok|okay|and|then|next|finally|first|afterwards|that|d)\b[\W]*){0,12}",
    re.IGNORECASE,
)
_LIST = frozenset(
    ["the", "both", "my", "a", "file", "files", "folder", "note", "notes", "of", "please"]
)
_WHERE = frozenset(["to", "into", "in", "from", "out", "onto", "over", "there"])
_BACK = re.compile(r"\b(?:it|them|this|that|those|these|both|its|there)\b", re.IGNORECASE)
_NO_VERBS = frozenset(
    ["a", "an", "the", "this", "how", "what", "which", "where", "when", "if", "all", "one"]
)
_KIND = r"(?: (?:the|a|my|be|name|file|folder|note))*\s*$"
_FROM = re.compile(r"(?:^|_)(?:source|src|old|from|origin)", re.IGNORECASE)
"""Parameters that take what is there before."""
_INTO = re.compile(rf"\b(?:to|into|in|as|onto|over|name|called|named){_KIND}", re.IGNORECASE)
_SOURCE = re.compile(rf"(?<!\brid )\b(?:of|from|with){_KIND}", re.IGNORECASE)
_PART = re.compile(rf"(?<!\brid )\b(?:of|from|in){_KIND}", re.IGNORECASE)
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
        text = match[group] if group <= 5 else match[group].rstrip(".…").rstrip("/")
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
    goals, sources, parts = (_roles(request, names, form) for form in (_INTO, _SOURCE, _PART))
    for clause in clauses:
        if reason := _unserved(clause, plan, takes):
            return reason
    for index in changing:
        reason = _misplaced(index, clauses, plan, takes, goals)
        if reason := reason or _turned(plan, index, takes, goals, sources):
            return reason
        own = takes[index]
        if own and len(plan.nodes[index].arguments) == 1 and own <= parts:
            tool = plan.nodes[index].tool
            return f"speaks of something in {min(own)!r}, and the plan gives {tool} all of it"
    return _unpaired(plan, changing, takes)


def _taken(arguments: object, names: Sequence[tuple[int, int, str]]) -> set[str]:
    return {name for _, _, name in names if _mentions(arguments, name)}


def _mentions(arguments: object, name: str) -> bool:
    form = re.compile(_bounded(name), re.IGNORECASE)
    return any(form.search(text) for text in texts_in(arguments))


def _bounded(name: str) -> str:
    """A name in a text, not as a part of another one; a folder may stand before a file alone."""
    before = r"(?<![\w.~\\-])" if "/" not in name else r"(?<![\w./~\\-])"
    return rf"{before}{re.escape(name)}(?![\w/\\-]|\.\w)"


def texts_in(value: object) -> Iterator[str]:
    """The texts of an argument, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in cast("Mapping[str, object]", value).values():
            yield from texts_in(each)
    elif isinstance(value, list | tuple):
        for each in cast("Sequence[object]", value):
            yield from texts_in(each)


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
        if clause is not None and inside and not known and _lists(text):
            clause.names += inside
            continue
        if clause is not None and known and not inside and _BACK.search(text):
            inside = list(clause.names)
        if clause is not None:
            yield clause
        clause = _Clause(frozenset(known), inside)
    if clause is not None:
        yield clause


def _lists(text: str) -> bool:
    """Whether a clause is names alone, or with where they are or go: it continues the list before
    it. Names are `_`."""
    for word in re.findall(r"[^\W_]+", text.lower()):
        if word not in _LIST:
            return word in _WHERE
    return True


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
    index: int, clauses: Sequence[_Clause], plan: Plan, takes: Sequence[set[str]], goals: set[str]
) -> str:
    """Why a call with side effects takes a name that stands elsewhere, or too early."""
    node = plan.nodes[index]
    asked = [k for k, clause in enumerate(clauses) if node.tool in clause.tools]
    fed = {plan.nodes[k].tool for k in _feeding(plan, index)}
    unknown = [k for k, each in enumerate(clauses) if each.names and not each.tools]
    if not asked or not any(clauses[k].names for k in asked):
        # Where its verb has no name, as in "write milk and eggs to a.txt", a goal is its own.
        own = [k for k in unknown if not asked or goals.intersection(clauses[k].names)]
        if asked and len(node.arguments) < 2:
            own = []
        asked += own + [k for k, each in enumerate(clauses) if fed & each.tools]
        if len(own) > 1:
            return f"does not say clearly what is for {node.tool}"
    for name in takes[index]:
        place = next((k for k in asked if name in clauses[k].names), None)
        if place is None:
            return f"does not say clearly that {name!r} is for {node.tool}"
        for other in range(len(plan.nodes)):
            reads = takes[other].union(*(takes[k] for k in _feeding(plan, other)))
            tool = plan.nodes[other].tool
            earlier = any(
                name in each.names and tool in (each.tools or {tool}) for each in clauses[:place]
            )
            if other != index and name in reads and earlier and other not in _before(plan, index):
                return f"wants {tool} of {name!r} before {node.tool}"
    return ""


def _roles(request: str, names: Sequence[tuple[int, int, str]], form: re.Pattern[str]) -> set[str]:
    """The names that a word such as "to" or "of" stands right before."""
    return {
        name for begin, _, name in names if form.search(request[:begin].rstrip("'\"“„«` ") + " ")
    }


def _turned(
    plan: Plan, index: int, takes: Sequence[set[str]], goals: set[str], sources: set[str]
) -> str:
    """Why a call takes for its goal what is the source, the other way round, or a whole file where
    a part of it is meant."""
    node, own = plan.nodes[index], takes[index]
    for key, value in node.arguments.items():
        here = {name for name in own if _mentions(value, name)}
        if _FROM.search(key) and here and (here <= goals or here <= sources):
            return f"names {min(here)!r} as a goal or a part, and the plan takes it for {key!r}"
    fed = set[str]().union(*(takes[k] for k in _feeding(plan, index)))
    if own and not own & goals and (fed & goals or (own <= sources and fed - sources)):
        return f"does not say clearly that {min(own)!r} is for {node.tool}"
    return ""


def _unpaired(plan: Plan, changing: Sequence[int], takes: Sequence[set[str]]) -> str:
    """Why nobody can tell which names of several calls of one tool belong together."""
    for index in changing:
        tool = plan.nodes[index].tool
        alike = [k for k in changing if plan.nodes[k].tool == tool and len(takes[k]) > 1]
        if len(alike) > 1 and index in alike:
            return f"has several pairs for {tool}"
    return ""


def _feeding(plan: Plan, index: int) -> set[int]:
    """The nodes whose results a node takes, those of its parents too."""
    return _reached(index, lambda node: references(plan.nodes[node].arguments))


def _before(plan: Plan, index: int) -> set[int]:
    """The nodes that have ended before a node starts."""
    return _reached(index, lambda node: plan.nodes[node].parents)


def _reached(index: int, parents: Callable[[int], Sequence[int]]) -> set[int]:
    found: set[int] = set()
    left = [index]
    while left:
        more = set(parents(left.pop())) - found
        found |= more
        left += more
    return found
