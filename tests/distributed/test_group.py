"""How ranks find each other, what they are compared in, and how the end of one is told."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed

from tutelage.distributed import process_group
from tutelage.distributed.process_group import TorchProcessGroup, joined, meet
from tutelage.errors import ConfigError, RunError
from tutelage.runs.folder import RunFolder
from tutelage.weights import following
from tutelage.weights.process_group import ONE_PROCESS, in_step, launched

from .ranks import started, together


def differ() -> None:
    rank = launched().rank
    folder = RunFolder(Path(tempfile.gettempdir()))
    following.check_ranks(launched(), {"torch": f"2.{rank}", "python": "3.12"}, folder)


def look_for(folder: Path) -> None:
    group = launched()
    own = folder / str(group.rank)
    own.mkdir(parents=True)
    following.check_ranks(group, {}, RunFolder(own))


def look_for_one(folder: Path) -> None:
    if launched().rank == 0:
        folder.mkdir()
    following.check_ranks(launched(), {}, RunFolder(folder))
    assert launched().rank or not (folder / following.MARK).exists()


def fail_on_the_second() -> None:
    group = launched()

    def make() -> int:
        if group.rank == 1:
            raise ConfigError("no model here")
        return 1

    in_step(group, make)


def fail_on_the_first() -> None:
    group = launched()

    def make() -> int:
        raise RunError("the disk is full")

    group.agree(make)
    raise AssertionError("rank 0 has failed")


def fail_on_the_first_beside_a_sum() -> None:
    group = launched()

    def make() -> int:
        raise RunError("the disk is full")

    if group.rank:
        group.map(range(2), lambda i: i)
    group.agree(make)


def fail_on_the_first_beside_inputs() -> None:
    group = launched()

    def lead() -> int:
        raise RunError("that folder has another run")

    if group.rank:
        in_step(group, lambda: 1)
    group.agree(lead)


def die_on_the_second(tree: bool) -> None:
    known = launched()
    group = TorchProcessGroup(known.rank, known.size, tree=tree)
    weight = torch.ones(3, requires_grad=True)

    def loss(item: int) -> tuple[torch.Tensor, int]:
        if group.rank:
            os.kill(os.getpid(), signal.SIGKILL)
        return (weight * item).sum(), item

    group.accumulate([weight], [1, 2], loss)


def wait_for_the_second(place: Path) -> None:
    group = launched()
    (place / str(group.rank)).touch()
    if group.rank:
        time.sleep(60)
    group.agree(lambda: group.map(range(2), lambda i: i))


def stand_still_on_the_second() -> None:
    process_group.WORKING = timedelta(seconds=2)
    group = launched()
    if group.rank:
        os.kill(os.getpid(), signal.SIGSTOP)
    group.map(range(2), lambda i: i)


def play_longer_than_work_may_take() -> None:
    process_group.WORKING = timedelta(seconds=1)
    group = launched()
    assert group.agree(lambda: time.sleep(3) or group.rank) == 0
    assert group.map(range(2), lambda i: i) == [0, 1]


def share() -> None:
    group = launched()
    assert group.map(range(5), lambda i: i * 10) == [0, 10, 20, 30, 40]
    assert group.agree(lambda: {"from": group.rank}) == {"from": 0}


@pytest.mark.full
def test_what_ranks_find_comes_back_in_order(tmp_path: Path) -> None:
    together(3, tmp_path, share)


@pytest.mark.parametrize(
    ("work", "told"),
    [
        (differ, "rank 1 of 2: it differs from rank 0 in torch (2.1, not 2.0)"),
        (fail_on_the_second, "rank 1 of 2: no model here"),
        (fail_on_the_first, "the disk is full"),
        (fail_on_the_first_beside_a_sum, "the disk is full"),
        (fail_on_the_first_beside_inputs, "that folder has another run"),
    ],
    ids=["differ", "the second", "the first", "beside a sum", "beside inputs"],
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


def test_the_first_hears_a_signal_while_it_waits_for_the_others(tmp_path: Path) -> None:
    with started(2, tmp_path, wait_for_the_second, tmp_path) as ranks:
        ranks.until(lambda: (tmp_path / "0").is_file() and (tmp_path / "1").is_file())
        first = ranks.processes[0]
        first.join(0.5)  # by then it waits
        os.kill(first.pid, signal.SIGINT)
        first.join(10.0)
        assert first.exitcode == 1
    assert "KeyboardInterrupt" in ranks.said(0)


def test_a_node_without_the_run_folder_is_refused(tmp_path: Path) -> None:
    together(2, tmp_path / "a", look_for_one, tmp_path / "one")
    with started(2, tmp_path / "b", look_for, tmp_path / "two") as ranks:
        assert ranks.end() == [1, 0]
    assert "cannot see the run folder" in ranks.said(0)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"MASTER_ADDR": ""}, r"MASTER_ADDR is not set; start them with torchrun"),
        ({"RANK": ""}, r"RANK is not set"),
        ({"RANK": "2"}, r"RANK=2 is not in WORLD_SIZE=2"),
        ({"WORLD_SIZE": "two"}, r"WORLD_SIZE='two' is not a number"),
        ({"MASTER_PORT": "29500a"}, r"MASTER_PORT='29500a' is not a number"),
        ({"MASTER_PORT": "70000"}, r"MASTER_PORT=70000 is not a port"),
    ],
    ids=["no master", "no rank", "beyond", "no number", "no number of a port", "no port"],
)
def test_variables_that_are_no_launchers_are_refused(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], told: str
) -> None:
    there = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in {**there, **changed}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=told):
        joined()


def test_a_port_that_is_taken_is_told_by_who_should_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        there = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for name, value in there.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(RunError, match=rf"rank 0 of 2 cannot listen at 127\.0\.0\.1:{port}"):
            joined()


@pytest.mark.parametrize("size", [3, 5, 6])
def test_a_number_of_ranks_that_no_tree_has_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=f"got {size}"):
        TorchProcessGroup(0, size, tree=True)


def test_without_a_launcher_there_is_one_process() -> None:
    assert os.environ.get("WORLD_SIZE") is None
    assert launched() is ONE_PROCESS
    assert in_step(ONE_PROCESS, lambda: 3) == 3
    with pytest.raises(ConfigError, match="this"):
        in_step(ONE_PROCESS, lambda: _raise(ConfigError("this")))


def _raise(error: Exception) -> None:
    raise error


def stores(count: int) -> tuple[Any, list[Any]]:
    """A launcher's store, and as many clients of it."""
    c10d: Any = torch.distributed
    server = c10d.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    made = [c10d.TCPStore("127.0.0.1", server.port, is_master=False) for _ in range(count)]
    return server, made


def test_ranks_that_a_launcher_starts_again_do_not_take_each_other_for_those_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, clients = stores(3)
    names = list[set[str]]()
    with ThreadPoolExecutor(3) as pool:
        for first in (0, 2):  # the second start finds the words of the first
            begun = [pool.submit(meet, clients[first], first, 3)]
            time.sleep(0.1)
            begun += [pool.submit(meet, clients[r], r, 3) for r in range(3) if r != first]
            names.append({future.result() for future in begun})
    assert [len(heard) for heard in names] == [1, 1]
    assert names[0] != names[1]
    server.set("asks/1", "old")
    monkeypatch.setattr(process_group, "MEETING", timedelta(0))
    with pytest.raises(RuntimeError, match="rank 1 did not connect"):
        meet(clients[0], 0, 2)
