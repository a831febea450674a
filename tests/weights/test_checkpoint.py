"""Checkpoints: exact, complete or absent, and clear when one cannot be read or written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tutelage.errors import RunError
from tutelage.runs.folder import RunFolder, create
from tutelage.weights import checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """An empty run folder with a configuration, so that it is one that can be resumed."""
    made = create(tmp_path / "run")
    made.config.write_text("{}")
    return made


def state(tick: int) -> checkpoint.State:
    return checkpoint.State(
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
    assert checkpoint.complete(folder) == [path]
    found, loaded = checkpoint.load(path)
    assert found == state(40)
    for name, tensor in tensors()["policy"].items():
        again = loaded["policy"][name]
        assert again.dtype == tensor.dtype
        assert again.view(torch.uint8).equal(tensor.view(torch.uint8))
    assert loaded["optimizer"]["parts"][0]["state"][0]["step"] == 3


def test_older_ones_are_removed(folder: RunFolder) -> None:
    for tick in (1, 2, 30, 4):
        checkpoint.save(folder, state(tick), tensors())
    assert [p.name for p in checkpoint.complete(folder)] == ["step_000004", "step_000030"]


def test_the_same_tick_again_replaces_it(folder: RunFolder) -> None:
    checkpoint.save(folder, state(5), tensors())
    later = state(5)
    later.results = {"done": ["cold_start", "rl"]}
    checkpoint.save(folder, later, tensors())
    (path,) = checkpoint.complete(folder)
    assert checkpoint.load(path)[0].results == later.results


def test_one_without_its_last_file_does_not_exist(folder: RunFolder) -> None:
    path = checkpoint.save(folder, state(5), tensors())
    (path / "state.json").unlink()
    assert checkpoint.complete(folder) == []
    (folder.checkpoints / "initial").mkdir()
    (folder.checkpoints / "initial" / "state.json").touch()
    assert checkpoint.complete(folder) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: (path / "tensors.pt").write_bytes(b""),
        lambda path: (path / "tensors.pt").write_bytes(b"garbage"),
        lambda path: (path / "tensors.pt").unlink(),
        lambda path: (path / "tensors.pt").write_bytes((path / "tensors.pt").read_bytes()[:500]),
        lambda path: (path / "state.json").write_text("{"),
        lambda path: (path / "state.json").write_text('{"phse": "rl"}'),
    ],
)
def test_a_damaged_one_is_named_with_the_way_out(folder: RunFolder, damage: Any) -> None:
    path = checkpoint.save(folder, state(5), tensors())
    damage(path)
    with pytest.raises(RunError, match=r"step_000005' cannot be read: .*remove that folder"):
        checkpoint.load(path)


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
    assert checkpoint.complete(folder) == [first]
    assert list(folder.checkpoints.iterdir()) == [first]


def test_nothing_unsafe_is_loaded(folder: RunFolder) -> None:
    """A checkpoint from somebody else runs no code."""

    class Evil:
        def __reduce__(self) -> Any:
            return (print, ("run",))

    path = checkpoint.save(folder, state(5), tensors())
    torch.save({"policy": Evil()}, path / "tensors.pt")
    with pytest.raises(RunError, match="cannot be read"):
        checkpoint.load(path)
