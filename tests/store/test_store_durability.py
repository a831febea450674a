"""What was acknowledged survives a kill and a full disk."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.marks import long

from tutelage.store import Store, open_store

from . import samples

ROOT = Path(__file__).parents[2]


def spawn(path: Path, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.store.child", str(path), *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def assert_whole(store: Store, acknowledged: list[str]) -> None:
    """All that was acknowledged is there and every record that is there is whole."""
    found = {r.id: r for r in store.rollouts("run_a")}
    assert set(acknowledged) <= set(found)
    for rollout in found.values():
        number = int(rollout.id.removeprefix("roll_"))
        assert rollout == samples.rollouts(1, first=number, tokens=64)[0]


@pytest.mark.system
@pytest.mark.parametrize("how", [pytest.param("put", marks=pytest.mark.full), "writer"])
def test_a_kill_loses_nothing_that_was_acknowledged(tmp_path: Path, how: str) -> None:
    path = tmp_path / "x.db"
    draw = random.Random(0)
    acknowledged: list[str] = []
    for turn in range(4):
        child = spawn(path, how, turn * 100_000)
        assert child.stdout is not None
        for _ in range(draw.randrange(1, 30)):
            acknowledged += child.stdout.readline().split()
        child.kill()
        # What the child managed to say before it died counts as well, but not half a line.
        rest = child.stdout.read()
        acknowledged += rest[: rest.rfind("\n") + 1].split()
        child.wait()
        with open_store(path) as store:
            assert_whole(store, acknowledged)
    assert len(acknowledged) > 20


@pytest.mark.system
@pytest.mark.parametrize("how", [pytest.param("put", marks=pytest.mark.full), "writer"])
@pytest.mark.parametrize("limit", [500_000, *long(pytest.param(1_500_000, marks=pytest.mark.full))])
def test_a_full_disk_keeps_what_was_acknowledged(tmp_path: Path, how: str, limit: int) -> None:
    path = tmp_path / "x.db"
    out, _ = spawn(path, how, 0, limit).communicate(timeout=120)
    *lines, error, still = out.splitlines()
    acknowledged = " ".join(lines).split()
    assert acknowledged
    assert error.startswith("error")
    assert str(path) in error
    assert "free some space" in error
    assert still.startswith("still reads")
    assert int(still.split()[-1]) >= len(acknowledged)
    with open_store(path) as store:
        assert_whole(store, acknowledged)
        # And it can be written again, from where it stopped.
        store.put_rollouts(samples.rollouts(len(acknowledged) + 20, tokens=64))
        assert store.count("run_a") == len(acknowledged) + 20
