"""Arguments by copying: which span of a request, or which earlier result, each parameter gets.

Candidates are the spans of the request, paths that a tool's description lists, and references to
earlier nodes. Each pair of a parameter and a candidate has features; a logistic scorer, which
begins with weights that hold for any tools and is fitted on plans with arguments, says how likely
the pair is. Pairs are then taken from the most probable down, each parameter once and each part of
the request once for a node. A required parameter without a likely candidate is missing, by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from tutelage.orchestration.data.workflows import Workflow
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool
from tutelage.orchestration.plan.dag import Node, Plan, references
from tutelage.orchestration.plan.parameters import Parameter, gives, parameters, templates
from tutelage.orchestration.plan.spans import Span, spans
from tutelage.orchestration.planner.logistic import fit_logistic

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
    "a path that an earlier node took": 0.0,
    "a word, for a folder": 2.0,
    "after in, of or from, for a folder": 2.0,
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
}
"""Names of the features, and the weights that they begin with."""
LEAST = 0.25
"""Probability below which a required parameter stays without."""
LEAST_OPTIONAL = 0.5
MOST = 300
"""Plans that it is fitted on at most."""
_PULL = 4.0
"""How strongly the fitted weights are held to those that they begin with."""
_GOES = frozenset(
    {"to", "destination", "target", "new", "second", "end", "into", "until", "output"}
)
_COMES = frozenset({"from", "source", "old", "first", "start", "origin", "begin", "input"})
_SAME = {"file": "path", "path": "path"}


@dataclass(frozen=True, slots=True)
class ArgumentValue:
    """Something that a parameter may get: a span, or the result of an earlier node."""

    value: object
    span: Span | None = None
    node: int | None = None
    listed: bool = False


@dataclass(frozen=True, slots=True)
class ArgumentScorer:
    """Weights of `FEATURES`, in their order."""

    weights: tuple[float, ...] = tuple(FEATURES.values())

    def fill(self, plan: Plan, catalog: Catalog) -> tuple[Plan, tuple[str, ...]]:
        """The plan with arguments, and the required parameters that have none, as tool.name; where
        no parameter is known, as it is."""
        if not any(catalog[node.tool].schema for node in plan.nodes):
            return plan, ()
        found = spans(plan.instruction)
        nodes: list[Node] = []
        missing: list[str] = []
        for node in plan.nodes:
            tool = catalog[node.tool]
            own = parameters(tool)
            chosen = self._chosen(plan.instruction, tool, own, found, node, nodes, catalog)
            nodes.append(replace(node, arguments=chosen))
            missing += [f"{tool.name}.{p.name}" for p in own if p.required and p.name not in chosen]
        return with_searches(Plan(plan.instruction, tuple(nodes)), catalog), tuple(missing)

    def _chosen(
        self, text: str, tool: CatalogTool, own: Sequence[Parameter], found: Sequence[Span],
        node: Node, before: Sequence[Node], catalog: Catalog,
    ) -> dict[str, object]:  # fmt: skip
        candidates = candidates_of(text, tool, found, before)
        weights = torch.tensor(self.weights, dtype=torch.float64)
        scored: list[tuple[float, int, int]] = []
        for p, parameter in enumerate(own):
            rows = [
                pair_features(text, tool, own, parameter, each, node, before, catalog)
                for each in candidates
            ]
            if rows:
                chances = torch.sigmoid(torch.tensor(rows, dtype=torch.float64) @ weights).tolist()
                least = LEAST if parameter.required else LEAST_OPTIONAL
                scored += [(-c, p, i) for i, c in enumerate(chances) if c >= least]
        values: dict[int, object] = {}
        taken: list[ArgumentValue] = []
        for _, p, i in sorted(scored):
            if p not in values and not any(_overlap(candidates[i], each) for each in taken):
                values[p] = candidates[i].value
                taken.append(candidates[i])
        return {own[p].name: _typed(values[p], own[p]) for p in sorted(values)}


def with_searches(plan: Plan, catalog: Catalog) -> Plan:
    """The plan with a search first for each file that is named without its folder, where a tool
    searches by a pattern: "read todo.txt" means the one that there is, in any folder."""
    finder = next((tool for tool in catalog.tools if _finds(tool)), None)
    if finder is None:
        return plan
    wanted: list[str] = []
    for node in plan.nodes:
        own = parameters(catalog[node.tool])
        if any(each.takes_text for each in own):
            continue
        for each in own:
            value = node.arguments.get(each.name)
            bare = isinstance(value, str) and re.fullmatch(r"[\w-]+\.[A-Za-z]\w*", value)
            if bare and "path" in each.kinds and not each.words & _GOES and value not in wanted:
                wanted.append(str(value))
    if not wanted:
        return plan
    pattern = parameters(finder)[0].name
    first = [Node(finder.name, {pattern: v}, description=finder.description) for v in wanted]
    moved = len(wanted)
    nodes = [
        replace(
            node,
            arguments={n: _moved(v, moved, wanted) for n, v in node.arguments.items()},
            after=tuple(i + moved for i in node.after),
        )
        for node in plan.nodes
    ]
    return Plan(plan.instruction, (*first, *nodes))


def _finds(tool: CatalogTool) -> bool:
    own = [each for each in parameters(tool) if each.required]
    return len(own) == 1 and own[0].kinds == frozenset({"pattern"}) and gives(tool) == "list"


def _moved(value: object, by: int, wanted: Sequence[str]) -> object:
    """An argument with its references moved, and a searched name as the result of its search."""
    if value in wanted:
        return f"<node-{wanted.index(str(value))}>"
    if isinstance(value, str) and references(value):
        return re.sub(r"<node-(\d+)>", lambda m: f"<node-{int(m[1]) + by}>", value)
    return value


def fit_scorer(workflows: Sequence[Workflow], catalog: Catalog) -> ArgumentScorer:
    """A scorer fitted on plans that have arguments; the first weights without any."""
    rows: list[list[float]] = []
    right: list[float] = []
    for workflow in [w for w in workflows if any(n.arguments for n in w.plan.nodes)][:MOST]:
        plan = workflow.plan
        found = spans(plan.instruction)
        for place, node in enumerate(plan.nodes):
            if not node.arguments or node.tool not in catalog:
                continue
            tool, before = catalog[node.tool], plan.nodes[:place]
            own = parameters(tool)
            bare = replace(node, arguments={}, after=node.parents)
            for parameter in own:
                wanted = node.arguments.get(parameter.name)
                for each in candidates_of(plan.instruction, tool, found, before):
                    rows.append(
                        pair_features(
                            plan.instruction, tool, own, parameter, each, bare, before, catalog
                        )
                    )
                    right.append(float(wanted is not None and _equal(each.value, wanted)))
    if not 0 < sum(right) < len(right):
        return ArgumentScorer()
    first = torch.tensor(tuple(FEATURES.values()), dtype=torch.float64)
    pull = torch.full_like(first, _PULL)
    values = torch.tensor(rows, dtype=torch.float64)
    weights = fit_logistic(values, torch.tensor(right, dtype=torch.float64), pull, first)
    return ArgumentScorer(tuple(weights.tolist()))


def candidates_of(
    text: str, tool: CatalogTool, found: Sequence[Span], before: Sequence[Node]
) -> list[ArgumentValue]:
    """What the parameters of a tool may get."""
    made = [ArgumentValue(span.value, span) for span in found]
    lowered = text.lower()
    for template in templates(tool):
        word = template.split("/")[1]
        where = lowered.find(word.removesuffix("s"))
        if where < 0:
            continue
        names = [s for s in found if s.kind == "name" and s.start > 0] or [None]
        for name in names if re.search(r"[A-Z]{2,}", template) else [None]:
            if name is None and re.search(r"[A-Z]{2,}", template):
                continue
            value = template if name is None else re.sub(r"[A-Z]{2,}", str(name.value), template)
            end = where + len(word)
            span = (
                Span("path", where, end, value)
                if name is None
                else replace(name, value=value, kind="path")
            )
            made.append(ArgumentValue(value, span, listed=True))
    return made + [ArgumentValue(f"<node-{i}>", node=i) for i in range(len(before))]


def pair_features(
    text: str, tool: CatalogTool, own: Sequence[Parameter], parameter: Parameter,
    candidate: ArgumentValue, node: Node, before: Sequence[Node], catalog: Catalog,
) -> list[float]:  # fmt: skip
    """The features of a pair of a parameter and a candidate, in the order of `FEATURES`."""
    on = {"constant"}
    if candidate.node is not None:
        on |= _of_result(parameter, candidate.node, node, before, catalog)
    elif candidate.span is not None:
        on |= _of_span(text, tool, own, parameter, candidate.span, before)
        if candidate.listed:
            on |= {"a path that the tool lists"}
    return [float(name in on) for name in FEATURES]


def _of_result(
    parameter: Parameter, source: int, node: Node, before: Sequence[Node], catalog: Catalog
) -> set[str]:
    on = {"a result"}
    kind = gives(catalog[before[source].tool])
    fits = (
        kind in parameter.kinds
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
    same = [s for s in spans(text) if _kind(s.kind) == _kind(span.kind)]
    if span in same and like.index(parameter) == same.index(span) and len(like) <= len(same):
        on.add("same place among its like")
    words = set(re.findall(r"[a-z]+", f"{tool.name} {tool.description}".replace("_", " ").lower()))
    if span.kind in ("word", "name") and str(span.value).lower() in words:
        on.add("a word of the tool")
    given = [value for each in before for value in each.arguments.values()]
    if any(_equal(span.value, value) for value in given):
        path = _kind(span.kind) == "path"
        on.add("a path that an earlier node took" if path else "taken by an earlier node")
    elif given:
        on.add("after what an earlier node took")
    return on


def _of_cues(text: str, own: Sequence[Parameter], parameter: Parameter, span: Span) -> set[str]:
    """What the words around a span say for a parameter."""
    lead = re.findall(r"[A-Za-z]+", text[max(0, span.start - 30) : span.start])
    after = re.findall(r"[A-Za-z]+", text[span.end : span.end + 20])
    last = lead[-1].lower() if lead else ""
    last = lead[-2].lower() if last in ("the", "a", "my", "file") and len(lead) > 1 else last
    writes = any(each.takes_text for each in own) and "path" in parameter.kinds
    goes, comes = bool(parameter.words & _GOES) or writes, bool(parameter.words & _COMES)
    number = re.search(r"\d ?$", text[: span.start]) is not None
    into = last in ("to", "into", "as", "with", "until", "in", "by", "many")
    from_ = last in ("from", "of", "replace", "change", "for")
    found = {
        "after its name": last in parameter.words,
        "before its name": bool(after) and after[0].lower() in parameter.words,
        "after in, of or from, for a folder": _is_folder(parameter)
        and last in ("in", "of", "from", "inside", "to", "into"),
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
    if any(_stem(str(each)) == _stem(str(span.value)) for each in parameter.options):
        on.add("an option")
    plain = not kinds and "string" in parameter.types
    if plain and span.kind in _FORMS:
        on.add(_FORMS[span.kind])
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


def _stem(text: str) -> str:
    return text.lower().removesuffix("s")


def _overlap(a: ArgumentValue, b: ArgumentValue) -> bool:
    if a.span is None or b.span is None:
        return a.node is not None and a.node == b.node
    return a.span.start < b.span.end and b.span.start < a.span.end


def _typed(value: object, parameter: Parameter) -> object:
    """A value as the parameter's type has it."""
    if isinstance(value, (int, float)) and parameter.types == frozenset({"string"}):
        return str(value)
    if parameter.options and isinstance(value, str):
        return next((o for o in parameter.options if _stem(str(o)) == _stem(value)), value)
    return value


def _equal(made: object, wanted: object) -> bool:
    """Whether a value is the one that was wanted, whatever its case and type."""
    if references(wanted) or references(made):
        return references(made) == references(wanted)
    return str(made).strip().lower() == str(wanted).strip().lower()
