"""Checkpoints: exact, complete or absent, and clear when one cannot be read or written."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tutelage.cli import build_app
from tutelage.errors import RunError
from tutelage.runs.folder import RunFolder, create
from tutelage.weights import checkpoint

from .tiny_job import material, overrides


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """An empty run folder with a configuration, so that it is one that can be resumed."""
    made = create(tmp_path / "run")
    made.config.write_text("{}")
    return made


def flip(path: Path) -> None:
    """Turn one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def state(tick: int) -> checkpoint.TrainingState:
    return checkpoint.TrainingState(
        phase="rl",
        phase_step=tick,
        tick=tick,
        policy_version=7,
        max_dlogp=1.2345678901234567e-07,
        results={"done": ["cold_start"], "before/sampled": {"success": 1 / 3}},
        seconds={"total": 0.1 + 0.2},
    )


def tensors() -> dict[str, Any]:
    odd = torch.tensor([1.0, -0.0, float("inf"), float("nan"), 1e-45])
    return {
        "policy": {"a": odd, "b": torch.arange(6).view(2, 3)},
        "kept": {},
        "optimizer": {"parts": [{"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": []}]},
    }


def test_what_is_loaded_is_what_was_saved_bit_for_bit(folder: RunFolder) -> None:
    path = checkpoint.save(folder, state(40), tensors())
    assert path.name == "step_000040"
    assert checkpoint.list_complete(folder) == [path]
    found, loaded = checkpoint.load(path)
    assert found == state(40)
    for name, tensor in tensors()["policy"].items():
        again = loaded["policy"][name]
        assert again.dtype == tensor.dtype
        assert again.view(torch.uint8).equal(tensor.view(torch.uint8))
    assert loaded["optimizer"]["parts"][0]["state"][0]["step"] == 3


def test_those_that_are_asked_for_stay_and_the_best(folder: RunFolder) -> None:
    """Steps and those between phases have different names; the best one outlives the newer."""
    for step in (1, 2, 3, 4):
        saved = state(step)
        saved.results["best"] = {"step": 1, "value": 0.5}
        checkpoint.save(folder, saved, tensors(), keep=1)
    over = state(9)
    over.results = {"done": ["rl"], "rl_steps": 4, "best": {"step": 1, "value": 0.5}}
    checkpoint.save(folder, over, tensors(), keep=1)
    trained = ["step_000001", "step_000004"]
    names = [p.name for p in checkpoint.list_complete(folder)]
    assert names == [*trained, "step_000004_tick_000009"]
    checkpoint.remove_intermediate(folder)
    assert [p.name for p in checkpoint.list_complete(folder)] == trained
    for step in (5, 6):
        checkpoint.save(folder, state(step), tensors(), keep=None)
    assert len(checkpoint.list_complete(folder)) == 4


def test_a_damaged_one_is_set_aside_for_the_one_before(folder: RunFolder) -> None:
    first, second = (checkpoint.save(folder, state(step), tensors()) for step in (1, 2))
    flip(second / "tensors.pt")
    notes: list[str] = []
    found = checkpoint.load_newest(folder, notes.append)
    assert found is not None
    assert found[0] == state(1)
    assert checkpoint.list_complete(folder) == [first]
    assert "step_000002': tensors.pt is damaged" in notes[0]
    assert notes[0].endswith("continuing from the previous checkpoint, step_000001")


def test_one_without_its_last_file_does_not_exist(folder: RunFolder) -> None:
    path = checkpoint.save(folder, state(5), tensors())
    (path / "checksums.json").unlink()
    assert checkpoint.list_complete(folder) == []
    (folder.checkpoints / "initial").mkdir()
    (folder.checkpoints / "initial" / "checksums.json").touch()
    assert checkpoint.list_complete(folder) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: (path / "tensors.pt").write_bytes(b""),
        lambda path: (path / "tensors.pt").unlink(),
        lambda path: (path / "state.json").write_text('{"phse": "rl"}'),
        lambda path: flip(path / "tensors.pt"),
        lambda path: flip(path / "checksums.json"),
    ],
)
def test_a_damaged_one_is_named_with_the_way_out(folder: RunFolder, damage: Any) -> None:
    path = checkpoint.save(folder, state(5), tensors())
    damage(path)
    with pytest.raises(RunError, match=r"cannot read .*step_000005': "):
        checkpoint.load(path)
    with pytest.raises(RunError, match=r"restore a copy of .*step_000005', or start with another"):
        checkpoint.load_newest(folder, print)
    assert checkpoint.list_complete(folder) == [path], (
        "what cannot be read stays where nothing else is"
    )


def test_a_disk_that_refuses_keeps_the_older_ones(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch reports a full disk as a RuntimeError."""
    first = checkpoint.save(folder, state(1), tensors())

    def refuse(*args: object) -> None:
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos\nmore")

    monkeypatch.setattr(torch, "save", refuse)
    with pytest.raises(RunError) as caught:
        checkpoint.save(folder, state(2), tensors())
    told = str(caught.value)
    assert "step_000002" in told
    assert "the disk refused to write (full" in told
    assert told.endswith(f"tutelage resume {folder.path}")
    assert checkpoint.list_complete(folder) == [first]
    assert list(folder.checkpoints.iterdir()) == [first]


def test_nothing_unsafe_is_loaded(folder: RunFolder) -> None:
    """A checkpoint from somebody else runs no code."""

    class Evil:
        def __reduce__(self) -> Any:
            return (print, ("run",))

    path = checkpoint.save(folder, state(5), tensors())
    torch.save({"policy": Evil()}, path / "tensors.pt")
    checkpoint.write_checksums(path)
    with pytest.raises(RunError, match="cannot read"):
        checkpoint.load(path)


def test_the_disk_is_counted_before_a_run_begins(
    one_thread: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = material(tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1_000_000))
    keys = overrides(source, trainer__max_actor_ckpt_to_keep=10)
    done = CliRunner().invoke(
        build_app(), ["train", "math", "--output", str(tmp_path / "run"), *keys]
    )
    assert done.exit_code == 2, done.output
    told = r"12 checkpoints need 0\.\d+ GB in .*lower trainer\.max_actor_ckpt_to_keep"
    assert re.search(told, " ".join(done.stderr.split()))
    assert not (tmp_path / "run" / "config.json").exists()
