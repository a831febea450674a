"""A prompt search that is killed at any of its writes: resumed, its store is that of a whole one.

The kill is in this process: from a write on nothing is written any more, as after SIGKILL.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.prompts.prompt_parts import searched, served, set_up

from tutelage.store import Store, StoreWriter, open_store
from tutelage.types import JSON

SEARCH: dict[str, Any] = {
    "algorithm": "apo",
    "train_size": 4,
    "val_size": 5,
    "test_size": 20,
    "iterations": 1,
    "runners": 3,
}


@pytest.fixture(scope="module")
def env() -> Iterator[dict[str, str]]:
    with served() as (found, _):
        yield found


class Dead(BaseException):
    """Nothing after a kill runs, so nothing may catch this."""


class Kill:
    """Ends the process at write number `at`, counted over answers and rollouts."""

    def __init__(self, at: int) -> None:
        self.at, self.count, self.dead = at, 0, False

    def before_write(self) -> None:
        self.dead = self.dead or self.count == self.at
        if self.dead:
            raise Dead
        self.count += 1


def install(kill: Kill, patch: pytest.MonkeyPatch) -> None:
    """Count the writes that may be the last: one answer, one batch of rollouts."""
    for owner, names in ((Store, ("put_rollouts", "put_events", "set_run_status")),):
        for name in names:
            real = getattr(owner, name)

            def write(self: Any, *args: Any, _real: Any = real, **kwargs: Any) -> Any:
                kill.before_write()
                return _real(self, *args, **kwargs)

            patch.setattr(owner, name, write)
    real_work = StoreWriter._run  # pyright: ignore[reportPrivateUsage]

    def one_at_a_time(self: StoreWriter) -> Any:
        """Small batches, so that there are many moments between two of them."""
        self._max_batch = 1  # pyright: ignore[reportPrivateUsage]
        return real_work(self)

    patch.setattr(StoreWriter, "_run", one_at_a_time)


def content(place: Path) -> JSON:
    """All that a store holds of a search, but for times."""
    found: JSON = {}
    with open_store(place / "store.db") as store:
        for rollout in store.rollouts(place.name):
            assert rollout.id not in found
            found[rollout.id] = {
                "late": len(store.late_results(place.name, rollout.id)),
                "spans": len(store.spans(place.name, rollout.id)),
                "said": [c.reply.content for a in rollout.attempts for c in a.calls],
                "reward": None if rollout.reward is None else rollout.reward.value,
                "label": rollout.label,
                "statuses": [a.status.value for a in rollout.attempts],
            }
    return found


@pytest.fixture(scope="module")
def whole(env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[JSON, bytes, int]:
    """The content of the store, the lineage, and how many writes there are."""
    place = tmp_path_factory.mktemp("whole") / "run"
    kill = Kill(-1)
    with pytest.MonkeyPatch.context() as patch:
        install(kill, patch)
        searched(set_up(env, **SEARCH), place)
    return content(place), (place / "lineage.jsonl").read_bytes(), kill.count


_RNG = random.Random(12)
MOMENTS = tuple(_RNG.random() for _ in range(4))
"""Shares of all writes after which the process is killed; a second time at the square."""


@pytest.mark.parametrize(
    "share",
    [
        pytest.param(share, id=f"{share:.2f}", marks=() if i < 1 else pytest.mark.full)
        for i, share in enumerate(MOMENTS)
    ],
)
def test_killed_at_any_write_and_resumed_the_store_is_that_of_a_whole_search(
    share: float, env: dict[str, str], whole: tuple[JSON, bytes, int], tmp_path: Path
) -> None:
    wanted, lineage, writes = whole
    place = tmp_path / "run"
    for at in (int(share * writes), int(share * share * writes)):
        kill = Kill(at)
        with pytest.MonkeyPatch.context() as patch:
            install(kill, patch)
            try:
                searched(set_up(env, **SEARCH), place)
            except BaseException:
                assert kill.dead
    searched(set_up(env, **SEARCH), place)
    found = content(place)
    assert sorted(found) == sorted(wanted), "rollouts were lost, or are there that nobody wanted"
    assert found == wanted
    assert (place / "lineage.jsonl").read_bytes() == lineage
