"""What ranks do in tests: the tiny job, in either order of its gradients."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

from tests.weights import tiny_job
from tests.weights.samples import LAPTOP

from tutelage.runs.folder import RunFolder, create
from tutelage.runs.progress import Progress
from tutelage.weights import process_group

MANY: dict[str, object] = {
    "data__train_batch_size": 4,
    "actor__max_tokens_per_micro_batch": 80,
    "sft__max_steps": 0,
}
"""A step has several micro-batches."""


def changed(order: str) -> None:
    """Have this process add gradients in the order of a binary tree, where `order` says `tree`, and
    shard any model where it says `shards`."""
    from tutelage.distributed.process_group import TorchProcessGroup

    known, least = process_group.get_group(), 0 if "shards" in order else 1 << 40
    made = TorchProcessGroup(known.rank, known.size, tree="tree" in order, shard_from=least)
    for module in _readers():
        module.get_group = functools.cache(lambda: made)  # pyright: ignore[reportAttributeAccessIssue]


def _readers() -> list[Any]:
    from tutelage.weights import following

    return [process_group, following]


def train(source: Path, out: Path, order: str, **keys: object) -> None:
    """Train to the end; the first rank makes the folder."""
    from tutelage.weights import jobs
    from tutelage.weights.config import resolve

    changed(order)
    folder = create(out) if process_group.get_group().rank == 0 else RunFolder(out)
    given = {"trainer__total_training_steps": 3, **MANY, **keys}
    resolved = resolve("math", tiny_job.overrides(source, **given), machine=LAPTOP)
    jobs.train(resolved, folder, Progress())


def resume(out: Path, order: str) -> None:
    """Go on with what `train` began."""
    from tutelage.weights import jobs

    changed(order)
    jobs.resume(RunFolder(out), Progress())


def digest(out: Path) -> str:
    """A hash of the weights that a run ended with."""
    return hashlib.sha256((out / "policy" / "model.safetensors").read_bytes()).hexdigest()[:16]


def metrics(out: Path) -> list[dict[str, Any]]:
    """Its lines of metrics without those of the clock."""
    from tutelage.runs.folder import is_wall_clock

    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not is_wall_clock(k)} for line in lines]


def train_with(source: Path, out: Path, order: str, keys: dict[str, object]) -> None:
    """`train` with further keys."""
    train(source, out, order, **keys)


def learn(source: Path, out: Path, order: str) -> None:
    """Train on demonstrations, with validation rows."""
    from tests.weights.test_sft import resolved

    from tutelage.weights import jobs

    changed(order)
    folder = create(out) if process_group.get_group().rank == 0 else RunFolder(out)
    # In bfloat16, which demonstrations take where the processor has it, a shard's embedding gets a
    # gradient of that format, and the whole one of float32.
    keys = ["actor.max_tokens_per_micro_batch=40", "trainer.test_freq=1", "model.dtype=float32"]
    asked = resolved(source, *keys, val=source / "val.jsonl", steps=3)
    jobs.train(asked, folder, Progress())
