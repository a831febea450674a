"""A process that writes rollouts and says which ones were acknowledged; its parent kills it.

python -m tests.store.child PATH put|writer FIRST [FILE SIZE LIMIT IN BYTES]
"""

from __future__ import annotations

import itertools
import resource
import sys

from tutelage.errors import StoreError
from tutelage.store import StoreWriter, open_store

from . import samples


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
