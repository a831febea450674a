"""The one place where engines are made: a policy of this process, ready to be asked.

Training, prompt searches, evaluations, `serve` and the tests ask here, and say no more than what
they want otherwise: how many slots, which type, which schedule. Torch is loaded when an engine is
made, not when this module is. What another server samples comes from a client of it (`remote.py`),
what a script says from `scripted.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from tutelage.engine.driver import EngineDriver, Schedule
    from tutelage.policy.model import Policy


def make_engine(
    policy: Policy,
    *,
    slots: int,
    max_length: int | None = None,
    dtype: torch.dtype | None = None,
    threads: int | None = None,
    invariant: bool = False,
    schedule: Schedule = "deterministic",
) -> EngineDriver:
    """An engine that samples from a policy; give one event loop all its requests.

    `max_length` is in tokens, at most the policy's own, and as memory allows (`Policy.context`)
    unless it is given; `dtype` is float32 unless it is given. `threads` is what a run asks for;
    of a large model on a CPU torch computes an operation with it from here on. With
    `invariant` a sample does not depend on what else is sampled, see `native.py`; a large model is
    sampled at its full speed instead, and its samples repeat where the same requests do.
    """
    import torch

    from tutelage.engine.backends import make_backend
    from tutelage.engine.driver import EngineDriver
    from tutelage.engine.native import NativeEngine
    from tutelage.policy.machine import SMALL_MODEL, thread_settings

    small, shards = policy.count() < SMALL_MODEL, 1
    if not small and policy.device.type == "cpu":
        operation_threads, shards, _ = thread_settings(threads, large=True)
        torch.set_num_threads(operation_threads)
    codec, number = policy.codec, dtype or torch.float32
    length = min(max_length or policy.context(slots, number), policy.max_positions)
    native = NativeEngine(
        lambda rows, width: make_backend(policy, rows, width, number, shards),
        slots=slots,
        max_length=length,
        eos_ids=sorted(codec.eos_ids),
        decode=codec.decode,
        invariant=invariant and small,
        version=policy.version,
        token_bytes=policy.token_bytes(number),
    )
    return EngineDriver(native, schedule)
