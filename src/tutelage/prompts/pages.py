"""The page of a prompt search: `report.html`, its result.

A pure function of the run folder that stands alone: no script, no network, no other file. It is
made of the parts of other runs' reports (`runs/report`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from tutelage.errors import TutelageError
from tutelage.prompts.figures import (
    HOLDOUT_COLUMNS,
    UNCHANGED,
    holdout_rows,
    judged_lines,
    read_verdict,
)
from tutelage.runs.figures import Table, TableRow
from tutelage.runs.folder import RunFolder, write_text
from tutelage.runs.report.formatting import count, cut, duration
from tutelage.runs.report.page import render_page
from tutelage.runs.report.transcripts import BeforeAfter, Transcript, choose, read_transcript
from tutelage.runs.stored import open_run
from tutelage.statistics.intervals import FEW
from tutelage.types import Mode


def write_page(folder: RunFolder, result: Mapping[str, Any]) -> None:
    """Write the report of a finished search."""
    test = result["test"]
    looks = [test, *result.get("confirmations", [])]
    before, after = result["seed_components"], result["components"]
    tone, words, rests_on = read_verdict(test)
    reading = f"The 95 % interval of the difference {rests_on}."
    if test["tasks"] < FEW:
        reading = f"On so few tasks the exact sign test decides, and it {rests_on}."
    if before == after:
        words, reading = UNCHANGED, "No candidate did better on the validation tasks."
    sizes = f"{result['train_tasks']} to learn from, {result['val_tasks']} for selection"
    rows = [
        TableRow((f"{look['looks']}, {name}", str(look["tasks"]), *cells, look["verdict"]))
        for look in looks
        for name, *cells in holdout_rows(look)
    ]
    columns = ("Look", "Tasks", *(name.capitalize() for name in HOLDOUT_COLUMNS), "Verdict")
    page = render_page(
        "prompts/report.html.j2",
        name=folder.name,
        what="prompt search",
        headline=words[0].upper() + words[1:],
        pill=(tone, test["verdict"]),
        story=[
            ("How", f"{result['reason']}. It ended because: {result['ended']}."),
            ("Tasks", f"{sizes}, {result['test_tasks']} held out until the end."),
            ("Reading", reading),
        ],
        facts=list(_facts(result)),
        prompts=[(name, _diff(before[name], text)) for name, text in sorted(after.items())],
        holdout=Table(columns, rows),
        judged=[cut(line, 300) for line in judged_lines(test)],
        test=test,
        looks=len(looks),
        pairs=_pairs(folder),
    )
    write_text(folder.report, page)


def _facts(result: Mapping[str, Any]) -> Iterator[tuple[str, str, str, bool]]:
    on_test = f"{count(result['test_spent']['rollouts'])} of them on the held-out test"
    yield "algorithm", str(result["algorithm"]), "", False
    yield "rollouts", count(result["rollouts"]), on_test, False
    for name in ("candidates", "optimiser_calls", "tokens"):
        yield name.replace("_", " "), count(result[name]), "", False
    cost = f"${result['dollars']:.4f}" if result["dollars_known"] else "not known"
    yield "cost", cost, "", False
    yield "time", duration(result["wall_seconds"]), "", False


def _diff(before: str, after: str) -> list[tuple[str, str]]:
    """Return the lines of both texts, each marked `same`, `add` or `cut`."""
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
