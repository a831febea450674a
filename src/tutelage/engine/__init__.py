"""Engines: what samples from a policy.

`protocol.py` says what an engine promises, and `factory.py` makes one for a policy; `native.py` is
what computes in this process (continuous batching over cached rows that slots share, `slots.py` and
`sharing.py`, and what each slot draws, `streams.py`), on a backend from `backends.py`; `driver.py`
puts it behind `await` with a schedule that is a function of the seed, by what `call_barrier.py`
knows of the rollouts; `chat.py` turns messages into requests and keeps the record of calls.
"""
