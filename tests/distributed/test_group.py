"""How ranks find each other, what they are compared in, and how the end of one is told."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed

from tutelage.distributed import process_group
from tutelage.distributed.process_group import TorchProcessGroup, join_group
from tutelage.errors import ConfigError, RunError
from tutelage.runs.folder import RunFolder
from tutelage.weights import following
from tutelage.weights.process_group import get_group, run_on_all

from .ranks import started, together


def differ() -> None:
    rank = get_group().rank
    folder = RunFolder(Path(tempfile.gettempdir()))
    following.check_ranks(get_group(), {"torch": f"2.{rank}", "python": "3.12"}, folder)


def look_for(folder: Path) -> None:
    group = get_group()
    own = folder / str(group.rank)
    own.mkdir(parents=True)
    following.check_ranks(group, {}, RunFolder(own))


def look_for_one(folder: Path) -> None:
    if get_group().rank == 0:
        folder.mkdir()
    following.check_ranks(get_group(), {}, RunFolder(folder))
    assert get_group().rank or not (folder / following.MARK).exists()


def fail_on_the_second() -> None:
    group = get_group()

    def make() -> int:
        if group.rank == 1:
            raise ConfigError("no model here")
        return 1

    run_on_all(group, make)


def fail_on_the_first() -> None:
    group = get_group()

    def make() -> int:
        raise RunError("the disk is full")

    group.broadcast(make)
    raise AssertionError("rank 0 has failed")


def die_on_the_second(tree: bool) -> None:
    known = get_group()
    group = TorchProcessGroup(known.rank, known.size, tree=tree)
    weight = torch.ones(3, requires_grad=True)

    def loss(item: int) -> tuple[torch.Tensor, int]:
        if group.rank:
            os.kill(os.getpid(), signal.SIGKILL)
        return (weight * item).sum(), item

    group.accumulate([weight], [1, 2], loss)


def stand_still_on_the_second() -> None:
    process_group.COLLECTIVE_TIMEOUT = timedelta(seconds=2)
    group = get_group()
    if group.rank:
        os.kill(os.getpid(), signal.SIGSTOP)
    group.map(range(2), lambda i: i)


def play_longer_than_work_may_take() -> None:
    process_group.COLLECTIVE_TIMEOUT = timedelta(seconds=1)
    group = get_group()
    assert group.broadcast(lambda: time.sleep(3) or group.rank) == 0
    assert group.map(range(2), lambda i: i) == [0, 1]


@pytest.mark.parametrize(
    ("work", "told"),
    [
        (differ, "rank 1 of 2: settings differ from rank 0: torch (2.1, not 2.0)"),
        (fail_on_the_second, "rank 1 of 2: no model here"),
        (fail_on_the_first, "the disk is full"),
    ],
    ids=["differ", "the second", "the first"],
)
def test_rank_0_alone_says_what_is_wrong(
    tmp_path: Path, work: Callable[[], None], told: str
) -> None:
    with started(2, tmp_path, work) as ranks:
        assert ranks.end() == [1, 0]
    assert told in ranks.said(0)
    assert ranks.said(1) == ""


@pytest.mark.parametrize("tree", [False, True], ids=["plain", "tree"])
def test_a_rank_that_dies_in_an_update_is_told(tmp_path: Path, tree: bool) -> None:
    with started(2, tmp_path, die_on_the_second, tree) as ranks:
        assert ranks.end() == [1, -9]
    assert "RunError: another rank has ended" in ranks.said(0)


def test_a_rank_that_stands_still_ends_the_run_after_the_timeout(tmp_path: Path) -> None:
    with started(2, tmp_path, stand_still_on_the_second) as ranks:
        ranks.processes[0].join(60.0)
        assert ranks.processes[0].exitcode == 1
        ranks.kill(1)
    assert "RunError: another rank has ended, so the run cannot continue (Tim" in ranks.said(0)


def test_ranks_wait_for_rollouts_longer_than_for_each_other(tmp_path: Path) -> None:
    together(2, tmp_path, play_longer_than_work_may_take)


def test_a_node_without_the_run_folder_is_refused(tmp_path: Path) -> None:
    together(2, tmp_path / "a", look_for_one, tmp_path / "one")
    with started(2, tmp_path / "b", look_for, tmp_path / "two") as ranks:
        assert ranks.end() == [1, 0]
    assert "cannot see the run folder" in ranks.said(0)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"MASTER_ADDR": ""}, r"MASTER_ADDR is not set; start them with torchrun"),
        ({"RANK": "2"}, r"RANK=2 must be less than WORLD_SIZE=2"),
        ({"MASTER_PORT": "29500a"}, r"MASTER_PORT='29500a' is not a number"),
    ],
    ids=["no master", "beyond", "no number"],
)
def test_variables_that_are_no_launchers_are_refused(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], told: str
) -> None:
    there = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in {**there, **changed}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=told):
        join_group()


@pytest.mark.parametrize("size", [3, 6])
def test_a_number_of_ranks_that_no_tree_has_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=f"got {size}"):
        TorchProcessGroup(0, size, tree=True)
