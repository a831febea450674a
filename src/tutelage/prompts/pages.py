"""The pages of a prompt search: `lineage.html`, the tree, and `report.html`, what came of it.

Both are pure functions of the run folder and stand alone: no script, no network, no other file.
They share the look and the escaping of other runs' reports (`runs/report`). A part whose facts are
missing is left out, so that a search that was killed has a report too.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from tutelage.errors import TutelageError
from tutelage.prompts.record import lineage_file, read_lineage
from tutelage.runs.folder import RunFolder, write_text
from tutelage.runs.measured import judged_words, measured
from tutelage.runs.report.episodes import Episode, read_episode
from tutelage.runs.report.page import render_page
from tutelage.runs.report.pick import Pair, choose
from tutelage.runs.report.svg import Panel, Series, draw
from tutelage.runs.report.words import count, cut, duration
from tutelage.statistics.intervals import FEW
from tutelage.types import JSON, Mode

LINEAGE, REPORT = "lineage.html", "report.html"
EXPERIMENT = "experiment"
"""The decision on entries of the lineage that are no candidates."""
TEXT_LIMIT = 6000
"""Characters of one prompt, critique or diff that a page shows."""
VERDICT_WORDS = {
    "improved": "The new prompt is better",
    "no evidence": "Nothing shows that the new prompt is better",
    "regressed": "The new prompt is worse",
}
READINGS = {
    "improved": "The 95 % interval of the difference lies above 0.",
    "no evidence": "The 95 % interval of the difference holds 0: the new prompt may be as good, "
    "but there is no reason to prefer it.",
    "regressed": "The 95 % interval of the difference lies below 0: keep the old prompt.",
}
FEW_READINGS = {
    "improved": "On so few tasks the exact sign test decides, and it speaks for the new prompt.",
    "no evidence": "On so few tasks the exact sign test decides, and it sees no difference: there "
    "is no reason to prefer the new prompt.",
    "regressed": "On so few tasks the exact sign test decides, and it speaks for the old prompt.",
}
"""Below `FEW` test tasks."""
SAME = (
    "No better prompt was found",
    "No candidate did better on the validation tasks, so the prompt stays as it was.",
)
"""Headline and reading where the seed prompt won."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a diff: `kind` is same, add, cut or head."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Node:
    """One candidate of the tree, with those that were made of it."""

    id: str
    operation: str
    decision: str
    reason: str
    scores: str
    best: bool
    lines: Sequence[Line]
    critique: str
    cost: str
    merged: str
    experiments: int
    """How often texts made of it were played for a regression alone."""
    children: Sequence[Node]


def write_pages(folder: RunFolder) -> None:
    """Write both pages; without a lineage there is nothing to draw yet."""
    if not lineage_file(folder).is_file():
        return
    entries = read_lineage(folder)
    result = folder.read_result() or {}
    write_text(folder.path / LINEAGE, lineage_page(folder.name, entries))
    write_text(folder.report, report_page(folder, entries, result))


def lineage_page(name: str, entries: Sequence[JSON]) -> str:
    """The tree as a page."""
    tallies: dict[str, int] = {}
    candidates = [entry for entry in entries if entry["decision"] != EXPERIMENT]
    for entry in candidates:
        tallies[entry["decision"]] = tallies.get(entry["decision"], 0) + 1
    told = [f"{count(n)} {decision}" for decision, n in tallies.items()]
    return render_page(
        _template("lineage.html.j2"),
        name=name,
        nodes=tree(entries),
        candidates=len(candidates),
        tallies=", ".join(told),
    )


def report_page(folder: RunFolder, entries: Sequence[JSON], result: Mapping[str, Any]) -> str:
    """What came of a search as a page."""
    test = result.get("test")
    before, after = result.get("seed_components", {}), result.get("components", {})
    headline, reading = _headline(result)
    verdict = None if test is None else test["verdict"]
    return render_page(
        _template("report.html.j2"),
        name=folder.name,
        headline=headline,
        verdict=verdict,
        reading=reading,
        test=test,
        looks=[test, *result.get("confirmations", [])] if test else [],
        result=result,
        facts=list(_facts(result)),
        prompts=[(n, _diff(before.get(n, ""), text)) for n, text in sorted(after.items())],
        chart=_chart(entries),
        pairs=_pairs(folder),
        top=_top(entries),
        judged=list(_judged_lines(test)),
    )


def _headline(result: Mapping[str, Any]) -> tuple[str, str]:
    """What came of it in a line, and what that rests on."""
    test = result.get("test")
    if test is None:
        return "The search has not ended", ""
    if result["components"] == result["seed_components"]:
        return SAME
    verdict = test["verdict"]
    readings = FEW_READINGS if test["tasks"] < FEW else READINGS
    return VERDICT_WORDS[verdict], readings[verdict]


def tree(entries: Sequence[JSON]) -> list[Node]:
    """Candidates below their first parent, in the order of their proposal."""
    below: dict[str, list[JSON]] = {}
    for entry in entries:
        parents = entry["parents"]
        below.setdefault(parents[0] if parents else "", []).append(entry)

    def made(entry: JSON) -> Node:
        found = below.get(entry["id"], [])
        candidates = [child for child in found if child["decision"] != EXPERIMENT]
        return _node(entry, [made(child) for child in candidates], len(found) - len(candidates))

    return [made(entry) for entry in below.get("", [])]


def diff_lines(text: str) -> list[Line]:
    """A unified diff, line by line."""
    kinds = {"+": "add", "-": "cut", "@": "head"}
    rows = [row for row in text.split("\n") if row and not row.startswith(("---", "+++"))]
    return [
        Line(kinds.get(row[:1], "same"), row if row[:1] in kinds else f" {row.strip()}")
        for row in rows
    ]


def _node(entry: JSON, children: Sequence[Node], experiments: int) -> Node:
    texts = "\n".join(str(t) for t in entry["components"].values())
    lines = diff_lines(cut(entry["diff"], TEXT_LIMIT))
    if not entry["parents"]:
        lines = [Line("same", f" {row}") for row in cut(texts, TEXT_LIMIT).split("\n")]
    return Node(
        id=entry["id"],
        operation=entry["operation"],
        decision=entry["decision"],
        reason=entry["reason"],
        scores=score_words(entry),
        best=entry["decision"] == "winner",
        lines=lines,
        critique=cut(entry["critique"], TEXT_LIMIT),
        cost=cost_words(entry["cost"]),
        merged=", ".join(entry["parents"][1:]),
        experiments=experiments,
        children=children,
    )


def score_words(entry: Mapping[str, Any]) -> str:
    """`val 0.95 on 20 (exact 0.90)` for each split it was played on."""
    return "; ".join(
        f"{split} {s['reward']:.2f} on {_judged(s)}"
        + ("" if s["exact"] is None else f" (exact {s['exact']:.2f})")
        for split, s in sorted(entry["scores"].items(), reverse=True)
    )


def _judged(score: Mapping[str, Any]) -> str:
    judged = score.get("judged", score["n"])
    return str(judged) if judged == score["n"] else f"{judged} of {score['n']} that were judged"


def _judged_lines(test: Mapping[str, Any] | None) -> Iterator[str]:
    """How many rollouts of each prompt were judged."""
    for name, side in (("Seed", "seed_sums"), ("Best", "best_sums")):
        if test is not None and side in test:
            yield f"{name}: {cut(judged_words(measured(test[side])), 300)}."


def cost_words(cost: Mapping[str, Any]) -> str:
    """What a candidate cost."""
    words = [f"{count(cost['rollouts'])} rollouts"] if cost["rollouts"] else []
    words += [f"{count(cost['optimiser_calls'])} calls"] if cost["optimiser_calls"] else []
    words += [f"{count(cost['tokens'])} tokens"] if cost["tokens"] else []
    words += [f"${cost['dollars']:.4f}"] if cost["dollars"] else []
    return ", ".join(words) or "nothing"


def _facts(result: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    if not result:
        return
    yield "algorithm", str(result["algorithm"]), ""
    yield "candidates", count(result["candidates"]), ""
    on_test = count(result["test_spent"]["rollouts"])
    yield "rollouts", count(result["rollouts"]), f"{on_test} of them on the sealed test"
    yield "optimiser calls", count(result["optimiser_calls"]), ""
    yield "tokens", count(result["tokens"]), ""
    known = result.get("dollars_known", True)
    yield "cost", f"${result['dollars']:.4f}" if known else "not known", ""
    yield "time", duration(result["wall_seconds"]), ""


def _diff(before: str, after: str) -> list[Line]:
    kinds = {"+": "add", "-": "cut", " ": "same"}
    rows = difflib.ndiff(before.split("\n"), after.split("\n"))
    return [Line(kinds[row[0]], f"{row[0]} {row[2:]}") for row in rows if row[0] in kinds]


def _top(entries: Sequence[JSON]) -> list[tuple[str, str, str, float]]:
    """The best validated candidates: id, operation, decision, reward."""
    whole = max((e["scores"].get("val", {}).get("n", 0) for e in entries), default=0)
    found = [
        (str(e["id"]), str(e["operation"]), str(e["decision"]), float(e["scores"]["val"]["reward"]))
        for e in entries
        if e["scores"].get("val", {}).get("n", 0) == whole and whole
    ]
    return sorted(found, key=lambda row: -row[3])[:10]


def _chart(entries: Sequence[JSON]) -> str:
    """Validation reward of each candidate in order, and the best so far."""
    points: list[tuple[float, float]] = []
    best: list[tuple[float, float]] = []
    whole = max((e["scores"].get("val", {}).get("n", 0) for e in entries), default=0)
    for i, entry in enumerate(e for e in entries if e["decision"] != EXPERIMENT):
        score = entry["scores"].get("val")
        if score is None:
            continue
        points.append((float(i), float(score["reward"])))
        if score["n"] == whole:
            top = max([score["reward"], *(y for _, y in best[-1:])])
            best.append((float(i), float(top)))
    if len(points) < 2:
        return ""
    series = [Series(tuple(points), "muted", "marks"), Series(tuple(best), "after", "line")]
    panel = Panel(series, unit="share" if all(0 <= y <= 1 for _, y in points) else "plain")
    return draw([panel], size=(720, 260), x_label="candidate", salt="search")


def _pairs(folder: RunFolder) -> list[Pair]:
    """The same sealed tasks before and after."""
    from tutelage.store import open_store

    address = folder.store_address()
    if address is None:
        return []
    with suppress(TutelageError), open_store(address, create=False) as store:
        played = store.rollouts(folder.name, mode=Mode.TEST, limit=2000)
        sides: dict[str, list[Episode]] = {"seed": [], "best": []}
        for rollout in played:
            if rollout.label in sides:
                sides[rollout.label].append(read_episode(rollout))
        return choose(sides["seed"], sides["best"])
    return []


def _template(name: str) -> str:
    return (files("tutelage.prompts") / name).read_text(encoding="utf-8")
