"""A head node that no longer answers asks the run to end, and then insists."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Generator

import pytest

from tutelage.cli.failures import stop_reason
from tutelage.distributed.ray_head import HeadWatch
from tutelage.runs.signals import StopRequested


@pytest.fixture
def asked() -> Generator[list[StopRequested]]:
    """What the handler of SIGTERM would raise."""
    heard = list[StopRequested]()
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(StopRequested(number)))
    yield heard
    signal.signal(signal.SIGTERM, before)


def wait_for(count: int, asked: list[StopRequested]) -> None:
    until = time.monotonic() + 30
    while len(asked) < count and time.monotonic() < until:
        time.sleep(0.01)
    assert len(asked) == count


def test_a_lost_head_ends_the_run_with_a_sentence(asked: list[StopRequested]) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    watch = HeadWatch(f"127.0.0.1:{server.getsockname()[1]}", scale=0.01)
    time.sleep(0.2)
    assert not asked
    server.close()
    wait_for(2, asked)
    watch.close()
    assert watch.gone
    for stopped in asked:
        told = f"Ray's head node, {watch.address}, no longer answers. "
        assert stop_reason(stopped) == told
        assert str(stopped) == f"stopped by SIGTERM: {told.strip()}"
    assert not stop_reason(StopRequested(signal.SIGTERM)), "told of another signal, too"


def test_what_is_asked_of_ray_does_not_wait_for_a_lost_head() -> None:
    asked, never = list[int](), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        watch = HeadWatch(f"127.0.0.1:{server.getsockname()[1]}")
        assert watch.call(lambda: asked.append(1))
        assert asked == [1]
        threading.Timer(0.3, server.close).start()
        assert not watch.call(never.wait), "the head was lost while it was asked"
    assert not watch.call(never.wait)
    never.set()
    watch.close()
