"""The searches after a change against the committed records, seed by seed, on the world of record.

    python -m benchmarks.prompt.before_after run [METHOD ...]   # in process, about five minutes
    python -m benchmarks.prompt.before_after report             # the tables

`run` plays each method on `itinerary` with the ceilings of `LEVELS`, for 36 seeds, with the world's
functions in this process, and scores the prompts on 600 unseen test tasks (`after.json`). The
records (`record.json`, `record-equal-calls.json`) have the searches before, and gepa 0.1.4 itself,
of the same seeds and tasks over the server. `report` pairs by seed and gives 10,000 bootstrap
draws. No language model is in any of this.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.prompt.ours import Direct, algorithm, score, search
from benchmarks.prompt.worlds import world

from tutelage.seeds import SeedTree
from tutelage.statistics.intervals import paired_bootstrap

HERE = Path(__file__).parent
OUT = HERE / "after.json"
SEEDS = 36
LEVELS = ((300, 24), (300, 14), (600, 48), (600, 29))
"""Ceilings on rollouts and optimiser calls: those of the record, and the calls that gepa 0.1.4
used of them."""
CLAIMS = (
    *(("reflect", "reflect", "before", level) for level in LEVELS),
    *(("gepa", "gepa 0.1.4", "before", level) for level in ((300, 24), (600, 48))),
    *(("reflect", "gepa", "after", level) for level in LEVELS),
    *(("apo", "apo", "before", level) for level in LEVELS),
    ("screen", "screen", "before", (600, 48)),
)
"""Which search is compared with which, before or after. In the records `reflect` was `gepa`."""
Cells = dict[tuple[str, str, tuple[int, int]], dict[int, dict[str, Any]]]


def run(methods: list[str]) -> None:
    """Search and score; write rows as they come, and go on with a file that exists."""
    here, rows = world("itinerary"), list[dict[str, Any]]()
    if OUT.exists():
        rows = json.loads(OUT.read_text())
    done = {(r["method"], r["rollouts_allowed"], r["calls_allowed"], r["seed"]) for r in rows}
    for method in methods:
        for rollouts, calls in LEVELS:
            chosen = algorithm(method, here)
            if not chosen.needs_optimiser and (rollouts, calls) not in ((300, 24), (600, 48)):
                continue
            for seed in range(SEEDS):
                if (method, rollouts, calls, seed) in done:
                    continue
                found = search(here, Direct(here), chosen, seed, rollouts, calls)
                made = asyncio.run(found)
                reward, exact = score(here, made["prompt"], seed)
                rows.append(
                    {
                        "method": method,
                        "seed": seed,
                        "rollouts_allowed": rollouts,
                        "calls_allowed": calls,
                        "rollouts": made["rollouts"],
                        "optimiser_calls": made["optimiser_calls"],
                        "reward": round(reward, 5),
                        "exact": round(exact, 5),
                    }
                )
            OUT.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
            print(method, rollouts, calls, flush=True)


def read() -> Cells:
    """Return the rows of records and of `after.json` by method, file and ceilings, by seed."""
    cells: Cells = defaultdict(dict)
    files = (("before", "record.json"), ("before", "record-equal-calls.json"), ("after", OUT.name))
    for name, file in files:
        rows = json.loads((HERE / file).read_text())
        for row in rows if isinstance(rows, list) else rows["rows"]:
            level = (row["rollouts_allowed"], row["calls_allowed"])
            cells[row["method"], name, level][row["seed"]] = row
    return cells


def report() -> None:
    """Print the means, then the paired differences with their intervals."""
    cells = read()
    shown = [k for k in cells if k[0] in ("apo", "gepa", "gepa 0.1.4", "reflect", "screen")]
    print("| rollouts, calls | search | seeds | reward | sd | exact | rollouts | calls |")
    print("|---|---|---|---|---|---|---|---|")
    for method, name, level in sorted(shown, key=lambda k: (k[2], k[0], k[1] == "after")):
        rows = cells[method, name, level].values()
        values = [row["reward"] for row in rows]
        exact, played, asked = (
            np.mean([row[key] for row in rows]) for key in ("exact", "rollouts", "optimiser_calls")
        )
        print(
            f"| {level[0]}, {level[1]} | {method}, {name} | {len(values)} | {np.mean(values):.3f} "
            f"| {np.std(values, ddof=1):.3f} | {exact:.3f} | {played:.0f} | {asked:.1f} |"
        )
    print("\n| rollouts, calls | search | against | difference | 95 % interval | equal seeds |")
    print("|---|---|---|---|---|---|")
    seeds = SeedTree(0).child("before and after")
    for number, (ours, other, name, level) in enumerate(CLAIMS):
        new, old = cells[ours, "after", level], cells[other, name, level]
        pairs = sorted({*new} & {*old})
        if not pairs:
            continue
        a, b = ([side[seed]["reward"] for seed in pairs] for side in (old, new))
        gap = paired_bootstrap(a, b, seeds.child(number).numpy())
        same = sum(x == y for x, y in zip(a, b, strict=True))
        print(
            f"| {level[0]}, {level[1]} | {ours}, after | {other}, {name} | {gap.mean:+.3f} "
            f"| {gap.low:+.3f} to {gap.high:+.3f} | {same} of {len(pairs)} |"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        run(sys.argv[2:] or ["apo", "gepa", "reflect", "screen"])
    else:
        report()
