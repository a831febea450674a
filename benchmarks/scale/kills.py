"""What is lost when ranks, rollout workers and vLLM servers are killed: nothing.

    python -m benchmarks.scale.kills [ranks] [workers] [servers] [--moments 8] [--seed 0]

Each part kills at so many seeded moments and compares what comes of it with runs that nobody
killed. `ranks`: one of two ranks with a sharded model is killed within a second of a seeded step,
and 1, 2 or 4 ranks go on; metrics and weights have to be those of one process. `workers`: Ray's
workers are killed in seeded rollouts of one run; all rollouts and the weights have to be those of
one process. `servers`: one of two servers (a stand-in for vLLM) is killed in a seeded request; each
step has to be trained once, on all of its rollouts. The jobs and processes are those of the tests.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import machine, table

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))  # as pytest does

STEPS = 3


def kill_ranks(place: Path, moments: int, seed: int) -> list[str]:
    """Kill ranks; returns a row of the table."""
    from tests.distributed import jobs
    from tests.distributed.ranks import started, together
    from tests.weights import tiny_job

    source, rng = tiny_job.material(place), random.Random(seed)
    together(1, place / "alone", jobs.train, source, place / "usual", "tree")
    usual, seconds, same, who = place / "usual", list[float](), 0, Counter[str]()
    for moment in range(moments):
        out, work = place / f"run{moment}", place / f"of{moment}"
        steps, delay, killed = rng.randrange(STEPS), rng.uniform(0.0, 1.0), rng.randrange(2)
        lines = out / "metrics.jsonl"

        def far(out: Path = out, lines: Path = lines, steps: int = steps) -> bool:
            if steps == 0:
                return (out / "config.json").is_file()
            return lines.is_file() and len(lines.read_text().splitlines()) >= steps

        with started(2, work, jobs.train, source, out, "tree shards") as ranks:
            ranks.until(far)
            ranks.processes[0].join(delay)
            ranks.kill(killed)
            began = time.monotonic()
            ranks.end()
            seconds.append(time.monotonic() - began)
        together(rng.choice([1, 2, 4]), work / "again", jobs.resume, out, "tree shards")
        same += (jobs.metrics(out), jobs.digest(out)) == (jobs.metrics(usual), jobs.digest(usual))
        who[f"rank {killed}"] += 1
        print(f"moment {moment}: rank {killed} killed, {same} of {moment + 1} the same", flush=True)
    what = ", ".join(f"{name} {count} times" for name, count in sorted(who.items()))
    ended = f"the other rank ended within {max(seconds):.1f} s"
    return ["ranks", str(moments), what, f"{same} of {moments} the same weights; {ended}"]


def kill_workers(place: Path, moments: int, seed: int) -> list[str]:
    """Kill Ray's workers; returns a row of the table."""
    from tests.distributed import ray_parts as parts
    from tests.weights import tiny_job

    from tutelage.weights import run

    source, rng = parts.mortal_material(place / "source"), random.Random(seed)
    keys = {
        "agent__agent_type": f"{source}/mortal.py:MortalAgent",
        "trainer__total_training_steps": 2 * STEPS,
    }
    local = run.LocalPlacement
    run.LocalPlacement = parts.InvariantPlacement  # pyright: ignore[reportPrivateImportUsage]
    (place / "usual").mkdir()
    usual = tiny_job.run(source, place / "usual" / "run", **keys)
    run.LocalPlacement = local  # pyright: ignore[reportPrivateImportUsage]
    known = sorted(parts.rollouts_of(usual), key=lambda rollout: rollout.id)
    for victim in rng.sample([r for r in known if r.index < 2], moments):
        (source / "kills" / victim.id).write_text(rng.choice(parts.MOMENTS))
    (place / "killed").mkdir()
    ray = {"agent__placement": "ray", "ray_kwargs__ray_init__num_cpus": 2}
    with parts.ray_session():
        folder = tiny_job.run(source, place / "killed" / "run", **keys, **ray)
    left = len(list((source / "kills").iterdir()))
    found = parts.rollouts_of(folder)
    same = parts.digest(found) == parts.digest(known)
    weights = parts.weights_hash(folder) == parts.weights_hash(usual)
    events = [event for event in folder.read_events() if event["event"] == "worker_lost"]
    again = sum(len(event["groups"]) for event in events)
    what = f"{len(events)} workers lost, {again} groups played again, {left} never killed"
    words = {True: "the same", False: "OTHER"}
    return ["workers", str(moments), what, f"{words[same]} rollouts, {words[weights]} weights"]


def kill_servers(place: Path, moments: int, seed: int) -> list[str]:
    """Kill servers; returns a row of the table."""
    from tests.testing.vllm_server import VLLMServer
    from tests.weights import tiny_job
    from tests.weights.test_vllm_run import begin, check_record

    from tutelage.policy.model import load_policy

    source, whole = tiny_job.material(place), 0
    policy = load_policy(str(source / "model"))
    for moment, number in enumerate(random.Random(seed).sample(range(14, 40), moments)):
        with VLLMServer(policy) as one, VLLMServer(policy) as other:

            def fault(
                path: str,
                count: int,
                number: int = number,
                how: str = ("drop", "deaf")[moment % 2],
                kill: Callable[[], object] = one.kill,
            ) -> str | None:
                if count != number:
                    return None
                kill()
                return how

            one.fault = fault
            folder, _ = begin(source, place / f"run{moment}", [one, other])
            check_record(folder, 2)  # which raises
            lost = [event for event in folder.read_events() if event["event"] == "server_lost"]
            whole += len(lost) == 1 and one.dead
        print(f"moment {moment}: killed in request {number}", flush=True)
    return ["servers", str(moments), f"{whole} servers lost", "each rollout once, each step once"]


PARTS = {"ranks": kill_ranks, "workers": kill_workers, "servers": kill_servers}


def main() -> None:
    """Kill, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--moments", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows = list[list[str]]()
    for name in asked.parts or PARTS:
        with tempfile.TemporaryDirectory(prefix="kills-") as folder:
            began = time.monotonic()
            place = Path(folder)
            row = PARTS[name](place, asked.moments, asked.seed)
            rows.append([*row, f"{time.monotonic() - began:.0f} s"])
    print(f"{machine()}\n\n{table(['killed', 'moments', 'what', 'compared', 'took'], rows)}")


if __name__ == "__main__":
    main()
