"""What a user can fix is an error in words, with exit code 2, and no bug."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from .command import Command
from .reference import Reference

Arguments = Callable[..., list[str]]


def test_a_reward_beyond_what_can_be_averaged_is_named(
    with_tools: Arguments, tutelage: Command
) -> None:
    (tutelage.cwd / "large.py").write_text("def large(prediction): return 1e308\n")
    told = tutelage(*with_tools(reward="large.py:large", steps="1")).check(2).err
    assert "returned 1e+308; rewards are averaged and squared" in told
    assert "between -1e+09 and 1e+09" in told


def test_weights_that_are_damaged_are_named(
    material: object, with_tools: Arguments, tutelage: Command
) -> None:
    folder = shutil.copytree(str(material) + "/parrot", tutelage.cwd / "broken")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02no weights")
    told = tutelage.here(*with_tools(model="broken", steps="1")).check(2).err
    assert "cannot load the weights of 'broken'" in told


@pytest.mark.parametrize("name", [".lock", "result.json"])
def test_a_run_folder_that_cannot_be_used_is_named(
    references: dict[str, Reference], name: str, tutelage: Command
) -> None:
    """A folder in the place of a file is refused to everybody, also to root."""
    run = shutil.copytree(references["with_tools"].folder / "run", tutelage.cwd / "run")
    (run / name).unlink()
    if name == ".lock":
        (run / name).mkdir()
        assert "cannot write to the run folder 'run'" in tutelage.here("resume", "run").check(2).err
    else:
        (run / name).write_text("{")
        told = tutelage.here("resume", "run").check(2).err
        assert "'run/result.json' is damaged" in told
        assert "remove it, and resume the run" in told
