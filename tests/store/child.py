"""A process that writes rollouts and says which ones were acknowledged; its parent kills it, and
checks what is there.

python -m tests.store.child PATH put|writer FIRST [FILE SIZE LIMIT IN BYTES]
"""

from __future__ import annotations

import itertools
import resource
import subprocess
import sys
from pathlib import Path

from tutelage.errors import StoreError
from tutelage.store import Store, StoreWriter, open_store

from . import samples

ROOT = Path(__file__).parents[2]


def spawn(where: object, *args: object) -> subprocess.Popen[str]:
    """Start one."""
    command = [sys.executable, "-m", "tests.store.child", str(where), *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def acknowledged_by(child: subprocess.Popen[str], lines: int) -> list[str]:
    """The ids of so many lines."""
    assert child.stdout is not None
    return [name for _ in range(lines) for name in child.stdout.readline().split()]


def rest_of(child: subprocess.Popen[str]) -> list[str]:
    """What it said before it died, but not half a line."""
    assert child.stdout is not None
    rest = child.stdout.read()
    child.wait(60)
    whole = rest[: rest.rfind("\n") + 1]
    return [word for word in whole.split() if word.startswith("roll_")]


def assert_whole(store: Store, acknowledged: list[str]) -> None:
    """All that was acknowledged is there and every record that is there is whole."""
    found = {r.id: r for r in store.rollouts("run_a")}
    assert set(acknowledged) <= set(found)
    for rollout in found.values():
        number = int(rollout.id.removeprefix("roll_"))
        assert rollout == samples.rollouts(1, first=number, tokens=64)[0]


def main(path: str, how: str, first: int, limit: int | None = None) -> None:
    store = open_store(path)
    store.put_run("run_a", **samples.RUN)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))  # Python ignores SIGXFSZ
    try:
        with StoreWriter(store, max_batch=3) as writer:
            for start in itertools.count(first, 5):
                batch = samples.rollouts(5, first=start, tokens=64)
                if how == "put":
                    store.put_rollouts(batch)
                else:
                    writer.submit(batch)
                    writer.flush()
                print(*(r.id for r in batch), flush=True)
    except StoreError as error:
        print("error", error, flush=True)
        print("still reads", store.count("run_a"), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *map(int, sys.argv[4:]))
