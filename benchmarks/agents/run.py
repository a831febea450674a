"""Does each kind of built-in agent learn? A tiny policy, a short cold start, then `train rl`.

`python benchmarks/agents/run.py react out/` makes the tasks, teaches a fresh policy the agent's
form with demonstrations most of which guess, and then runs the public command on it. The command
prints and writes (`result.json`) the success on held-out tasks before and after.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import torch

from tutelage.policy.model import build_policy
from tutelage.policy.packing import plan_micro_batches
from tutelage.policy.row import Row
from tutelage.seeds import SeedTree
from tutelage.tools import corpus
from tutelage.weights.optim import SUPERVISED, make_optimizer

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from agent_tasks import AgentKind, corpus_rows, demonstration, tasks_of, tools_of

BATCH = 32
CLEAN, MIXED = 150, 200
GUESS_SHARE = 0.7
PEAK = 3e-3


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def cold_start(kind: AgentKind, train: list[Any], seeds: SeedTree, folder: Path) -> None:
    """A fresh policy that knows the form and, mostly, guesses."""
    rng = seeds.child("corpus").python()
    texts = (
        str(m.content)
        for task in train[:1500]
        for m in [*task.messages(), *demonstration(kind, task, False, rng)]
    )
    policy = build_policy(texts, size="xs", layout="qwen3", seed=seeds.value(), max_positions=512)
    optimizer = make_optimizer(
        policy.named_tensors(), SUPERVISED.model_copy(update={"lr": PEAK}), "muon"
    )
    start = time.perf_counter()
    for step in range(CLEAN + MIXED):
        draw = seeds.child("step", step).python()
        rows: list[Row] = []
        for task in draw.sample(train, min(BATCH, len(train))):
            guess = step >= CLEAN and draw.random() < GUESS_SHARE
            messages = [*task.messages(), *demonstration(kind, task, guess, draw)]
            rows.append(Row(*policy.codec.encode_demonstration(messages)))
        total = sum(sum(r.mask) for r in rows)
        for chosen in plan_micro_batches(rows, 8192):
            loss = -policy.score([rows[i] for i in chosen]).logp_K.sum() / total
            loss.backward()
        rate = min(1.0, (step + 1) / 20) * max(0.1, min(1.0, (CLEAN - step) / 100))
        optimizer.step(rate)
        if (step + 1) % 50 == 0:
            print(f"cold start {step + 1}: loss {loss.item():.3f}, "
                  f"{time.perf_counter() - start:.0f} s", flush=True)  # fmt: skip
    policy.save(folder)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["react", "code", "search"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    kind, out = cast("AgentKind", arguments.kind), arguments.out
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    seeds = SeedTree(arguments.seed).child("agents", kind)
    train = tasks_of(kind, "train", 2000, arguments.seed)
    files = {
        name: write(out / f"{name}.jsonl", [
            {"question": t.fields["question"], "answer": t.fields["answer"]}
            for t in tasks_of(kind, split, count, arguments.seed)
        ])
        for name, split, count in (
            ("train", "train", 2000), ("val", "val", 100), ("test", "test", 150)
        )
    }  # fmt: skip
    extra: list[str] = []
    if kind == "search":
        rows = write(
            out / "corpus.jsonl", cast("list[dict[str, Any]]", corpus_rows(arguments.seed))
        )
        corpus.build([rows], out / "corpus.db")
        extra.append(f"tools.search_index={out / 'corpus.db'}")
    cold_start(kind, train, seeds, out / "start")
    command = [
        str(Path(sys.executable).with_name("tutelage")), "train", "rl",
        "--model", str(out / "start"), "--train", str(files["train"]),
        "--val", str(files["val"]), "--test", str(files["test"]),
        "--tools", ",".join(tools_of(kind)), "--steps", str(arguments.steps),
        "--seed", str(arguments.seed), "--output", str(out / "run"),
        "--reward", "exact_match" if kind == "search" else "math",
        f"agent.agent_type={'react' if kind == 'search' else kind}", "agent.system_prompt=''",
        "algorithm.adv_estimator=grpo", "agent.num_chains=8", "data.train_batch_size=16",
        "actor.optim.lr=2e-4", "actor.use_kl_loss=false", "actor.entropy_coeff=0.0",
        "agent.max_tokens_per_turn=60", "agent.max_turns=3", "rollout.max_len=256",
        "trainer.control=false", "trainer.device=cpu", "trainer.val_tasks=150", *extra,
    ]  # fmt: skip
    subprocess.run(command, check=True)
    result = json.loads((out / "run" / "result.json").read_text())
    kept = {k: v for k, v in result.items() if k.startswith("success")}
    print(json.dumps({"kind": kind, "seed": arguments.seed, **kept}))


if __name__ == "__main__":
    main()
