"""How the embedded planner does on requests over the kit that it may be developed on.

    python -m benchmarks.orchestration.development.run            # those to look at
    python -m benchmarks.orchestration.development.run --kept     # those of which totals are read
    python -m benchmarks.orchestration.development.run --stranger [--kept]

`developed.jsonl` and `kept.jsonl` have 44 requests each over the folder of seed 2, with a plan that
is right, or none where the tools cannot do it; the first 32 of each were written before any look at
the planner's training text, the others after one, and none is of the thirty. `outside.jsonl` has 30
that no tool serves. `stranger_looked.jsonl` and `stranger_kept.jsonl` have 38 and 39, by a writer
who had seen the tools, and no request or training text of the planner. A plan is right when it
gives what the right plan gives, the results of its last tools, and leaves the same files and rows.
The planner declines where it is not sure or lacks an argument.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.orchestration.grading.state import FolderState, read_state

from tutelage.orchestration.execution.pools.tools import described
from tutelage.orchestration.kit import folder_contents, make_folder, make_tools, serve_pages
from tutelage.orchestration.plan.arguments import as_text, tool_arguments
from tutelage.orchestration.plan.catalog import Catalog
from tutelage.orchestration.plan.dag import Node, Plan
from tutelage.orchestration.planner.calibration import same_tools
from tutelage.orchestration.planner.decode import PlanPrediction
from tutelage.orchestration.planner.embedded import embedded_planner
from tutelage.tools.execute import run_tool

HERE, SEED = Path(__file__).parent, 2


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of a request."""

    request: str
    verdict: str
    """right, wrong, unsure (declined) or incomplete (declined, an argument is missing)."""
    planned: PlanPrediction
    good: bool
    """Whether the plan would be right if it ran."""
    tools: bool
    """Whether it has the tools of the right plan."""


def read_rows(name: str) -> list[tuple[str, Plan | None]]:
    """Requests with their right plans; None where the tools cannot do it."""
    rows = [json.loads(line) for line in (HERE / f"{name}.jsonl").read_text().splitlines()]
    return [(row["request"], _plan(row)) for row in rows]


def _plan(row: Mapping[str, Any]) -> Plan | None:
    if row["plan"] is None:
        return None
    return Plan(row["request"], tuple(Node(tool, given) for tool, given in row["plan"]))


def brought_about(plan: Plan) -> tuple[FolderState, str] | None:
    """What a plan leaves in a folder of its own, and the results of its last tools; None where it
    fails."""
    contents = folder_contents(SEED)
    with tempfile.TemporaryDirectory() as folder, serve_pages(contents) as url:
        place = Path(folder) / "kit"
        make_folder(place, SEED)
        tools = make_tools(place, url, contents.today)
        outputs: dict[int, str] = {}
        for number, node in enumerate(plan.nodes):
            tool = tools[node.tool]
            try:
                given = tool_arguments(node.arguments, outputs, tool)
            except ValueError:
                return None
            done = asyncio.run(run_tool(tool, as_text(given)))
            if done.failure is not None:
                return None
            outputs[number] = done.text
        used = {parent for node in plan.nodes for parent in node.parents}
        last = [text for number, text in outputs.items() if number not in used]
        return read_state(place), "\n".join(last)


def judge(name: str, planned: Sequence[PlanPrediction], least: float) -> list[Judged]:
    """What became of each request, in their order."""
    found: list[Judged] = []
    for (request, gold), made in zip(read_rows(name), planned, strict=True):
        end = None if made.missing else brought_about(made.plan)
        good = end is not None and gold is not None and end == brought_about(gold)
        unsure = made.confidence is not None and made.confidence < least
        verdict = "unsure" if unsure else "incomplete" if made.missing else ""
        verdict = verdict or ("right" if good else "wrong")
        found.append(
            Judged(request, verdict, made, good, gold is not None and same_tools(made.plan, gold))
        )
    return found


def told(found: Sequence[Judged]) -> str:
    """The totals in a line."""
    counts = Counter(each.verdict for each in found)
    names = ("right", "wrong", "unsure", "incomplete")
    words = [f"{counts[name]} {name}" for name in names]
    words.append(f"{sum(each.good for each in found)} plans that would be right")
    words.append(f"{sum(each.tools for each in found)} with the right tools")
    return f"of {len(found)}: {', '.join(words)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kept", action="store_true")
    parser.add_argument("--stranger", action="store_true")
    asked = parser.parse_args()
    tools = make_tools(Path(), "http://127.0.0.1:1", folder_contents(SEED).today)
    model = embedded_planner(Catalog(described(tools))).model
    assert model.confidence is not None
    least = model.confidence.threshold
    print(f"threshold {least:.3f}")
    names = ("kept",) if asked.kept else ("developed", "outside")
    if asked.stranger:
        names = ("stranger_kept",) if asked.kept else ("stranger_looked",)
    for name in names:
        planned = model.plan_all([request for request, _ in read_rows(name)])
        found = judge(name, planned, least)
        if not asked.kept:
            for each in found:
                print(shown(each))
        print(f"{name}: {told(found)}")


def shown(each: Judged) -> str:
    """A request in a line."""
    made = each.planned
    calls = [f"{n.tool}({json.dumps(dict(n.arguments))[1:-1]})" for n in made.plan.nodes]
    marks = f"{'=' if each.good else '~' if each.tools else '!'} {made.confidence or 0.0:.3f}"
    missing = f"; missing {', '.join(made.missing)}" if made.missing else ""
    return f"{each.verdict:10} {marks} {each.request}\n    {'; '.join(calls)}{missing}"


if __name__ == "__main__":
    main()
