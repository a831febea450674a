"""Inference engines that sample tokens from a policy.

`protocol.py` defines the interface, and `factory.py` makes an engine for a policy. `native.py`
computes in this process, by continuous batching over cached rows that slots share (`slots.py`,
`sharing.py`). `streams.py` draws the tokens of each slot, and `backends.py` has the models that
compute logits. `driver.py` makes the engine awaitable, with a schedule that depends on the seed
alone, by the state of the rollouts in `call_barrier.py`. `chat.py` turns messages into requests and
records the calls.
"""
