"""Arguments by copying: which span of a request, or which earlier result, each parameter gets.

Candidates are the spans of the request, paths that a tool's description lists, and references to
earlier nodes. Each pair of a parameter and a candidate has features; a logistic scorer, which
begins with weights that hold for any tools and is fitted on plans with arguments, says how likely
the pair is. Pairs are then taken from the most probable down, each parameter once and each part of
the request once for a node. Whether a value is the request's or an earlier result, and which, is
learned from the plans too (`origins.py`). A required parameter without a likely candidate is
missing, by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from tutelage.orchestration.data.workflows import Workflow
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool
from tutelage.orchestration.plan.dag import Node, Plan, renumbered
from tutelage.orchestration.plan.parameters import Parameter, parameters
from tutelage.orchestration.plan.spans import Span, spans
from tutelage.orchestration.plan.titles import titles
from tutelage.orchestration.planner.described import (
    as_written,
    without_capitals,
    without_quotes,
)
from tutelage.orchestration.planner.logistic import fit_logistic
from tutelage.orchestration.planner.origins import Origins
from tutelage.orchestration.planner.pairs import (
    FEATURES,
    GOES,
    ArgumentValue,
    candidates_of,
    equal,
    overlap,
    pair_features,
    stem,
    typed,
)

LEAST = 0.12
"""Probability below which a required parameter stays without."""
LEAST_OPTIONAL = 0.5
MOST = 400
"""Plans that it is fitted on at most."""
_PULL = 4.0
"""How strongly the fitted weights are held to those that they begin with."""
_PARTICULAR = frozenset(
    [
        "quoted",
        "url",
        "email",
        "path",
        "file",
        "pattern",
        "date",
        "expression",
        "number",
        "numbers",
        "unit",
    ]
)
"""Kinds of spans that are told to be used."""
_BARE = r"[\w-]+\.[A-Za-z]\w*|\*.+\*"
"""A file without its folder, or a pattern for it."""


@dataclass(frozen=True, slots=True)
class ArgumentScorer:
    """Weights of `FEATURES`, in their order, and where plans have their arguments from."""

    weights: tuple[float, ...] = tuple(FEATURES.values())
    origins: Origins = field(default_factory=Origins)

    def fill(self, plan: Plan, catalog: Catalog) -> tuple[Plan, tuple[str, ...]]:
        """The plan with arguments, and the required parameters that have none, as tool.name; where
        no parameter is known, as it is."""
        if not any(catalog[node.tool].schema for node in plan.nodes):
            return plan, ()
        text, found = _found(plan.instruction, catalog)
        nodes: list[Node] = []
        missing: list[str] = []
        for node in plan.nodes:
            tool = catalog[node.tool]
            own = parameters(tool)
            chosen = self._chosen(text, tool, own, found, node, nodes, catalog)
            chosen = _without_unsearched(chosen, own, nodes)
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
            leanings = _leanings(self.origins, candidates, node, parameter.name, before)
            rows = [
                pair_features(text, tool, own, parameter, each, node, before, catalog, lean)
                for each, lean in zip(candidates, leanings, strict=True)
            ]
            if rows:
                chances = torch.sigmoid(torch.tensor(rows, dtype=torch.float64) @ weights).tolist()
                least = LEAST if parameter.required else LEAST_OPTIONAL
                scored += [(-c, p, i) for i, c in enumerate(chances) if c >= least]
        values: dict[int, object] = {}
        taken: list[tuple[ArgumentValue, object]] = []
        for _, p, i in sorted(scored):
            mine, value = candidates[i], self._value(candidates[i], own[p], node, before)
            clash = [other for each, other in taken if overlap(mine, each)]
            if mine.node is not None and self.origins.takes(node, own[p].name, mine.node, before):
                # Two parts of one result are two values, where plans take both.
                clash = [other for other in clash if other == value]
            if p not in values and not clash:
                values[p] = value
                taken.append((mine, value))
        return {own[p].name: values[p] for p in sorted(values)}

    def _value(
        self, chosen: ArgumentValue, parameter: Parameter, node: Node, before: Sequence[Node]
    ) -> object:
        if chosen.node is None:
            return typed(chosen.value, parameter)
        source = before[chosen.node].tool
        return self.origins.referring(node, parameter.name, chosen.node, source)


def _leanings(
    origins: Origins, candidates: Sequence[ArgumentValue], node: Node, name: str,
    before: Sequence[Node], own: object = None,
) -> list[float]:  # fmt: skip
    """How much plans speak for each candidate of a parameter, by where it is from."""
    request, result = origins.leanings(node.tool, name, own)
    choices = origins.choices(node, name, before, own)
    return [request if each.node is None else result + choices[each.node] for each in candidates]


def with_searches(plan: Plan, catalog: Catalog) -> Plan:
    """The plan with a search first for each file that is named without its folder or by what it is,
    where a tool searches by a pattern: "read todo.txt" means the one that there is, in any folder,
    and so does "read my to-do list"."""
    finder = catalog.finder
    if finder is None:
        return plan
    wanted: list[str] = []
    for node in plan.nodes:
        own = parameters(catalog[node.tool])
        if any(each.takes_text for each in own):
            continue
        for each in own:
            value = node.arguments.get(each.name)
            bare = isinstance(value, str) and re.fullmatch(_BARE, value)
            if bare and "path" in each.kinds and not each.words & GOES and value not in wanted:
                wanted.append(str(value))
    if not wanted:
        return plan
    pattern = parameters(finder)[0].name
    first = [Node(finder.name, {pattern: v}, description=finder.description) for v in wanted]
    place = {i: i + len(wanted) for i in range(len(plan.nodes))}
    nodes = [
        replace(
            node,
            arguments=_searched(renumbered(node.arguments, place), wanted),
            after=tuple(place[i] for i in node.after),
        )
        for node in plan.nodes
    ]
    return Plan(plan.instruction, (*first, *nodes))


def _searched(arguments: Mapping[str, object], wanted: Sequence[str]) -> dict[str, object]:
    """Arguments with the result of a search in place of each name that was searched."""
    return {
        name: f"<node-{wanted.index(str(value))}>" if value in wanted else value
        for name, value in arguments.items()
    }


def _found(request: str, catalog: Catalog) -> tuple[str, list[Span]]:
    """A request as it is read, and its spans that may be arguments over a catalog."""
    text = without_capitals(without_quotes(request), catalog)
    found = [*spans(text), *(titles(text) if catalog.finder else ())]
    return text, as_written(found, text, request)


def _without_unsearched(
    chosen: dict[str, object], own: Sequence[Parameter], before: Sequence[Node]
) -> dict[str, object]:
    """The arguments without patterns in place of a path, where no search is to find it: it is where
    something goes, or is written, and no earlier node reads it."""
    taken = [value for node in before for value in node.arguments.values()]
    writes = any(each.takes_text for each in own)
    lost = {
        each.name
        for each in own
        if "path" in each.kinds
        and re.fullmatch(r"\*.+\*", str(chosen.get(each.name, "")))
        and (each.words & GOES or writes)
        and chosen[each.name] not in taken
    }
    return {name: value for name, value in chosen.items() if name not in lost}


def unused(plan: Plan, catalog: Catalog) -> float:
    """How many particulars of a request (dates, paths, numbers and the like) no argument has; 0
    where no parameter is known."""
    if not any(catalog[node.tool].schema for node in plan.nodes):
        return 0.0
    texts = [f"{each}".lower() for node in plan.nodes for each in node.arguments.values()]
    told = "\n".join(texts)
    left = [s for s in spans(plan.instruction) if s.kind in _PARTICULAR and not _told(s, told)]
    return float(len(left))


def _told(span: Span, told: str) -> bool:
    value = str(span.value).lower()
    return value in told or stem(value) in told


def fit_scorer(workflows: Sequence[Workflow], catalog: Catalog) -> ArgumentScorer:
    """A scorer fitted on plans that have arguments; the first weights without any."""
    rows: list[list[float]] = []
    right: list[float] = []
    plans = [w.plan for w in workflows if any(node.arguments for node in w.plan.nodes)]
    origins = Origins.of(plans)
    for plan in plans[:MOST]:
        text, found = _found(plan.instruction, catalog)
        for place, node in enumerate(plan.nodes):
            if not node.arguments or node.tool not in catalog:
                continue
            tool, before = catalog[node.tool], plan.nodes[:place]
            own = parameters(tool)
            bare = replace(node, arguments={}, after=node.parents)
            candidates = candidates_of(text, tool, found, before)
            for parameter in own:
                wanted = node.arguments.get(parameter.name)
                known = wanted if place else None
                leanings = _leanings(origins, candidates, bare, parameter.name, before, known)
                for each, lean in zip(candidates, leanings, strict=True):
                    pair = (text, tool, own, parameter, each, bare, before, catalog)
                    rows.append(pair_features(*pair, lean))
                    right.append(float(wanted is not None and equal(each.value, wanted)))
    if not 0 < sum(right) < len(right):
        return ArgumentScorer(origins=origins)
    first = torch.tensor(tuple(FEATURES.values()), dtype=torch.float64)
    pull = torch.full_like(first, _PULL)
    values = torch.tensor(rows, dtype=torch.float64)
    weights = fit_logistic(values, torch.tensor(right, dtype=torch.float64), pull, first)
    return ArgumentScorer(tuple(weights.tolist()), origins)
