"""Does every estimator and loss really learn? The embedded job from one cold start, three seeds.

    python -m benchmarks.estimators.run [--only "GRPO;RLOO"] [--seeds 3] [--steps 20]
        [--start FOLDER] [--results FILE]

All runs begin with the same policy (a cold start that mostly guesses), play the same embedded tasks
with their tools, and differ in the estimator, in the loss and in the seed alone, but for what
belongs to a method: a loss's own clip range and average, which it takes by itself, and a critic
with its learning rate. Success is that of sampled episodes on test tasks that no training saw,
before and after.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import results, table

from tutelage.policy.machine import detect_machine
from tutelage.runs.folder import RunFolder, create
from tutelage.runs.progress import Progress
from tutelage.runs.stored_evaluation import StoredEvaluation, read_evaluation
from tutelage.statistics.intervals import wilson
from tutelage.weights import jobs
from tutelage.weights.config import resolve

METHODS: dict[str, dict[str, object]] = {
    "GAE + critic": {"algorithm.adv_estimator": "gae", "trainer.critic_warmup": 2},
    "GRPO": {"algorithm.adv_estimator": "grpo"},
    "Dr.GRPO": {
        "algorithm.adv_estimator": "grpo",
        "algorithm.norm_adv_by_std_in_grpo": "false",
        "actor.loss_agg_mode": "seq-mean-token-sum-norm",
    },
    "RLOO": {"algorithm.adv_estimator": "rloo"},
    "REINFORCE++": {"algorithm.adv_estimator": "reinforce_plus_plus"},
    "REINFORCE++-baseline": {"algorithm.adv_estimator": "reinforce_plus_plus_baseline"},
    "ReMax": {"algorithm.adv_estimator": "remax"},
    "RAFT": {"algorithm.adv_estimator": "raft"},
    "Best-of-N": {"algorithm.adv_estimator": "best_of_n"},
    "GRPO, GSPO loss": {"actor.policy_loss.loss_mode": "gspo"},
    "GRPO, CISPO loss": {"actor.policy_loss.loss_mode": "cispo"},
    "GRPO, SAPO loss": {"actor.policy_loss.loss_mode": "sapo"},
}

WHEN = ("before", "after")

SHARED: dict[str, object] = {
    "data.train_batch_size": 16,
    "agent.num_chains": 8,
    "agent.max_tokens_per_turn": 40,
    "rollout.max_len": 256,
    "actor.optim.lr": 2e-4,
    "actor.ppo_mini_batch_size": 64,
    "critic.optim.lr": 1e-3,
    "trainer.control": "false",
    "trainer.test_freq": -1,
    "trainer.save_freq": -1,
    "trainer.logger": "[jsonl]",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Size of the benchmark."""

    seeds: int = 3
    steps: int = 20
    test_tasks: int = 200
    cold: Mapping[str, object] | None = None
    """Further keys of the cold start."""


def train(out: Path, keys: Mapping[str, object]) -> tuple[RunFolder, dict[str, Any]]:
    """One run of the embedded job."""
    overrides = [f"{key}={value}" for key, value in keys.items()]
    folder = create(out)
    resolved = resolve("math", overrides, machine=detect_machine())
    return folder, jobs.train(resolved, folder, Progress())


def cold_start(root: Path, settings: Settings) -> Path:
    """The policy that every run begins with."""
    keys: dict[str, object] = {
        "trainer.total_training_steps": 0,
        "trainer.val_before_train": "false",
        "trainer.control": "false",
        "trainer.val_tasks": 100,
        "trainer.logger": "[jsonl]",
    }
    folder, _ = train(root / "cold", keys | dict(settings.cold or {}))
    return folder.policy


def measure(
    root: Path, start: Path, names: Sequence[str], settings: Settings
) -> dict[str, list[dict[str, Any]]]:
    """The results of all runs by method, seed after seed."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for seed in range(settings.seeds):
        for number, name in enumerate(names):
            keys = SHARED | METHODS[name] | {
                "model.path": start,
                "trainer.total_training_steps": settings.steps,
                "trainer.val_tasks": settings.test_tasks,
                "seed": 100 + seed,
            }  # fmt: skip
            begun = time.process_time()
            folder, result = train(root / f"{number}-{seed}", keys)
            rewards = [x["reward/mean"] for x in folder.read_metrics() if x["phase"] == "rl"]
            found[name].append(
                {
                    **sampled(result, "before"),
                    **sampled(result, "after"),
                    "greedy": result["success_after_greedy"],
                    "reward": statistics.mean(rewards[-3:]),
                    "seconds": time.process_time() - begun,
                }
            )
            print(name, seed, json.dumps(found[name][-1]), flush=True)
    return found


def sampled(result: Mapping[str, Any], when: str) -> dict[str, Any]:
    """Success when sampled, of how many judged rollouts, and of how many in all."""
    told = read_evaluation(result, f"{when}_sampled") or StoredEvaluation()
    if told.success is None or not told.judged:
        raise ValueError(f"{when}: no success was measured; see the failures in {result!r}")
    return {
        when: told.success,
        f"judged_{when}": told.judged,
        f"rollouts_{when}": told.rollouts,
    }


def page(found: Mapping[str, list[dict[str, Any]]], settings: Settings) -> str:
    """The results as a table."""

    def pooled(runs: Sequence[Mapping[str, Any]], key: str) -> str:
        total = sum(r[f"judged_{key}"] for r in runs)
        solved = round(sum(r[key] * r[f"judged_{key}"] for r in runs))
        low, high = wilson(solved, total)
        return f"{100 * solved / total:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"

    def judged(runs: Sequence[Mapping[str, Any]]) -> str:
        both = [sum(r[f"{n}_{w}"] for r in runs for w in WHEN) for n in ("judged", "rollouts")]
        return f"{both[0]} of {both[1]}"

    rows = [
        [
            name,
            pooled(runs, "before"),
            pooled(runs, "after"),
            ", ".join(f"{100 * r['after']:.1f}" for r in runs),
            f"{100 * min(r['after'] - r['before'] for r in runs):+.1f}",
            judged(runs),
            f"{statistics.mean(r['seconds'] for r in runs):.0f}",
        ]
        for name, runs in found.items()
    ]
    head = ["method", "before", "after", "each seed", "least lift", "judged", "CPU s a run"]
    return (
        f"{settings.steps} steps of 16 tasks with 8 rollouts each, {settings.seeds} seeds, "
        f"{settings.test_tasks} test tasks a seed, sampled at temperature 1. Rates are pooled over "
        "the seeds with Wilson's 95 % interval; the least lift is that of the worst seed, in "
        "percentage points. All runs begin with the same cold-started policy. Judged are the "
        "rollouts of both measurements; CPU seconds, of the training process, include them.\n\n"
        f"{table(head, rows)}\n"
        "GAE trains its critic alone in the first two steps. ReMax plays one more, greedy rollout "
        "of each task. Learning rates were not tuned per method: 2e-4 for the policy, 1e-3 for the "
        "critic.\n\n"
        "Command: `python -m benchmarks.estimators.run`.\n"
    )


def run(
    names: Sequence[str], settings: Settings, start: Path | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Cold start, unless there is one, and all runs, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="estimators-") as place:
        root = Path(place)
        return measure(root, start or cold_start(root, settings), names, settings)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="methods, separated by semicolons; all by default")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--start", type=Path, help="a policy folder instead of a cold start")
    parser.add_argument("--results", type=Path, help="write the page there")
    given = parser.parse_args()
    names = given.only.split(";") if given.only else list(METHODS)
    settings = Settings(seeds=given.seeds, steps=given.steps)
    found = run(names, settings, given.start)
    text = page(found, settings)
    print(text)
    if given.results is not None:
        results(given.results, "Estimators and losses on the embedded job", text)


if __name__ == "__main__":
    main()
