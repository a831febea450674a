"""Worker pools, one kind per module; `workers.WorkerPool` is their interface.

`simulated.py` draws answers from the seed tree and marks them as mocks, `openai.py` calls real
servers over HTTP, and `tools.py` runs tools next to the models of another pool.
"""
