"""The background writer: order, flush, errors, back-pressure."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tutelage.errors import StoreError
from tutelage.store import Store, StoreWriter, TrainingRow, open_store
from tutelage.types import Rollout, RolloutStatus

from . import samples
from .samples import attempt, rollout, rollouts


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "x.db") as store:
        store.put_run("run_a", **samples.RUN)
        yield store


class Gate:
    """Stands in for a store: holds each batch until told, records it, or fails."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.entered = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.error: Exception | None = None

    def put_rollouts(self, rollouts: Sequence[Rollout], *more: object) -> Counter[str]:
        self.entered.release()
        self.go.acquire()
        if self.error is not None:
            raise self.error
        self.batches.append([r.id for r in rollouts])
        return Counter(new=len(rollouts))


def gated(**sizes: int) -> tuple[Gate, StoreWriter]:
    gate = Gate()
    return gate, StoreWriter(gate, **sizes)  # pyright: ignore


def test_flush_returns_when_all_is_stored(store: Store) -> None:
    given = rollouts(40)
    with StoreWriter(store, max_batch=7) as writer:
        for i in range(0, 40, 10):
            writer.submit(given[i : i + 10])
        writer.flush()
        assert list(store.rollouts("run_a")) == given
        writer.flush()


def test_close_flushes_and_leaves_the_store_open(store: Store) -> None:
    writer = StoreWriter(store)
    writer.submit(rollouts(5))
    writer.close()
    writer.close()
    assert store.count("run_a") == 5
    with pytest.raises(StoreError, match="closed"):
        writer.submit(rollouts(1))


def test_the_order_of_records_is_kept(store: Store) -> None:
    with StoreWriter(store) as writer:
        writer.submit([rollout("r", attempt(0, RolloutStatus.RUNNING, reward=None))])
        writer.submit([rollout("r", attempt(0))])
        writer.submit([rollout("r", attempt(0, answer="late"))])
    assert store.rollout("r") == rollout("r", attempt(0))
    assert [a.answer for a in store.late_results("run_a", "r")] == ["late"]


def test_training_rows_are_stored_after_their_rollouts(store: Store) -> None:
    row = TrainingRow(0, "main", 0, "roll_000000", tokens=1, advantage=0.5)
    with StoreWriter(store) as writer:
        writer.submit(rollouts(1))
        writer.submit_training("run_a", [row])
        writer.submit_training("run_a", [])
        writer.flush()
        assert store.training_rows("run_a") == [row]


def test_a_full_queue_makes_the_loop_wait() -> None:
    gate, writer = gated(max_pending=2, max_batch=1)
    writer.submit(rollouts(1))
    gate.entered.acquire()
    writer.submit(rollouts(2, first=1))
    done = threading.Event()
    submitter = threading.Thread(target=lambda: (writer.submit(rollouts(1, first=3)), done.set()))
    submitter.start()
    assert not done.wait(0.1)
    gate.go.release(10)
    submitter.join(10)
    assert done.is_set()
    writer.close()
    assert len(gate.batches) == 4


@pytest.mark.parametrize("error", [StoreError("disk full"), ValueError("disk full")])
def test_an_error_is_raised_by_every_later_call(error: Exception) -> None:
    gate, writer = gated(max_batch=2)
    gate.error = error
    writer.submit(rollouts(3))
    gate.go.release(10)
    for call in (writer.flush, lambda: writer.submit(rollouts(1)), writer.flush, writer.close):
        with pytest.raises(StoreError, match=r"^3 rollouts could not be stored: disk full") as got:
            call()
        assert got.value.__cause__ is error
    assert gate.batches == []


def test_leaving_the_block_raises_too(store: Store) -> None:
    with (
        pytest.raises(StoreError, match="run 'run_x' is not in the store"),
        StoreWriter(store) as writer,
    ):
        writer.submit([rollout(run_id="run_x")])
