"""Rollouts of all runs are told apart by their ids, and found by them from anywhere."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

import pytest

from .command import Command
from .outcome import stored

Arguments = Callable[..., list[str]]


@pytest.mark.full
def test_ids_are_unique_over_runs_and_found_from_any_folder(
    with_tools: Arguments, tutelage: Command
) -> None:
    """Two runs of one seed; the command that is printed finds the same rollout again."""
    keys = {"trainer.val_before_train": "false", "trainer.test_freq": -1}
    for name in ("one", "two"):
        tutelage(*with_tools(keys, steps="1", output=f"deep/{name}")).check()
    ids = [{r.id for r in stored(tutelage.cwd / "deep" / name)} for name in ("one", "two")]
    assert len(ids[0]) == len(ids[1]) > 0
    assert not ids[0] & ids[1]
    (tutelage.cwd / "elsewhere").mkdir()
    elsewhere = Command(tutelage.cwd / "elsewhere")
    for name, found in zip(("one", "two"), ids, strict=True):
        rollout = min(found)
        assert rollout.endswith(f"_{name}")
        told = elsewhere("show", rollout).check().out
        command = re.search(r"This rollout: (tutelage show .*)$", told, re.MULTILINE)
        assert command is not None
        assert str(tutelage.cwd / "deep" / name) in command[1]
        assert elsewhere(*shlex.split(command[1])[1:]).check().out == told
    listed = tutelage("show", "deep/one", "--rollouts", "50").check().out
    command = re.search(r"One turn by turn: tutelage show (\S+) --run deep/one$", listed, re.M)
    assert command is not None
    assert command[1] in ids[0]
    assert "-> nothing" not in listed
