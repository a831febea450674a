"""Everything about a run that two equal runs must have in common, to compare bit for bit.

Only clock readings are left out: times of attempts, calls and tool calls, the metrics that
`is_wall_clock` names, and the times in `result.json` and in a checkpoint's state. Paths are those
below the run's folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tutelage.runs.folder import RunFolder, is_wall_clock
from tutelage.store import open_store
from tutelage.types import Rollout
from tutelage.weights import checkpoint

CLOCK_RESULTS = ("wall_seconds", "phases")


def outcome(folder: Path) -> dict[str, Any]:
    """A finished run as plain data; equal runs give equal data."""
    run = RunFolder(folder)
    state, tensors = checkpoint.load(checkpoint.list_complete(run)[-1])
    counters = dataclasses.asdict(state)
    del counters["seconds"]
    result = run.read_result()
    assert result is not None
    result["policy"] = result["policy"].removeprefix(f"{folder.name}/")
    with open_store(run.store, create=False) as store:
        (stored,) = store.runs()
        rollouts = {r.id: record(r) for r in store.rollouts(stored.id)}
        metrics = [(row.step, without_clock(row.values)) for row in store.metrics(stored.id)]
        trained = [dataclasses.asdict(row) for row in store.training_rows(stored.id)]
    return {
        "tensors": dict(fingerprints("", tensors)),
        "state": counters,
        "policy": {p.name: digest(p.read_bytes()) for p in sorted(run.policy.iterdir())},
        "metrics": [without_clock(line) for line in run.read_metrics()],
        "stored metrics": metrics,
        "result": {k: v for k, v in result.items() if k not in CLOCK_RESULTS},
        "rollouts": rollouts,
        "training rows": trained,
        "status": stored.status.value,
    }


def assert_equal(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """`found == wanted`, with a message that names what differs instead of printing it all."""
    assert found.keys() == wanted.keys()
    different = [line for part in wanted for line in differences(part, found[part], wanted[part])]
    assert not different, "\n".join(different[:20])


def differences(where: str, found: Any, wanted: Any) -> Iterator[str]:
    """Where two values of plain data differ."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in sorted({*found, *wanted}, key=str):
            here = f"{where}/{key}"
            if key not in found or key not in wanted:
                yield f"{here}: only in the {'second' if key not in found else 'first'}"
            else:
                yield from differences(here, found[key], wanted[key])
    elif isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
            yield from differences(f"{where}[{i}]", a, b)
    elif found != wanted:
        yield f"{where}: {found!r:.200} != {wanted!r:.200}"


def fingerprints(where: str, value: Any) -> Iterator[tuple[str, str]]:
    """Every tensor and number below a checkpoint's entry, by its path, as a digest of its bits."""
    if isinstance(value, torch.Tensor):
        bits = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        yield where, f"{value.dtype} {tuple(value.shape)} {digest(bits)}"
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from fingerprints(f"{where}/{key}", item)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from fingerprints(f"{where}[{i}]", item)
    else:
        yield where, repr(value)


def without_clock(line: dict[str, Any]) -> dict[str, Any]:
    """A line of metrics without those that depend on the machine's speed."""
    return {k: v for k, v in line.items() if not is_wall_clock(k)}


def record(rollout: Rollout, *, seconds: bool = False) -> dict[str, Any]:
    """A rollout as plain data; its durations only on request."""
    data: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(rollout)))
    if not seconds:
        for attempt in data["attempts"]:
            for part in (attempt, *attempt["calls"], *attempt["tool_results"]):
                del part["seconds"], part["started"]
    return data


def stored(folder: Path) -> list[Rollout]:
    """All rollouts in a run's store."""
    path = RunFolder(folder).store
    with open_store(path, create=False) as store:
        (run,) = store.runs()
        return list(store.rollouts(run.id))


def digest(data: bytes) -> str:
    """A short hash."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()
