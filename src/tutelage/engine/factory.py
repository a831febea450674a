"""Factory of engines that sample from a policy in this process.

Training, prompt searches, evaluations, `serve` and the tests make engines here and pass only what
differs: how many slots, which type, which schedule. Torch is loaded when an engine is made, not
when this module is imported. `remote.py` has the client of other servers, and `scripted.py` that of
scripts.
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
    """Create an in-process engine that samples from a policy.

    All its requests must come from one event loop.

    `max_length` is in tokens, at most the policy's own, and by default as memory allows
    (`Policy.context_length`); `dtype` defaults to float32. `threads` is the number that a run
    requests; for a large model on a CPU it sets the threads of later torch operations. With
    `invariant` a sample does not depend on other requests, see `native.py`; a large model is
    sampled at full speed instead, and its samples repeat if the requests do.
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
    codec, engine_dtype = policy.codec, dtype or torch.float32
    length = min(max_length or policy.context_length(slots, engine_dtype), policy.max_positions)
    native = NativeEngine(
        lambda rows, width: make_backend(policy, rows, width, engine_dtype, shards),
        slots=slots,
        max_length=length,
        eos_ids=sorted(codec.eos_ids),
        decode=codec.decode,
        invariant=invariant and small,
        version=policy.version,
        token_bytes=policy.token_bytes(engine_dtype),
    )
    return EngineDriver(native, schedule)
