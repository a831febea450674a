"""TRL and this project on the same checkpoint, tasks, tools and batch, in turn in one run.

    python benchmarks/rl_step/compare.py --trl-python TRL_ENV/bin/python --out benchmarks/rl_step

It makes the checkpoint (the cold-started embedded policy, by the public command) and the task
files, then alternates the two systems: A B A B ..., each time in a fresh process pinned to the same
core, and prints the ratio of their medians, pair by pair. Bars of the project: a step of at most
1/4 of TRL's in float32 (1/3 with every rollout trained), 1/7 and 1/5 where bfloat16 pays, and 1/5
of TRL's time from the same start to 90 % sampled success.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
JSON = dict[str, Any]

VARIANTS = {
    "fp32": (["--dtype", "fp32"], ["--dtype", "fp32"]),
    "fp32, all rollouts": (["--dtype", "fp32"], ["--dtype", "fp32", "--all-rollouts"]),
    "bf16": (["--dtype", "bf16"], ["--dtype", "bf16"]),
    "bf16, all rollouts": (["--dtype", "bf16"], ["--dtype", "bf16", "--all-rollouts"]),
}
"""Arguments of TRL and of ours by variant."""

ALL = ", all rollouts"
"""How the variants end in which ours trains every rollout, as TRL does."""

NOT_MEASURED = (
    "Not measured: the time to 75 % sampled success on the hard level (this script draws tasks of "
    "the default level alone), and the time to success with every rollout trained."
)


def prepare(folder: Path, size: str) -> tuple[Path, Path, Path]:
    """A cold-started policy, training tasks and held-out tasks."""
    from tutelage.tasks.arithmetic import make_tasks

    run = folder / "start"
    subprocess.run(
        [str(Path(sys.executable).with_name("tutelage")), "train", "math", "--steps", "0",
         "--output", str(run), f"model.size={size}", "trainer.control=false"],
        check=True,
    )  # fmt: skip
    files: list[Path] = []
    for split, count in (("train", 2048), ("test", 100)):
        path = folder / f"{split}.jsonl"
        tasks = make_tasks("default", split, count, 0)
        rows = ({"id": t.id, **dict(t.fields)} for t in tasks)
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
        files.append(path)
    return run / "policy", files[0], files[1]


def run(python: str, script: str, arguments: list[str], core: int) -> JSON:
    """One measurement in a fresh process on one core."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [python, str(HERE / script), *arguments, "--out", out.name]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        pinned = ["taskset", "-c", str(core), *command] if sys.platform == "linux" else command
        subprocess.run(pinned, check=True, env=env, stdout=subprocess.DEVNULL)
        return json.loads(Path(out.name).read_text())


def pair(args: argparse.Namespace, common: list[str], name: str) -> JSON:
    """Alternate the two systems on one variant."""
    theirs, ours = VARIANTS[name]
    rounds: list[JSON] = []
    for _ in range(args.rounds):
        a = run(args.trl_python, "trl_step.py", [*common, *theirs], args.core)
        b = run(sys.executable, "ours_step.py", [*common, *ours], args.core)
        rounds.append({"trl": a["summary"], "ours": b["summary"]})
        print(name, json.dumps(rounds[-1]), flush=True)

    def middle(who: str, key: str) -> float:
        return statistics.median(r[who][key] for r in rounds)

    ratios = [r["ours"]["cpu_s"] / r["trl"]["cpu_s"] for r in rounds]
    return {
        "variant": name,
        "trl_cpu_s": middle("trl", "cpu_s"),
        "ours_cpu_s": middle("ours", "cpu_s"),
        "trl_wall_s": middle("trl", "wall_s"),
        "ours_wall_s": middle("ours", "wall_s"),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "rounds": rounds,
    }


def to_success(args: argparse.Namespace, model: Path, train: Path, test: Path) -> list[JSON]:
    """Training time from the same start to 90 % sampled success, evaluations left out."""
    rows: list[JSON] = []
    for seed in range(args.seeds):
        common = [
            "--model", str(model), "--tasks", str(train), "--eval-tasks", str(test),
            "--until-success", "0.9", "--seed", str(seed), "--steps", "60",
        ]  # fmt: skip
        a = run(args.trl_python, "trl_step.py", common, args.core)
        b = run(sys.executable, "ours_step.py", common, args.core)
        rows.append({"seed": seed, "trl": a["reached"], "ours": b["reached"]})
        print("to 90 %", json.dumps(rows[-1]), flush=True)
    return rows


def machine() -> JSON:
    """What it was measured on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "date": time.strftime("%Y-%m-%d"),
    }


def main() -> None:
    """Run everything that was asked for and write results.json and RESULTS.md."""
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--trl-python", required=True, help="python of an environment with TRL 1.16")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--seeds", type=int, default=3, help="of the time to 90 %%; 0 leaves it out")
    p.add_argument("--variants", default=",".join(VARIANTS).replace(", all", "+all"))
    p.add_argument("--size", default="xs")
    p.add_argument("--core", type=int, default=0)
    p.add_argument("--out", type=Path, default=HERE)
    args = p.parse_args()
    wanted = [v.replace("+all", ", all") for v in args.variants.split(",")]
    if strangers := sorted({*wanted} - {*VARIANTS}):
        p.error(f"--variants: unknown {strangers[0]!r}; there are {', '.join(VARIANTS)}")
    with tempfile.TemporaryDirectory() as folder:
        model, train, test = prepare(Path(folder), args.size)
        common = ["--model", str(model), "--tasks", str(train), "--steps", str(args.steps)]
        steps = [pair(args, common, name) for name in wanted]
        success = to_success(args, model, train, test) if args.seeds else []
    result = {"machine": machine(), "size": args.size, "steps": steps, "to_success": success}
    (args.out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    (args.out / "RESULTS.md").write_text(page(result))


def page(result: JSON) -> str:
    """The results as a page: first the pairs in which both systems train every rollout."""
    m = result["machine"]
    alike = [s for s in result["steps"] if s["variant"].endswith(ALL)]
    other = [s for s in result["steps"] if not s["variant"].endswith(ALL)]
    lines = [
        "# A GRPO step against TRL",
        "",
        f"{m['cpu']}, {m['cores']} cores, one core each; {m['date']}; policy size "
        f"`{result['size']}` (`xs` has 0.65 million parameters, `s` 1.7 million); 16 tasks x 8 "
        "rollouts, multi-turn with tools. Written by `compare.py`.",
    ]
    if alike:
        lines += ["", "## Like for like: both train every rollout", "", *_table(alike)]
    if other:
        lines += [
            "",
            "## Groups without reward variance skipped in the update",
            "",
            "Ours leaves out groups whose rollouts all have the same reward, since their advantage "
            "is 0. TRL trains them. So a part of this ratio is work that is skipped.",
            "",
            *_table(other),
        ]
    if result["to_success"]:
        lines += ["", *_success(result["to_success"])]
    return "\n".join(lines) + "\n"


def _table(steps: list[JSON]) -> list[str]:
    """One row a variant."""
    lines = [
        "| variant | TRL CPU s/step | ours CPU s/step | TRL wall | ours wall | ours / TRL |",
        "|---|---|---|---|---|---|",
    ]
    for s in steps:
        lines.append(
            f"| {s['variant'].removesuffix(ALL)} | {s['trl_cpu_s']:.2f} | {s['ours_cpu_s']:.2f} | "
            f"{s['trl_wall_s']:.2f} | {s['ours_wall_s']:.2f} | 1/{1 / s['ratio']:.1f} |"
        )
    return lines


def _success(rows: list[JSON]) -> list[str]:
    """Training time to the target, seed by seed."""
    lines = [
        "## To 90 % sampled success",
        "",
        "Training CPU seconds from the same cold start to 90 % sampled success on 100 held-out "
        "tasks of the default level (evaluated after each step, evaluations left out; float32; "
        "ours skips groups without reward variance). From this start it takes one or two steps, so "
        "it measures little more than the first step:",
        "",
        "| seed | TRL | ours | ours / TRL |",
        "|---|---|---|---|",
    ]
    for row in rows:
        a, b = row["trl"], row["ours"]
        ratio = f"1/{a['cpu_s'] / b['cpu_s']:.1f}" if a and b else "-"
        lines.append(f"| {row['seed']} | {_reached(a)} | {_reached(b)} | {ratio} |")
    return [*lines, "", NOT_MEASURED]


def _reached(found: JSON | None) -> str:
    if not found:
        return "not reached"
    return f"{found['cpu_s']:.1f} s, {found['steps']} step{'s' if found['steps'] != 1 else ''}"


if __name__ == "__main__":
    main()
