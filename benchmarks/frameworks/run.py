"""Train the agents of real frameworks: what they earn before and after, and how long it takes.

For each framework: a small policy is cold-started on the framework's own rendered requests
(`examples/frameworks/cold_start.py`), then `Trainer(algorithm=RL(...))` trains the example's agent
as it stands, through the gateway. Success is measured on 100 held-out tasks, sampled and greedy,
before and after. In the environment of `examples/frameworks/requirements.txt`:

    OMP_NUM_THREADS=1 PYTHONPATH=examples/frameworks \
        python -m benchmarks.frameworks.run agno openai-agents agent-framework

With `--control` the training rollouts are paid by a fair coin in place of the calculation, and all
else is equal: what a policy gains by steps alone, whatever they are paid for. Validation and test
are graded as ever.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import tempfile
import time
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import machine, table
from cold_start import cold_start
from gather import FRAMEWORKS, calculations

from tutelage import RL, Trainer, reward
from tutelage.rewards.builtin import exact_number
from tutelage.seeds import SeedTree
from tutelage.types import Attempt, Task

HERE = Path(__file__).parent
PACKAGES = {"agent-framework": "agent-framework-core"}
"""The package whose version is told, where it is not the framework's name."""


@reward(inline=True)
def coin_in_training(
    prediction: str, answer: Any, trajectory: Attempt, coin: bool = False
) -> float:
    """A fair coin for tasks with `coin`, drawn by the attempt; 1.0 for the right number else."""
    if coin:
        return float(SeedTree(0).child("coin", trajectory.id).value(bits=1))
    return exact_number(prediction, answer)


async def train(name: str, steps: int, folder: Path, control: bool = False) -> dict[str, Any]:
    """Cold start and training of one framework's agent."""
    framework = FRAMEWORKS[name]
    agent = framework.load().agent
    began = time.perf_counter()
    started = await cold_start(framework, say=partial(print, flush=True))
    cold = time.perf_counter() - began
    trainer = Trainer(
        algorithm=RL(
            {
                "steps": steps,
                "lr": 1e-4,
                "data.train_batch_size": 8,
                "agent.num_chains": 8,
                "agent.max_tokens_per_turn": 40,
                "rollout.max_len": started.max_len,
                "actor.entropy_coeff": 0.0,  # reward alone moves the policy
                "actor.use_kl_loss": False,
                "trainer.test_freq": -1,
                "trainer.save_freq": -1,
            }
        ),
        train_dataset=[
            row | ({"coin": True} if control else {}) for row in _rows(calculations("train", 1000))
        ],
        val_dataset=_rows(calculations("val", 20)),
        test_dataset=_rows(calculations("test", 100)),
        policy=started.policy,
        reward=coin_in_training if control else "math",
        output_dir=folder / (f"{name}-control" if control else name),
        n_runners=32,
    )
    began = time.perf_counter()
    result = await trainer.train(agent)
    trained = time.perf_counter() - began
    details = result.details
    found = {
        "framework": name,
        "control": control,
        "version": importlib.metadata.version(PACKAGES.get(name, name)),
        "prompt_tokens": started.prompt_tokens,
        "max_len": started.max_len,
        "cold_steps": started.steps,
        "cold_minutes": cold / 60,
        "rl_steps": result.steps,
        "rollouts": result.rollouts,
        "rl_minutes": trained / 60,
        "sampled": [details["success_before_sampled"], details["success_after_sampled"]],
        "greedy": [details["success_before_greedy"], details["success_after_greedy"]],
        "rewards": [round(r, 3) for r in result.rewards()],
        "failures": dict(result.failures),
        "date": date.today().isoformat(),
        "machine": machine(),
    }
    print(json.dumps(found), flush=True)
    return found


def _rows(tasks: list[Task]) -> list[dict[str, Any]]:
    """Question and answer alone: the agent is told nothing else."""
    return [{"question": t.fields["question"], "answer": t.fields["answer"]} for t in tasks]


def titled(found: dict[str, Any]) -> str:
    """The framework, and whether a coin paid it."""
    return found["framework"] + (" control" if found.get("control") else "")


def report(found: list[dict[str, Any]]) -> str:
    """RESULTS.md."""
    lines = [
        [
            f"{titled(f)} {f['version']}",
            str(f["prompt_tokens"]),
            str(f["max_len"]),
            f"{f['sampled'][0]:.0%}",
            f"**{f['sampled'][1]:.0%}**",
            f"{f['greedy'][0]:.0%}",
            f"**{f['greedy'][1]:.0%}**",
            f"{f['cold_minutes']:.1f}",
            f"{f['rl_minutes']:.1f} ({f['rl_steps']} steps)",
            f["date"],
        ]
        for f in found
    ]
    head = ["agent", "prompt tokens", "context", "sampled before", "after", "greedy before",
            "after", "cold start, min", "training, min", "date"]  # fmt: skip
    curves = "\n".join(
        f"{titled(f):>18}  " + " ".join(f"{r:.2f}" for r in f["rewards"]) for f in found
    )
    machines = "; ".join(dict.fromkeys(f["machine"] for f in found))
    failures = "; ".join(
        f"{titled(f)} {', '.join(f'{n} {c}' for c, n in f['failures'].items()) or 'none'}"
        f" of {f['rollouts']}"
        for f in found
    )
    return (
        "# Agents of real frameworks, trained\n\n"
        f"{machines}. The machine was shared with other work, so minutes are upper bounds.\n\n"
        "The examples' agents as they stand, 8 tasks x 8 rollouts a step; success on 100 held-out "
        "calculations. Everything through HTTP and the framework's own loop. A *control* is the "
        "same run whose training rollouts are paid by a fair coin, drawn by the attempt; its test "
        "is graded as ever.\n\n"
        f"{table(head, lines)}\n"
        f"Failed rollouts: {failures}.\n\n"
        "Mean reward of each training step, a control's as its coins paid:\n\n"
        f"```text\n{curves}\n```\n"
    )


def main() -> None:
    """Train each framework that is named, and write RESULTS.md from all results that there are."""
    parser = argparse.ArgumentParser(description="Train agents of real frameworks.")
    parser.add_argument("names", nargs="+", choices=sorted(FRAMEWORKS))
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--control", action="store_true", help="pay training by a fair coin")
    parser.add_argument("--out", type=Path, default=HERE)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    async def each() -> None:
        with tempfile.TemporaryDirectory() as folder:
            for name in args.names:
                keep(args.out, await train(name, args.steps, Path(folder), args.control))

    asyncio.run(each())


def keep(out: Path, new: dict[str, Any]) -> None:
    """Add one result, in the place of an older one of the same framework and reward."""
    file = out / "results.json"
    old = json.loads(file.read_text()) if file.exists() else []
    kept = {titled(f): f for f in [*old, new]}
    file.write_text(json.dumps([*kept.values()], indent=2) + "\n")
    (out / "RESULTS.md").write_text(report([*kept.values()]))


if __name__ == "__main__":
    main()
