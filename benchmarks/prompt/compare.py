"""The comparison: our searches and the peers' against one simulator server, seed by seed.

    python -m benchmarks.prompt.compare run --world clerk --rollouts 600 --seeds 10 \\
        --gepa /path/python --dspy /path/python --agl /path/python --out /tmp/clerk.json
    python -m benchmarks.prompt.compare report /tmp/clerk.json

`run` starts the server, gives every method the same tasks and the same ceilings on rollouts and on
optimiser calls, reads what each used from the server's counters, and plays the prompt that it
returned on 600 tasks that no search saw. `report` makes the table and the comparisons: paired over
seeds, 10,000 bootstrap draws for the interval, a sign-flip test for the p-value, Holm over all
comparisons. A file that exists is continued, so a run may be cut off.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.prompt.ours import ceiling, score
from benchmarks.prompt.significance import holm, pairs_for_power, sign_flip_test
from benchmarks.prompt.worlds import world

from tutelage.seeds import SeedTree
from tutelage.statistics.intervals import paired_bootstrap

HERE = Path(__file__).parent
OURS, MARGIN = ("apo", "gepa", "reflect", "screen", "random"), 0.05
PEERS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "gepa 0.1.4": ("gepa", "gepa_peer", ()),
    "dspy GEPA": ("dspy", "dspy_peer", ("--optimiser", "gepa")),
    "dspy MIPROv2": ("dspy", "dspy_peer", ("--optimiser", "mipro")),
    "agl APO": ("agl", "agl_peer", ()),
    "agl APO narrow": ("agl", "agl_peer", ("--narrow",)),
}
"""Method: whose environment, its script, its arguments."""


@dataclass(frozen=True)
class Claim:
    """Ours against another at a budget: better, or not inferior by `MARGIN`."""

    ours: str
    other: str
    rollouts: int
    margin: float = 0.0
    bar: bool = True
    """Whether it is asked for; an aim otherwise."""


CLAIMS = (
    Claim("apo", "agl APO", 600),
    Claim("apo", "agl APO narrow", 600, MARGIN),
    Claim("apo", "gepa 0.1.4", 600, MARGIN),
    Claim("reflect", "gepa 0.1.4", 600, MARGIN),
    Claim("screen", "grips", 600),
    Claim("screen", "random", 600),
    Claim("reflect", "gepa 0.1.4", 300, bar=False),
    Claim("reflect", "dspy GEPA", 300, bar=False),
    Claim("apo", "gepa 0.1.4", 300, bar=False),
    Claim("apo", "dspy GEPA", 300, bar=False),
)
"""Fixed before the run of record."""


def command(method: str, given: argparse.Namespace, url: str, seeds: Sequence[int]) -> list[str]:
    """The process that searches for these seeds."""
    common = [
        *("--url", url, "--world", given.world, "--name", method),
        *("--rollouts", str(given.rollouts), "--calls", str(calls_of(given))),
        *("--seeds", *map(str, seeds)),
    ]
    if method in OURS:
        return [
            *(sys.executable, "-m", "benchmarks.prompt.ours", *common),
            *("--algorithm", method),
        ]
    whose, script, more = PEERS[method]
    python = getattr(given, whose)
    if python is None:
        raise SystemExit(f"{method} needs --{whose} PYTHON, the Python of its environment")
    return [python, "-m", f"benchmarks.prompt.peers.{script}", *common, *more]


def calls_of(given: argparse.Namespace) -> int:
    """The ceiling on optimiser calls."""
    return ceiling(given.rollouts) if given.calls is None else given.calls


def run(given: argparse.Namespace) -> None:
    """All methods for all seeds; rows are written as they come."""
    out = Path(given.out)
    rows: list[dict[str, Any]] = json.loads(out.read_text())["rows"] if out.exists() else []
    done = {(r["method"], r["rollouts_allowed"], r["seed"]) for r in rows}
    here = world(given.world)
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.prompt.server", "--world", given.world],
        cwd=HERE.parents[1],
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        try:
            jobs: list[tuple[str, list[int]]] = []
            for method in given.methods:
                wanted = [
                    seed
                    for seed in range(given.first, given.first + given.seeds)
                    if (method, given.rollouts, seed) not in done
                ]
                jobs += [(method, wanted[i : i + 10]) for i in range(0, len(wanted), 10)]
            with ThreadPoolExecutor(given.jobs) as pool:
                for made in pool.map(lambda job: _one(*job, given, url), jobs):
                    used = _counts(url)
                    for line in made:
                        rows.append(_row(line, used[line["key"]], given, here))
                    out.write_text(dump(given.world, rows))
        finally:
            server.terminate()


def _one(
    method: str, seeds: Sequence[int], given: argparse.Namespace, url: str
) -> list[dict[str, Any]]:
    began = time.perf_counter()
    process = subprocess.run(
        command(method, given, url, seeds),
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [x for x in process.stdout.split("\n") if x.startswith("RESULT ")]
    if len(lines) < len(seeds):
        print(process.stderr[-2000:], file=sys.stderr)
        raise SystemExit(f"{method} gave {len(lines)} results for {len(seeds)} seeds")
    print(f"{method}: {len(seeds)} seeds in {time.perf_counter() - began:.0f} s", flush=True)
    return [json.loads(line.removeprefix("RESULT ")) for line in lines]


def _counts(url: str) -> dict[str, dict[str, int]]:
    with urllib.request.urlopen(url.removesuffix("/v1") + "/counts") as reply:
        return json.loads(reply.read())["clients"]


def _row(
    line: dict[str, Any], used: dict[str, int], given: argparse.Namespace, here: Any
) -> dict[str, Any]:
    reward, exact = score(here, line["prompt"], line["seed"], given.test)
    return {
        "method": line["method"],
        "seed": line["seed"],
        "rollouts_allowed": given.rollouts,
        "calls_allowed": calls_of(given),
        "rollouts": used["rollouts"],
        "optimiser_calls": used["optimiser_calls"],
        "reward": round(reward, 5),
        "exact": round(exact, 5),
        "words": len(line["prompt"].split()),
        "seconds": line["seconds"],
        "cpu_seconds": line["cpu_seconds"],
    }


def dump(name: str, rows: Sequence[dict[str, Any]]) -> str:
    here = world(name)
    source = (HERE / f"{name}.py").read_bytes()
    head = {
        "world": name,
        "world_sha256": hashlib.sha256(source).hexdigest(),
        "seed_prompt": here.seed_prompt,
        "test_tasks": 600,
    }
    lines = ",\n".join("  " + json.dumps(r) for r in sorted(rows, key=_order))
    return json.dumps(head)[:-1] + ', "rows": [\n' + lines + "\n]}\n"


def _order(row: dict[str, Any]) -> tuple[int, str, int]:
    return row["rollouts_allowed"], row["method"], row["seed"]


def report(given: argparse.Namespace) -> None:
    """The table and the comparisons, in Markdown."""
    data = json.loads(Path(given.file).read_text())
    cells: dict[tuple[str, int], dict[int, dict[str, Any]]] = {}
    for row in data["rows"]:
        cells.setdefault((row["method"], row["rollouts_allowed"]), {})[row["seed"]] = row
    print("| allowed | method | seeds | reward | sd | exact | rollouts | optimiser calls |")
    print("|---|---|---|---|---|---|---|---|")
    for (method, rollouts), by_seed in sorted(cells.items(), key=lambda c: (c[0][1], c[0][0])):
        values = [r["reward"] for r in by_seed.values()]
        mean = {k: np.mean([r[k] for r in by_seed.values()]) for k in _MEANS}
        print(
            f"| {rollouts} | {method} | {len(values)} | {np.mean(values):.3f} "
            f"| {np.std(values, ddof=1) if len(values) > 1 else 0:.3f} | {mean['exact']:.3f} "
            f"| {mean['rollouts']:.0f} | {mean['optimiser_calls']:.1f} |"
        )
    print()
    print("\n".join(comparisons(cells)))


_MEANS = ("exact", "rollouts", "optimiser_calls")


def comparisons(cells: dict[tuple[str, int], dict[int, dict[str, Any]]]) -> list[str]:
    """One line a claim, Holm-corrected over all that the file has data for."""
    known = [c for c in CLAIMS if (c.ours, c.rollouts) in cells and (c.other, c.rollouts) in cells]
    tree = SeedTree(0).child("compare")
    found: list[tuple[Any, float, int, int]] = []
    for number, claim in enumerate(known):
        ours, other = cells[claim.ours, claim.rollouts], cells[claim.other, claim.rollouts]
        seeds = sorted({*ours} & {*other})
        a = [other[s]["reward"] for s in seeds]
        b = [ours[s]["reward"] for s in seeds]
        gap = paired_bootstrap(a, b, tree.child("interval", number).numpy())
        lifted = [y - x + claim.margin for x, y in zip(a, b, strict=True)]
        p = sign_flip_test(lifted, tree.child("flips", number).numpy())
        spread = float(np.std(np.subtract(b, a), ddof=1))
        found.append((gap, p, len(seeds), pairs_for_power(spread, MARGIN, comparisons=len(known))))
    corrected = holm([p for _, p, _, _ in found])
    lines = [
        "| ours | other | rollouts | claim | difference | 95 % interval | p (Holm) | pairs "
        "| pairs for power 0.9 | verdict |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for claim, (gap, _, pairs, needed), p in zip(known, found, corrected, strict=True):
        words = "better" if claim.margin == 0 else f"not inferior by {claim.margin}"
        held = p < 0.05 and gap.low > -claim.margin
        verdict = "holds" if held else "worse" if gap.high < 0 else "tie"
        words += "" if claim.bar else " (aim)"
        lines.append(
            f"| {claim.ours} | {claim.other} | {claim.rollouts} | {words} "
            f"| {gap.mean:+.3f} | {gap.low:+.3f} to {gap.high:+.3f} "
            f"| {p:.4f} | {pairs} | {needed} | {verdict} |"
        )
    return lines


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    runs = verbs.add_parser("run")
    runs.add_argument("--world", required=True)
    runs.add_argument("--rollouts", type=int, default=600)
    runs.add_argument("--calls", type=int, help="ceiling on optimiser calls; 8 for 100 rollouts")
    runs.add_argument("--seeds", type=int, default=10)
    runs.add_argument("--first", type=int, default=0)
    runs.add_argument("--test", type=int, default=600)
    runs.add_argument("--methods", nargs="+", default=[*OURS, *PEERS])
    runs.add_argument("--jobs", type=int, default=2)
    runs.add_argument("--out", required=True)
    for whose in ("gepa", "dspy", "agl"):
        runs.add_argument(f"--{whose}", help=f"the Python of {whose}'s environment")
    reports = verbs.add_parser("report")
    reports.add_argument("file")
    given = parser.parse_args()
    (run if given.verb == "run" else report)(given)


if __name__ == "__main__":
    main()
