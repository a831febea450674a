"""Every logger gets every line once, also over a kill; what is missing is found before the run."""

from __future__ import annotations

import importlib.util
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.weights.samples import LAPTOP
from tests.weights.tiny_job import Notes, killed_and_resumed, material, overrides

from tutelage.errors import MissingExtraError
from tutelage.runs.folder import RunFolder, create, is_wall_clock
from tutelage.runs.loggers import check_loggers, select_numbers
from tutelage.weights import jobs
from tutelage.weights.config import resolve

Seen = dict[str, list[tuple[int, float]]]


@pytest.fixture(scope="module")
def source(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return material(tmp_path_factory.mktemp("source"))


@pytest.fixture(autouse=True)
def _no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def wanted(folder: RunFolder) -> Seen:
    """All numbers of the run's own record."""
    out: Seen = {}
    for line in folder.read_metrics():
        for name, value in select_numbers(line).items():
            out.setdefault(name, []).append((line["tick"], pytest.approx(value, rel=1e-6)))
    return out


def in_tensorboard(folder: RunFolder) -> Seen:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder.path / "tensorboard"))
    events.Reload()
    return {
        name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]
    }


def in_mlflow(folder: RunFolder) -> Seen:
    from mlflow.tracking import MlflowClient

    client: Any = MlflowClient((folder.path / "mlflow").resolve().as_uri())
    (experiment,) = [e for e in client.search_experiments() if e.name != "Default"]
    (made,) = client.search_runs([experiment.experiment_id])
    out: Seen = {}
    for name in made.data.metrics:
        if name != "tick":
            history = client.get_metric_history(made.info.run_id, name)
            out[name] = [(m.step, m.value) for m in history]
    return out


def in_wandb(folder: RunFolder) -> Seen:
    """What `wandb sync` would send: the history records of the one offline file."""
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.path.glob("wandb/offline-run-*/*.wandb")
    out: Seen = {}
    for data in blocks(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            found = {i.key or "/".join(i.nested_key): i.value_json for i in record.history.item}
            step = int(found["_step"])
            for name, value in found.items():
                if not name.startswith("_"):
                    out.setdefault(name, []).append((step, json.loads(value)))
    return out


def blocks(data: bytes, size: int = 32768) -> Iterator[bytes]:
    """Records of a file in LevelDB's log format, behind a header of seven bytes."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        if size - at % size < 7:
            at += size - at % size
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


READERS = {"tensorboard": in_tensorboard, "mlflow": in_mlflow, "wandb": in_wandb}


@pytest.mark.parametrize(
    "name", ["tensorboard", *(pytest.param(n, marks=pytest.mark.full) for n in ("mlflow", "wandb"))]
)
def test_a_killed_run_has_neither_gaps_nor_doubles(source: Path, tmp_path: Path, name: str) -> None:
    keys: dict[str, object] = {"trainer__logger": f"[{name}]", "trainer__test_freq": 2}
    folder = killed_and_resumed(source, tmp_path / "run", at=4, **keys)
    found, told = READERS[name](folder), wanted(folder)
    assert len(told["reward/mean"]) == 5
    assert set(found) == set(told)
    for metric, values in told.items():
        assert [step for step, _ in found[metric]] == [step for step, _ in values], metric
        if not is_wall_clock(metric):
            assert found[metric] == values, metric


@pytest.mark.parametrize("name", READERS)
def test_a_missing_package_is_found_before_the_run(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    real = importlib.util.find_spec

    def without(package: str, *rest: Any) -> Any:
        return None if package == name else real(package, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    folder = create(tmp_path / "run")
    keys = overrides(source, trainer__logger=f"[console,{name}]")
    with pytest.raises(MissingExtraError, match=rf"tutelage\[{name}\]"):
        jobs.train(resolve("math", keys, machine=LAPTOP), folder, Notes())
    assert not folder.config.exists()
    check_loggers(["console", "jsonl"])


def test_metrics_of_other_phases_carry_their_name() -> None:
    line = {"phase": "control", "step": 3, "tick": 9, "reward/mean": 0.5}
    assert select_numbers(line) == {"control/reward/mean": 0.5}
    assert select_numbers(line | {"phase": "rl"}) == {"reward/mean": 0.5}
