"""No-op rollouts per second, one span and one reward each: ours against agentlightning 0.3.0.

    python benchmarks/runner/run.py [--peer PYTHON] [--rounds 5]

`PYTHON` is the interpreter of the peer's environment (README.md); without it only ours is measured.
All ways run in turn, A B C A B C ..., in processes of their own, and the medians are compared, with
as many runners and with the peer's fastest way. Ours writes every rollout to SQLite on the disk,
theirs keeps them in memory. Writes RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from measure import results, table  # noqa: E402


def once(python: str, script: str, *arguments: str) -> dict[str, Any] | None:
    """The line of JSON that a script prints; None when it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, str(HERE / script), *arguments],
        capture_output=True, text=True, timeout=900, env=environment, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        print(f"{script} {' '.join(arguments)}: {done.stderr.strip()[-300:]}", file=sys.stderr)
        return None
    return json.loads(lines[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", help="python of the peer's environment")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--peer-count", type=int, default=1_000)
    args = parser.parse_args()
    ways: dict[str, tuple[str, str, list[str]]] = {
        f"Tutelage, {n} runners": (
            sys.executable, "ours.py", ["--runners", str(n), "--count", str(args.count)]
        )
        for n in (8, 64)
    }  # fmt: skip
    if args.peer:
        for way, runners, words in (
            ("cs", 8, "8 runners, client-server"), ("shm", 1, "1 runner, in one process")
        ):  # fmt: skip
            ways[f"agentlightning 0.3.0, {words}"] = (
                args.peer, "theirs.py",
                ["--way", way, "--runners", str(runners), "--count", str(args.peer_count)],
            )  # fmt: skip
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    for _ in range(args.rounds):
        for name, (python, script, arguments) in ways.items():
            line = once(python, script, *arguments)
            if line is not None:
                found[name].append(line)
    rates = {n: [x["rollouts_per_second"] for x in xs] for n, xs in found.items() if xs}
    peer = {n: statistics.median(v) for n, v in rates.items() if n.startswith("agentlightning")}
    equal = [rate for name, rate in peer.items() if "8 runners" in name]
    rows: list[list[str]] = []
    for name, values in rates.items():
        rate = statistics.median(values)
        cpu = statistics.median(x["cpu_us"] for x in found[name])
        rows.append(
            [
                name,
                f"{rate:,.0f}",
                f"{min(values):,.0f} to {max(values):,.0f}",
                f"{cpu:,.0f}",
                f"{rate / equal[0]:.1f}x" if equal else "",
                f"{rate / max(peer.values()):.1f}x" if peer else "",
            ]
        )
    head = ["", "rollouts/s, median", "range", "CPU µs a rollout", "of the peer's 8 runners",
            "of the peer's fastest way"]  # fmt: skip
    text = table(head, rows) + (
        f"\n{args.rounds} rounds in turn; {args.count:,} rollouts of ours a round and "
        f"{args.peer_count:,} of the peer. Load average at the end: "
        f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.\n"
    )
    print(text)
    results(HERE / "RESULTS.md", "No-op rollouts per second", text)


if __name__ == "__main__":
    main()
