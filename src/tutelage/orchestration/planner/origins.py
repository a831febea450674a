"""Where plans take an argument's value from: the request, or the result of an earlier node.

Counted by tool and parameter over the plans that a planner learns from, for nodes that had a
choice: of what runs first every argument is the request's. `pairs.py` makes a feature of it, and
what is a part of a result in the plans (`<node-0>.title`) is that part again. An argument that
has words or numbers beside a reference is of its own request, and no form for others. Of several
results an argument takes the one of the tool that it takes it from in the plans, and among equal
tools the one in the same place: the first price and the second are not the same argument.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from tutelage.orchestration.plan.arguments import STEP
from tutelage.orchestration.plan.dag import Node, Plan, references, renumbered

_RESULT = re.compile(rf"<node-\d+>(?:{STEP})*")
_SMOOTHING = 0.5
_BOUND = 3.0
"""What counts alone may say at most, as a log-odds: words of a request may say otherwise."""


@dataclass(frozen=True, slots=True)
class Origins:
    """Counts for `tool.parameter`, for `tool.parameter<source` the form of the reference, and for
    `tool.parameter<source place` how often it is the one that is meant."""

    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """Values of the request, and results."""
    forms: Mapping[str, object] = field(default_factory=dict[str, object])
    """The most frequent argument that is the result of a source, which is node 0 there, and nothing
    else; none where it is the whole result."""
    sources: Mapping[str, int] = field(default_factory=dict[str, int])
    """How often an argument names the node of that tool and place, see `_named`."""

    @staticmethod
    def of(plans: Iterable[Plan]) -> Origins:
        """What these plans do."""
        counts: dict[str, list[int]] = {}
        forms: dict[str, Counter[str]] = {}
        written: dict[str, object] = {}
        sources: Counter[str] = Counter()
        for plan in plans:
            for place, node in enumerate(plan.nodes):
                for name, value in node.arguments.items() if place else ():
                    refers, key = references(value), f"{node.tool}.{name}"
                    counts.setdefault(key, [0, 0])[bool(refers)] += 1
                    if len(refers) != 1 or refers[0] >= place:
                        continue
                    named = _named(refers[0], node.parents, plan.nodes[:place])
                    sources[f"{key}<{named}"] += 1
                    if not _is_result(value):
                        continue
                    form = renumbered({name: value}, {refers[0]: 0})[name]
                    source = f"{key}<{plan.nodes[refers[0]].tool}"
                    forms.setdefault(source, Counter())[repr(form)] += 1
                    written[repr(form)] = form
        most = {source: written[found.most_common(1)[0][0]] for source, found in forms.items()}
        return Origins(
            {key: (request, result) for key, (request, result) in counts.items()},
            {source: form for source, form in most.items() if form != "<node-0>"},
            dict(sources),
        )

    @staticmethod
    def read(state: Mapping[str, Any]) -> Origins:
        """What a checkpoint has of it."""
        counts = cast("Mapping[str, tuple[int, int]]", state["counts"])
        return Origins(
            {key: (found[0], found[1]) for key, found in counts.items()},
            state["forms"],
            state["sources"],
        )

    def leanings(self, tool: str, name: str, own: object = None) -> tuple[float, float]:
        """How much the counts speak for the request, and for a result, as log-odds; `own` is an
        argument of the plans that is not to count."""
        request, result = self.counts.get(f"{tool}.{name}", (0, 0))
        if own is not None:
            request, result = request - (not references(own)), result - bool(references(own))
        odds = _odds(result, request)
        return -odds, odds

    def takes(self, node: Node, name: str, source: int, before: Sequence[Node]) -> int:
        """How often the plans have an argument from the result of such a node."""
        return self.sources.get(f"{node.tool}.{name}<{_named(source, node.after, before)}", 0)

    def choices(
        self, node: Node, name: str, before: Sequence[Node], own: object = None
    ) -> list[float]:
        """How much the counts speak for each of the earlier results before the others, as log-odds;
        none where there is one only, or the plans have it from none of these."""
        found = [self.takes(node, name, k, before) for k in range(len(before))]
        found = [max(0, n - (references(own) == (k,))) for k, n in enumerate(found)]
        total = sum(found)
        if len(before) < 2 or not total:
            return [0.0] * len(before)
        return [_odds(count, total - count) for count in found]

    def referring(self, node: Node, name: str, source: int, tool: str) -> object:
        """The argument that takes the result of node `source`, which `tool` gives."""
        form = self.forms.get(f"{node.tool}.{name}<{tool}", "<node-0>")
        return renumbered({name: form}, {0: source})[name]


def _odds(one: int, other: int) -> float:
    """How much counts speak for one of two, as a bounded log-odds."""
    return max(-_BOUND, min(_BOUND, math.log((one + _SMOOTHING) / (other + _SMOOTHING))))


def _named(source: int, after: Sequence[int], before: Sequence[Node]) -> str:
    """An earlier node by its tool and its place among those of this tool that are waited for, or
    among all of this tool where none is."""
    tool = before[source].tool
    like = [k for k, each in enumerate(before) if each.tool == tool]
    like = [k for k in like if k in after] or like
    return f"{tool} {like.index(source) if source in like else '-'}"


def _is_result(value: object) -> bool:
    """Whether an argument is references with their steps, or lists and mappings of such, alone."""
    match value:
        case str():
            return _RESULT.fullmatch(value) is not None
        case Mapping():
            inner = [*cast("Mapping[str, object]", value).values()]
        case list() | tuple():
            inner = [*cast("Sequence[object]", value)]
        case _:
            return False
    return bool(inner) and all(map(_is_result, inner))
