"""Engines that sample from a policy.

`protocol.py` defines the interface, and `factory.py` makes an engine for a policy; `native.py`
computes in this process (continuous batching over cached rows that slots share, `slots.py` and
`sharing.py`, with the draws of each slot, `streams.py`), on a backend from `backends.py`;
`driver.py` makes it awaitable, with a schedule that depends on the seed alone, by the state of the
rollouts in `call_barrier.py`; `chat.py` turns messages into requests and records the calls.
"""
