"""Pools: where workers stand. Each module has one kind; `workers.WorkerPool` is their contract.

`simulated.py` draws answers from the seed tree, `replay.py` looks them up in a table of recorded
outcomes, `openai.py` asks real servers over HTTP. The first two say that they are mocks.
"""
