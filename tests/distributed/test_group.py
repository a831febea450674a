"""How ranks find each other, what they are compared in, and how the end of one is told."""

from __future__ import annotations

import os
import platform
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from tests.weights.samples import LAPTOP

from tutelage.distributed import meeting, process_group
from tutelage.distributed.meeting import RankEndedError, meet
from tutelage.distributed.process_group import TorchProcessGroup, joined
from tutelage.errors import ConfigError, RunError
from tutelage.runs.folder import RunFolder
from tutelage.weights import following
from tutelage.weights.config import resolve
from tutelage.weights.process_group import ONE_PROCESS, in_step, launched

from .ranks import started, together


def differ() -> None:
    rank = launched().rank
    following.check_same(launched(), {"torch": f"2.{rank}", "python": "3.12"})


def look_for(folder: Path) -> None:
    group = launched()
    own = folder / str(group.rank)
    own.mkdir(parents=True)
    following.check_shared(group, RunFolder(own))


def look_for_one(folder: Path) -> None:
    if launched().rank == 0:
        folder.mkdir()
    following.check_shared(launched(), RunFolder(folder))
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
    process_group.HEARD = 0.2
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
    process_group.HEARD = 0.2
    group.agree(lambda: group.map(range(2), lambda i: i))


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
        (differ, "rank 1 of 2 differs from rank 0 in torch (2.1, not 2.0)"),
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


def test_several_nodes_do_not_share_a_file_of_sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolve("math", [], machine=LAPTOP).config
    following.check_store(config)
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"2 nodes cannot share .* --store postgresql"):
        following.check_store(config)
    named = ["trainer.store_url=postgresql://db.example/t"]
    following.check_store(resolve("math", named, machine=LAPTOP).config)


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


def test_ranks_that_a_launcher_starts_again_do_not_take_each_other_for_those_before() -> None:
    server, clients = stores(3)
    names = list[set[str]]()
    with ThreadPoolExecutor(3) as pool:
        for first in (0, 2):  # the second start finds the words of the first
            heard = set[str]()
            begun = [pool.submit(meet, clients[first], first, 3, heard.add, 60.0)]
            time.sleep(0.1)
            begun += [
                pool.submit(meet, clients[r], r, 3, heard.add, 60.0) for r in range(3) if r != first
            ]
            assert [future.result() for future in begun] == [None] * 3
            names.append(heard)
    assert [len(heard) for heard in names] == [1, 1]
    assert names[0] != names[1]
    server.set("asks/1", "old")
    server.set("pulse/old", "1 process 7 on there")
    with pytest.raises(RuntimeError, match="rank 1 did not connect"):
        meet(clients[0], 0, 2, heard.add, 0.0)


def test_what_ends_a_rank_that_has_come_is_told_to_the_first() -> None:
    _, clients = stores(2)

    def broken(name: str) -> None:
        raise OSError("no such interface")

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(meet, clients[1], 1, 2, broken, 60.0)
        with pytest.raises(
            RankEndedError, match=r"rank 1 of 2, process \d+ on .*: no such interface"
        ):
            meet(clients[0], 0, 2, lambda _: threading.Event().wait(60.0), 60.0)
        with pytest.raises(OSError, match="no such interface"):
            other.result()


def test_what_the_launcher_says_of_a_rank_that_never_came_ends_the_meeting() -> None:
    server, (client,) = stores(1)
    server.set(meeting.LOST, "rank 1 of 2, process 7 on there")
    with pytest.raises(RankEndedError, match="rank 1 of 2, process 7 on there"):
        meet(client, 0, 2, lambda _: None, 60.0)


def die(*, connecting: bool) -> None:
    """The second rank ends without a word, as it connects or before rank 0 has answered it."""
    meeting.QUIET = 1.0

    def killed(*_: Any, **__: Any) -> None:
        time.sleep(3 * meeting.BEAT)
        os.kill(os.getpid(), signal.SIGKILL)

    def ask(store: Any, rank: int, size: int, word: str, *_: Any) -> str:
        store.set(f"asks/{rank}", word)
        killed()
        return word

    if os.environ["RANK"] == "1" and connecting:
        torch.distributed.init_process_group = killed
    elif os.environ["RANK"] == "1":
        meeting._ask = ask  # pyright: ignore[reportPrivateUsage]
    joined()


def die_once_the_first_is_connected() -> None:
    """The third rank ends without a word; the first one does not need it any more, the second one
    does."""
    meeting.QUIET = 1.0
    ways: list[Callable[..., object]] = [
        lambda *_, **__: None,
        lambda *_, **__: threading.Event().wait(60.0),
        lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL),
    ]
    torch.distributed.init_process_group = ways[int(os.environ["RANK"])]
    joined()


def test_every_rank_notices_one_that_dies_before_it_is_connected(tmp_path: Path) -> None:
    with started(3, tmp_path, die_once_the_first_is_connected) as ranks:
        begun = time.monotonic()
        assert ranks.end() == [0, 0, -9]
        assert time.monotonic() - begun < 60.0
    assert ranks.said(1) == ""


@pytest.mark.parametrize("connecting", [False, True])
def test_a_rank_that_dies_before_all_are_connected_is_told_within_seconds(
    tmp_path: Path, connecting: bool
) -> None:
    with started(2, tmp_path, partial(die, connecting=connecting)) as ranks:
        assert ranks.end() == [1, -9]
    pid = ranks.processes[1].pid
    assert f"rank 1 of 2, process {pid} on {platform.node()}: no heartbeat" in ranks.said(0)
