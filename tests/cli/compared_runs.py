"""Finished runs of all kinds on disk, with graded test rollouts and no model behind them."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.builders import make_rollout

from tutelage.config import Machine
from tutelage.prompts.config import PromptConfig
from tutelage.runs.folder import RunFolder, append_json, create, write_json, write_text
from tutelage.store import open_store
from tutelage.types import Mode, Reward, Rollout, Task
from tutelage.weights.config import resolve

from .sample_run import success

ENDPOINT = {"model": "small-model", "base_url": "http://127.0.0.1:9/v1"}


def tasks(count: int, first: int = 0) -> list[Task]:
    """Test tasks, numbered from `first`."""
    return [
        Task(f"t{i}", {"question": f"What is {i} + {i}?", "answer": str(2 * i)})
        for i in range(first, first + count)
    ]


def rewards(count: int, right: float, seed: int, near: float = 0.0) -> list[float]:
    """Rewards of which a share is exact and another share earns partial credit."""
    rng = random.Random(seed)
    draws = [rng.random() for _ in range(count)]
    return [1.0 if d < right else 0.75 if d < right + near else 0.0 for d in draws]


def prompt_run(
    path: Path,
    before: Sequence[float],
    after: Sequence[float],
    *,
    test: Sequence[Task] | None = None,
    reward: str | None = "numeric_partial_credit",
    known: bool = True,
    **config: Any,
) -> RunFolder:
    """A prompt search of three rounds."""
    test = tasks(len(before)) if test is None else test
    run = create(path)
    settings = PromptConfig(recipe="math", algorithm="apo", reward=reward, **config)
    models = {"main": ENDPOINT, "edit": ENDPOINT}
    told = {"kind": "prompt", "config": settings.model_dump(mode="json"), "models": models}
    write_json(run.config, told)
    for step in (1, 2, 3):
        append_json(run.metrics, {"phase": "search", "step": step})
    _write_tasks(run, test)
    (run.path / "best_prompt.txt").write_text("Always use the tools.")
    count = len(test)
    result = {
        "status": "finished",
        "kind": "prompt",
        "algorithm": "apo",
        "candidates": 14,
        "rollouts": 600 + 2 * count,
        "test_spent": {"rollouts": 2 * count},
        "task_calls": 1873,
        "optimiser_calls": 36,
        "tokens": 1_234_567,
        "dollars": 0.2345,
        "dollars_known": known,
        "wall_seconds": 68.4,
        "components": {"prompt": "Always use the tools."},
        "seed_components": {"prompt": "Solve it."},
        "reward_before_sampled": sum(before) / count,
        "reward_after_sampled": sum(after) / count,
        "success_before_sampled": sum(r == 1 for r in before) / count,
        "success_after_sampled": sum(r == 1 for r in after) / count,
    }
    write_json(run.result, result)
    _store(run, "apo", {"seed": before, "best": after}, test)
    return run


def weights_run(
    path: Path,
    before: Sequence[float],
    after: Sequence[float],
    *,
    estimator: str = "grpo",
    test: Sequence[Task] | None = None,
    agent: Mapping[str, Any] | None = None,
    weights: bytes = b"base",
    status: str = "finished",
) -> RunFolder:
    """A training of weights, measured greedily and sampled alike."""
    test = tasks(max(len(before), len(after))) if test is None else test
    run = create(path)
    values = ["model.path=elsewhere"] if estimator == "sft" else []
    keys = [f"algorithm.adv_estimator={estimator}"] if estimator != "sft" else []
    resolved = resolve("math", [*keys, *values], machine=Machine(0, 2), flags={"seed": 3})
    told = json.loads(resolved.to_json())
    if estimator == "sft":
        told["kind"], told["config"]["recipe"] = "supervised", "sft"
        told["config"]["model"]["path"] = None
    if agent is not None:
        write_json(run.agent, agent)
    write_text(run.config, json.dumps(told))
    initial = run.checkpoints / "initial"
    initial.mkdir()
    (initial / "model.safetensors").write_bytes(weights)
    _write_tasks(run, test)
    run.policy.mkdir()
    steps = {"sft_steps": 60} if estimator == "sft" else {"rl_steps": 12}
    write_json(run.result, {"status": status, "wall_seconds": 162.0, **steps})
    labels = {f"before/{k}": before for k in ("sampled", "greedy") if before}
    labels |= {f"after/{k}": after for k in ("sampled", "greedy") if after}
    _store(run, "rl", labels, test)
    return run


def _write_tasks(run: RunFolder, test: Sequence[Task]) -> None:
    place = run.tasks("test")
    place.parent.mkdir()
    place.write_text("".join(json.dumps({**t.fields, "id": t.id}) + "\n" for t in test))


def _store(
    run: RunFolder, algorithm: str, labels: Mapping[str, Sequence[float]], test: Sequence[Task]
) -> None:
    with open_store(run.store) as store:
        store.put_run(
            run.name,
            name=run.name,
            recipe="math",
            algorithm=algorithm,
            config={},
            seed=0,
            folder=str(run.path),
            status="running",
        )
        for number, (label, values) in enumerate(labels.items()):
            store.put_rollouts(
                [
                    _rollout(run.name, f"roll_{number}_{i}", label, task, value)
                    for i, (task, value) in enumerate(zip(test, values, strict=True))
                ]
            )


def _rollout(run_id: str, name: str, label: str, task: Task, value: float) -> Rollout:
    graded = Reward(value, {"exact": float(value == 1)})
    attempt = replace(success(), id=f"att_{name}", reward=graded)
    of = {"run_id": run_id, "task": task, "mode": Mode.TEST, "label": label}
    return make_rollout(name, attempt, step=1, group=task.id, **of)
