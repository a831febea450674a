"""The pages of a prompt search: `lineage.html`, the tree, and `report.html`, its result.

Both are pure functions of the run folder and stand alone: no script, no network, no other file.
They are made of the parts of other runs' reports (`runs/report`). A part whose facts are missing is
left out, so that a search that was killed has a report too.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tutelage.errors import TutelageError
from tutelage.prompts.figures import (
    HOLDOUT_COLUMNS,
    UNCHANGED,
    holdout_rows,
    judged_lines,
    read_verdict,
    spend_text,
)
from tutelage.prompts.lineage import LINEAGE_FILE, read_lineage
from tutelage.runs.figures import Table, TableRow
from tutelage.runs.folder import RunFolder, write_text
from tutelage.runs.report.formatting import count, counted, cut, duration
from tutelage.runs.report.page import render_page
from tutelage.runs.report.transcripts import BeforeAfter, Transcript, choose, read_transcript
from tutelage.runs.stored import open_run
from tutelage.statistics.intervals import FEW
from tutelage.types import JSON, Mode

LINEAGE = "lineage.html"
EXPERIMENT = "experiment"
"""The decision on entries of the lineage that are no candidates."""
_TEXT_LIMIT = 6000
"""Characters of one prompt, critique or diff that a page shows."""

Line = tuple[str, str]
"""One line of a diff: `same`, `add`, `cut` or `head`, and its text."""


@dataclass(frozen=True, slots=True)
class LineageNode:
    """One candidate of the tree, with those that were made of it."""

    entry: JSON
    scores: str
    lines: Sequence[Line]
    critique: str
    cost: str
    experiments: int
    """How often texts made of it were played for a regression alone."""
    children: Sequence[LineageNode]


def write_pages(folder: RunFolder) -> None:
    """Write both pages; without a lineage there is nothing to draw yet."""
    if not (folder.path / LINEAGE_FILE).is_file():
        return
    entries = read_lineage(folder)
    tallies = Counter(entry["decision"] for entry in entries if entry["decision"] != EXPERIMENT)
    page = render_page(
        "prompts/lineage.html.j2",
        name=folder.name,
        what="lineage of a prompt search",
        headline=counted(tallies.total(), "candidate"),
        pill=None,
        story=(),
        nodes=lineage_tree(entries),
        tallies=", ".join(f"{count(n)} {decision}" for decision, n in tallies.items()),
    )
    write_text(folder.path / LINEAGE, page)
    write_text(folder.report, _report_page(folder, folder.read_result() or {}))


def _report_page(folder: RunFolder, result: Mapping[str, Any]) -> str:
    """Return the result of a search as a page."""
    test = result.get("test")
    looks = [test, *result.get("confirmations", [])] if test else []
    before, after = result.get("seed_components", {}), result.get("components", {})
    headline, reading, tone = "The search has not ended", "", ""
    story: list[tuple[str, str]] = []
    if test is not None:
        tone, words, rests_on = read_verdict(test)
        reading = f"The 95 % interval of the difference {rests_on}."
        if test["tasks"] < FEW:
            reading = f"On so few tasks the exact sign test decides, and it {rests_on}."
        if before == after:
            words = UNCHANGED
            reading = "No candidate did better on the validation tasks."
        headline = words[0].upper() + words[1:]
        sizes = f"{result['train_tasks']} to learn from, {result['val_tasks']} for selection"
        story = [
            ("How", f"{result['reason']}. It ended because: {result['ended']}."),
            ("Tasks", f"{sizes}, {result['test_tasks']} held out until the end."),
            ("Reading", reading),
        ]
    rows = [
        TableRow((f"{look['looks']}, {name}", str(look["tasks"]), *cells, look["verdict"]))
        for look in looks
        for name, *cells in holdout_rows(look)
    ]
    columns = ("Look", "Tasks", *(name.capitalize() for name in HOLDOUT_COLUMNS), "Verdict")
    return render_page(
        "prompts/report.html.j2",
        name=folder.name,
        what="prompt search",
        headline=headline,
        pill=None if test is None else (tone, test["verdict"]),
        story=story,
        facts=list(_facts(result)) if result else [],
        prompts=[(n, _diff(before.get(n, ""), text)) for n, text in sorted(after.items())],
        holdout=Table(columns, rows),
        judged=[cut(line, 300) for line in judged_lines(test or {})],
        test=test,
        looks=len(looks),
        pairs=_pairs(folder),
    )


def lineage_tree(entries: Sequence[JSON]) -> list[LineageNode]:
    """Candidates below their first parent, in the order of their proposal."""
    below: dict[str, list[JSON]] = {}
    for entry in entries:
        parents = entry["parents"]
        below.setdefault(parents[0] if parents else "", []).append(entry)

    def made(entry: JSON) -> LineageNode:
        records = below.get(entry["id"], [])
        candidates = [child for child in records if child["decision"] != EXPERIMENT]
        return LineageNode(
            entry=entry,
            scores=_score_words(entry),
            lines=_entry_lines(entry),
            critique=cut(entry["critique"], _TEXT_LIMIT),
            cost=spend_text(entry["cost"], count) or "nothing",
            experiments=len(records) - len(candidates),
            children=[made(child) for child in candidates],
        )

    return [made(entry) for entry in below.get("", [])]


def _entry_lines(entry: JSON) -> list[Line]:
    """How a candidate differs from its parent; the texts of one without a parent."""
    if not entry["parents"]:
        texts = cut("\n".join(entry["components"].values()), _TEXT_LIMIT)
        return _diff(texts, texts)
    kinds = {"+": "add", "-": "cut", "@": "head"}
    rows = cut(entry["diff"], _TEXT_LIMIT).split("\n")
    return [
        (kinds.get(row[:1], "same"), row if row[:1] in kinds else f" {row.strip()}")
        for row in rows
        if row and not row.startswith(("---", "+++"))
    ]


def _score_words(entry: Mapping[str, Any]) -> str:
    """`val 0.95 on 20 (exact 0.90)` for each split it was played on."""
    words: list[str] = []
    for split, s in sorted(entry["scores"].items(), reverse=True):
        judged = s.get("judged", s["n"])
        of = str(judged) if judged == s["n"] else f"{judged} of {s['n']} that were judged"
        exact = "" if s["exact"] is None else f" (exact {s['exact']:.2f})"
        words.append(f"{split} {s['reward']:.2f} on {of}{exact}")
    return "; ".join(words)


def _facts(result: Mapping[str, Any]) -> Iterator[tuple[str, str, str, bool]]:
    on_test = f"{count(result['test_spent']['rollouts'])} of them on the held-out test"
    yield "algorithm", str(result["algorithm"]), "", False
    yield "rollouts", count(result["rollouts"]), on_test, False
    for name in ("candidates", "optimiser_calls", "tokens"):
        yield name.replace("_", " "), count(result[name]), "", False
    known = result.get("dollars_known", True)
    yield "cost", f"${result['dollars']:.4f}" if known else "not known", "", False
    yield "time", duration(result["wall_seconds"]), "", False


def _diff(before: str, after: str) -> list[Line]:
    kinds = {"+": "add", "-": "cut", " ": "same"}
    rows = difflib.ndiff(before.split("\n"), after.split("\n"))
    return [(kinds[row[0]], f"{row[0]} {row[2:]}") for row in rows if row[0] in kinds]


def _pairs(folder: RunFolder) -> list[BeforeAfter]:
    """The same held-out tasks before and after."""
    sides: dict[str, list[Transcript]] = {"seed": [], "best": []}
    with suppress(TutelageError), open_run(folder) as (store, run_id):
        for rollout in store.rollouts(run_id, mode=Mode.TEST, limit=2000):
            if rollout.label in sides:
                sides[rollout.label].append(read_transcript(rollout))
    return choose(sides["seed"], sides["best"])
