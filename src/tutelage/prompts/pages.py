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
from itertools import accumulate
from math import inf
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
from tutelage.prompts.record import LINEAGE_FILE, read_lineage
from tutelage.runs.figures import Table, TableRow
from tutelage.runs.folder import RunFolder, write_text
from tutelage.runs.report.charts import Chart
from tutelage.runs.report.formatting import count, counted, cut, duration
from tutelage.runs.report.page import render_page
from tutelage.runs.report.rates import Cell, Change
from tutelage.runs.report.svg import Panel, Series, draw
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
    write_text(folder.path / LINEAGE, _lineage_page(folder.name, entries))
    write_text(folder.report, _report_page(folder, entries, folder.read_result() or {}))


def _lineage_page(name: str, entries: Sequence[JSON]) -> str:
    """The tree as a page."""
    tallies = Counter(entry["decision"] for entry in entries if entry["decision"] != EXPERIMENT)
    return render_page(
        "prompts/lineage.html.j2",
        name=name,
        what="lineage of a prompt search",
        headline=counted(tallies.total(), "candidate"),
        pill=None,
        story=(),
        nodes=lineage_tree(entries),
        tallies=", ".join(f"{count(n)} {decision}" for decision, n in tallies.items()),
    )


def _report_page(folder: RunFolder, entries: Sequence[JSON], result: Mapping[str, Any]) -> str:
    """The result of a search as a page."""
    test = result.get("test")
    looks = [test, *result.get("confirmations", [])] if test else []
    before, after = result.get("seed_components", {}), result.get("components", {})
    headline, reading, tone = _headline(result, test)
    tried = [entry for entry in entries if entry["decision"] != EXPERIMENT]
    whole = max((e["scores"].get("val", {}).get("n", 0) for e in entries), default=0)
    return render_page(
        "prompts/report.html.j2",
        name=folder.name,
        what="prompt search",
        headline=headline,
        pill=None if test is None else (tone, test["verdict"]),
        story=list(_story(result, reading)),
        changes=list(_changes(test or {})),
        facts=list(_facts(result)),
        prompts=[(n, _diff(before.get(n, ""), text)) for n, text in sorted(after.items())],
        holdout=_holdout(looks),
        judged=[cut(line, 300) for line in judged_lines(test or {})],
        test=test,
        looks=len(looks),
        chart=_chart(tried, whole),
        top=_top(entries, whole),
        pairs=_pairs(folder),
    )


def _headline(result: Mapping[str, Any], test: Mapping[str, Any] | None) -> tuple[str, str, str]:
    """The result in a line, what that rests on, and its tone."""
    if test is None:
        return "The search has not ended", "", ""
    tone, words, rests_on = read_verdict(test)
    if result["components"] == result["seed_components"]:
        message = "No candidate did better on the validation tasks, so the prompt stays as it was."
        return UNCHANGED[0].upper() + UNCHANGED[1:], message, tone
    message = f"The 95 % interval of the difference {rests_on}."
    if test["tasks"] < FEW:
        message = f"On so few tasks the exact sign test decides, and it {rests_on}."
    return words[0].upper() + words[1:], message, tone


def _story(result: Mapping[str, Any], reading: str) -> Iterator[tuple[str, str]]:
    if not result:
        return
    yield "How", f"{result['reason']}. It ended because: {result['ended']}."
    yield (
        "Tasks",
        f"{result['train_tasks']} to learn from, {result['val_tasks']} for selection, "
        f"{result['test_tasks']} held out until the end.",
    )
    yield "Reading", reading


def _changes(test: Mapping[str, Any]) -> Iterator[Change]:
    for name, title in (("reward", "Mean reward"), ("exact", "Exactly right")):
        if gap := test.get(name):
            sides = [test[f"{side}_{name}"] for side in ("seed", "best")]
            before, after = (Cell(f"{v:.3f}", at=100 * v, bar=0 <= v <= 1) for v in sides)
            ends = f"difference {gap['low']:+.3f} to {gap['high']:+.3f}, 95 %"
            title, scale = f"{title}, held-out test", ("0", "0.5", "1")
            yield Change(title, f"{gap['mean']:+.3f}", before, after, scale, [("after", ends)])


def _holdout(looks: Sequence[Mapping[str, Any]]) -> Table:
    """Every look at test tasks."""
    rows = [
        TableRow((f"{look['looks']}, {name}", str(look["tasks"]), *cells, verdict))
        for look in looks
        for name, *cells in holdout_rows(look)
        for verdict in [look["verdict"] if name == "reward" else ""]
    ]
    return Table(
        ("Look", "Tasks", *(name.capitalize() for name in HOLDOUT_COLUMNS), "Verdict"), rows
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
        texts = cut("\n".join(str(t) for t in entry["components"].values()), _TEXT_LIMIT)
        return [("same", f" {row}") for row in texts.split("\n")]
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
    if not result:
        return
    on_test = f"{count(result['test_spent']['rollouts'])} of them on the held-out test"
    known = result.get("dollars_known", True)
    for name, value, note in (
        ("algorithm", str(result["algorithm"]), ""),
        ("candidates", count(result["candidates"]), ""),
        ("rollouts", count(result["rollouts"]), on_test),
        ("optimiser calls", count(result["optimiser_calls"]), ""),
        ("tokens", count(result["tokens"]), ""),
        ("cost", f"${result['dollars']:.4f}" if known else "not known", ""),
        ("time", duration(result["wall_seconds"]), ""),
    ):
        yield name, value, note, False


def _diff(before: str, after: str) -> list[Line]:
    kinds = {"+": "add", "-": "cut", " ": "same"}
    rows = difflib.ndiff(before.split("\n"), after.split("\n"))
    return [(kinds[row[0]], f"{row[0]} {row[2:]}") for row in rows if row[0] in kinds]


def _top(entries: Sequence[JSON], whole: int) -> Table:
    """The best of the candidates that were validated on all tasks."""
    records = [e for e in entries if whole and e["scores"].get("val", {}).get("n", 0) == whole]
    best = sorted(records, key=lambda e: -float(e["scores"]["val"]["reward"]))[:10]
    rewards = [f"{e['scores']['val']['reward']:.3f}" for e in best]
    rows = [
        TableRow((e["id"][5:15], e["operation"], reward, e["decision"]))
        for e, reward in zip(best, rewards, strict=True)
    ]
    return Table(("Candidate", "Made by", "Validation reward", "Decision"), rows)


def _chart(tried: Sequence[JSON], whole: int) -> Chart | None:
    """Validation reward of each candidate in order, and the best so far."""
    scores = [(float(i), e["scores"]["val"]) for i, e in enumerate(tried) if "val" in e["scores"]]
    points = tuple((i, float(score["reward"])) for i, score in scores)
    if len(points) < 2:
        return None
    finals = (float(score["reward"]) if score["n"] == whole else -inf for _, score in scores)
    heights = zip((i for i, _ in points), accumulate(finals, max), strict=True)
    best = tuple((i, y) for i, y in heights if y > -inf)
    series = [Series(points, "muted", "marks"), Series(best, "after")]
    panel = Panel(series, unit="share" if all(0 <= y <= 1 for _, y in points) else "plain")
    note = (
        "A point is a candidate, in the order of proposal; the line is the best so far that was "
        "played on all tasks. It chose the winner, so it flatters: the held-out test is the result."
    )
    return Chart("Validation reward", note, draw([panel], size=(460, 200), x_label="candidate"))


def _pairs(folder: RunFolder) -> list[BeforeAfter]:
    """The same held-out tasks before and after."""
    sides: dict[str, list[Transcript]] = {"seed": [], "best": []}
    with suppress(TutelageError), open_run(folder) as (store, run_id):
        for rollout in store.rollouts(run_id, mode=Mode.TEST, limit=2000):
            if rollout.label in sides:
                sides[rollout.label].append(read_transcript(rollout))
    return choose(sides["seed"], sides["best"])
