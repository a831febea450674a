"""How many of the thirty requests of the kit a planner brings to their end, and what it declines.

    python -m benchmarks.orchestration.kit FOLDER --planner llm --model smollm2
    python -m benchmarks.orchestration.kit FOLDER --endpoint http://127.0.0.1:8000/v1 --model NAME
    python -m benchmarks.orchestration.kit FOLDER --off-catalog       # none can be served

Every request is one `tutelage orchestrate run` with `--yes` in a folder of its own, made from the
seed, and is graded by its end state (`grading/`). The answer is what all tools gave. A planner that
has no plan declines, which the command says with exit code 2; a plan that ran and did not bring
about what was asked for is wrong. Further words go to the command. Runs that are there are kept.
`--at-once N` plays N requests at a time, which suits an endpoint that samples many together.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import machine, table
from benchmarks.orchestration.grading.grade import grade
from benchmarks.orchestration.grading.requests import FILE, FilledRequest, fill, read_requests
from benchmarks.orchestration.grading.state import read_state
from benchmarks.orchestration.kit import make_folder

from tutelage.statistics.intervals import wilson

TOOLS = Path(__file__).parents[1].joinpath("kit_tools.py").resolve()
DECLINED = 2
"""The exit code of a request that nothing was run for."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request."""

    name: str
    verdict: str
    """right, wrong, declined or impossible."""
    words: str = ""
    nodes: int = 0
    replans: int = 0
    cost: float = 0.0


def command(sentence: str, words: Sequence[str]) -> list[str]:
    """The public command for one request."""
    own = ["--tools", str(TOOLS), "--yes", "--json", "--output", "run"]
    return [sys.executable, "-m", "tutelage", "orchestrate", "run", sentence, *own, *words]


def play(place: Path, sentence: str, seed: int, words: Sequence[str]) -> dict[str, Any]:
    """Run one request in its folder; what was said is kept there."""
    kept = place / "said.json"
    if kept.is_file():
        return json.loads(kept.read_text())
    done = subprocess.run(
        command(sentence, words), cwd=place, env={**os.environ, "KIT_SEED": str(seed)},
        capture_output=True, text=True,
    )  # fmt: skip
    said = {"code": done.returncode, "error": done.stderr[-2000:], "result": None}
    if done.returncode != DECLINED:
        said["result"] = json.loads(done.stdout)
    kept.write_text(json.dumps(said))
    return said


def judged(filled: FilledRequest, place: Path, seed: int, words: Sequence[str]) -> Outcome:
    """Play a request of the kit and look at its end."""
    name = filled.request.id
    if filled.sentence is None:
        return Outcome(name, "impossible", filled.reason)
    folder = place / "kit-folder"
    if not folder.exists():
        place.mkdir(parents=True, exist_ok=True)
        make_folder(folder, seed)
    untouched = place / "before"
    if not untouched.exists():
        make_folder(untouched, seed)
    said = play(place, filled.sentence, seed, words)
    result = said["result"]
    if result is None:
        return Outcome(name, "declined", said["error"].strip().splitlines()[-1][:200])
    answer = "\n".join(str(text) for text in result["outputs"].values())
    end = grade(filled, read_state(untouched), read_state(folder), answer)
    verdict = "right" if end.right else "wrong"
    planned = len(result["plan"]["nodes"])
    return Outcome(name, verdict, end.fault, planned, cost=result["total_cost"])


def off_catalog(place: Path, number: int, sentence: str, words: Sequence[str]) -> Outcome:
    """Play a request that no tool can serve: whatever runs is wrong."""
    own = place / str(number)
    if not (own / "kit-folder").exists():
        own.mkdir(parents=True, exist_ok=True)
        make_folder(own / "kit-folder", 1)
    said = play(own, sentence, 1, words)
    verdict = "declined" if said["result"] is None else "wrong"
    return Outcome(str(number), verdict, sentence)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--off-catalog", action="store_true")
    parser.add_argument("--at-once", type=int, default=1)
    asked, words = parser.parse_known_args()
    if asked.off_catalog:
        rows = FILE.with_name("off_catalog.jsonl").read_text(encoding="utf-8").splitlines()
        sentences = [json.loads(row)["request"] for row in rows]
        place = asked.folder / "off-catalog"
        plays = [partial(off_catalog, place, i, text, words) for i, text in enumerate(sentences)]
    else:
        plays = [
            partial(
                judged, fill(request, int(seed)), asked.folder / seed / request.id, int(seed), words
            )
            for seed in asked.seeds.split(",")
            for request in read_requests()
        ]
    with ThreadPoolExecutor(asked.at_once) as pool:
        playing = [pool.submit(play) for play in plays]
        found = [each.result() for each in playing]
    print(table(["request", "verdict", "nodes", "why"],
                [[o.name, o.verdict, str(o.nodes), o.words[:90]] for o in found]))  # fmt: skip
    counts, tried = (
        Counter(o.verdict for o in found),
        [o for o in found if o.verdict != "impossible"],
    )
    for verdict in ("right", "wrong", "declined"):
        low, high = wilson(counts[verdict], len(tried))
        share = f"{100 * low:.0f} to {100 * high:.0f} %"
        print(f"{verdict}: {counts[verdict]} of {len(tried)} ({share})")
    print(f"cost: {sum(o.cost for o in found):.6f} USD; {machine()}")


if __name__ == "__main__":
    main()
