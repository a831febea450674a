"""Detect the machine's hardware, and choose device, number formats and threads of a run.

Choices depend on the hardware, never on measured speed, so that equal machines repeat a run bit for
bit. `compute_conditions` are stored in the run folder; a change on resume is a warning.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch

from tutelage import __version__
from tutelage.config import Machine, RunConfig
from tutelage.errors import ConfigError
from tutelage.platforms import Accelerator, Support, platform_support
from tutelage.policy.kernels import cpu_description, cpu_vendor, matmul_kernel
from tutelage.policy.numerics import Numerics

Item = TypeVar("Item")
Out = TypeVar("Out")
OMP = "OMP_NUM_THREADS"
RANK_HERE = "LOCAL_RANK"
"""Variable in which launchers such as torchrun number the processes of a machine."""
_CUBLAS, _WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""The workspace size that makes cuBLAS deterministic; used if none is configured."""
_KERNEL_CACHE = 128
_ARENA_MAX = -8
"""`M_ARENA_MAX` of glibc's `malloc.h`: the `mallopt` parameter for the number of heaps."""
_SHARDS = 2
"""Number of parts of a large model's batch that are computed in parallel, in sampling and training.
It does not depend on the number of cores, or results would too."""
SMALL_MODEL = 20_000_000
"""Models with fewer parameters use one thread per operation: more would mostly wait."""


@dataclass(frozen=True, slots=True)
class ComputeSettings:
    """Device, dtypes and thread counts of a run, and the reason for the choice."""

    device: torch.device
    numerics: Numerics
    cold_start: Numerics
    reason: str
    operation_threads: int = 1
    """Number of threads of one operation."""
    shards: int = 1
    """Number of parts in which the engine computes a batch."""


def detect_machine() -> Machine:
    """Detect the hardware of this machine, to validate configurations."""
    memory = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdecimal():
        memory.append(int(text))
    gpus = torch.cuda.device_count() if current_platform()[0] == "cuda" else 0
    nodes, ranks = (
        int(os.environ.get(name) or 1) for name in ("GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE")
    )
    vllm = find_spec("vllm") is not None
    return Machine(gpus, _count_cores(), nodes, min(memory), ranks, vllm=vllm)


def free_memory(device: torch.device) -> int:
    """Return the available memory in bytes: of a GPU, or of main memory within the cgroup's
    limit."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached  # torch's allocator reuses its cache
    if sys.platform != "linux":
        return detect_machine().memory
    lines = Path("/proc/self/status").read_text() + Path("/proc/meminfo").read_text()
    sizes = {key: 1024 * int(kb) for key, kb in re.findall(r"(\w+):\s+(\d+) kB", lines)}
    return max(0, min(sizes["MemAvailable"], detect_machine().memory - sizes["VmRSS"]))


def current_platform() -> Support:
    """Return the supported features of this platform and its accelerator."""
    accelerator: Accelerator = "none"
    if torch.cuda.is_available():
        accelerator = "rocm" if torch.version.hip else "cuda"
    elif torch.backends.mps.is_available():
        accelerator = "mps"
    return platform_support(platform.system(), accelerator)


def _count_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_settings(threads: int | None = None, *, large: bool = False) -> tuple[int, int, str]:
    """Choose the numbers of threads and of engine shards; return both and the reason.

    The reason is `trainer.threads` (`threads`), the environment, the model's size or the machine.
    A `large` model uses its threads within an operation. Their number changes the order of sums and
    so the result, so it is 1 unless configured, whatever the number of cores; two shards, each on a
    thread of its own, use two cores.
    """
    if threads:
        return threads, 1, "trainer.threads"
    # OpenMP accepts a list for nested regions, beginning with the outermost.
    text = os.environ.get(OMP, "").partition(",")[0].strip()
    if text.isdecimal() and int(text) > 0:
        return int(text), 1, OMP
    return (1, _SHARDS, "the model's size") if large else (_count_cores(), 1, "the cores here")


def sampling_device(name: str = "auto") -> torch.device:
    """Return the sampling device: this process's GPU, or the CPU if there is no GPU or `name` is
    "cpu".

    The GPU's index is the local rank from a launcher such as torchrun, else 0. Raises `ConfigError`
    if there are too few GPUs."""
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    number, gpus = os.environ.get(RANK_HERE, ""), torch.cuda.device_count()
    index = int(number) if number.isdecimal() else 0
    if index and index >= gpus:
        raise ConfigError(
            f"{RANK_HERE}={number}, but this machine has {gpus} GPU{'s' if gpus > 1 else ''}: "
            f"start one process per GPU (--nproc-per-node={gpus}), or use trainer.device=cpu "
            "(outside a run: CUDA_VISIBLE_DEVICES=)"
        )
    return torch.device("cuda", index)


def has_bfloat16() -> bool:
    """Return True if the processor has native bfloat16 matrix products."""
    return re.search("(avx512|amx)_bf16", cpu_description()) is not None


def choose_compute(config: RunConfig, parameters: int, sharded: bool = True) -> ComputeSettings:
    """Choose device, dtypes and thread counts for a policy of this size.

    `sharded` is True if the engine can compute a batch in parts."""
    wanted, large = config.trainer.device, parameters >= SMALL_MODEL
    device = sampling_device(wanted)
    cuda = device.type == "cuda"
    dtype = torch.bfloat16 if cuda else torch.float32
    fast = torch.bfloat16 if cuda or has_bfloat16() else torch.float32
    why = "the default on a GPU" if cuda else "sampler and trainer agree to rounding"
    if config.model.dtype != "auto":
        dtype = fast = getattr(torch, config.model.dtype)
        why = f"model.dtype={config.model.dtype}"
    if dtype != torch.float32 and config.algorithm.name == "rl":
        why += f"; it differs by rounding: rollout.correction={config.rollout.correction}"
    threads, shards, source = thread_settings(config.trainer.threads, large=large and not cuda)
    # Each uses one core and holds one micro-batch; the results do not depend on their number.
    for_gradients = 1 if cuda else min(shards, _count_cores()) if large else threads
    remark = f" ({remark})" if (remark := current_platform()[1]) else ""
    reason = (
        f"{device if device.index else device.type}{remark}, "
        f"{str(dtype).removeprefix('torch.')} ({why}), "
        f"threads: {max(threads, for_gradients)} ({source})"
    )
    return ComputeSettings(
        device=device,
        numerics=Numerics(dtype, for_gradients),
        cold_start=Numerics(fast, for_gradients),
        reason=reason if cuda else f"{reason}, {matmul_kernel()} kernels",
        operation_threads=threads if large else 1,
        shards=shards if sharded else 1,
    )


def apply_settings(settings: ComputeSettings, *, large: bool) -> None:
    """Apply the compute settings to this process.

    With a large model all threads allocate from one heap (with glibc), since a heap for each would
    keep much freed memory, and oneDNN caches fewer compiled kernels than its default of 1,024. On a
    GPU, select the device and make cuBLAS deterministic; see also `process_group.py`."""
    if settings.device.type == "cuda":
        os.environ.setdefault(_CUBLAS, _WORKSPACE)  # must be set before the first product
        torch.cuda.set_device(settings.device)
    torch.set_num_threads(settings.operation_threads)
    if large:
        _call_glibc("mallopt", _ARENA_MAX, 1)
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(_KERNEL_CACHE))


@contextmanager
def single_thread() -> Generator[None]:
    """Limit torch to one thread inside the context, for small operations."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def parallel_map(work: Callable[[Item], Out], items: Sequence[Item], threads: int) -> list[Out]:
    """Apply `work` to items on up to `threads` threads and return the results in order.

    Each operation uses one thread, so results do not depend on the number of cores. An exception is
    raised after all calls have ended."""
    if threads == 1:
        return [work(item) for item in items]
    with single_thread():
        futures = [_thread_pool(min(threads, _count_cores())).submit(work, item) for item in items]
        wait(futures)
    return [future.result() for future in futures]


@functools.cache
def _thread_pool(threads: int) -> ThreadPoolExecutor:
    """Return the thread pool of this process, cached because each thread has a memory arena."""
    return ThreadPoolExecutor(threads, "tutelage-shard", lambda: torch.set_num_threads(1))


def trim_memory() -> None:
    """Return freed memory to the operating system, if the C library is glibc.

    Tensors of varying sizes fragment the heap: without this a run grows by a gigabyte. A call takes
    some milliseconds.
    """
    _call_glibc("malloc_trim", 0)


def _call_glibc(name: str, *numbers: int) -> None:
    """Call a glibc function, if it exists."""
    import ctypes

    function = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    if function is not None:
        function(*numbers)


def compute_conditions(settings: ComputeSettings) -> dict[str, Any]:
    """Return the versions and settings that bit-for-bit reproducibility depends on."""
    import transformers

    values = {
        "tutelage": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "platform": platform.platform(),
        "cpu": cpu_vendor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "matmul": matmul_kernel(),
        "device": settings.device.type,
        "dtype": str(settings.numerics.dtype),
        "cold_start_dtype": str(settings.cold_start.dtype),
        "operation_threads": torch.get_num_threads(),
    }
    if settings.shards > 1:
        values["shards"] = settings.shards
    if settings.device.type == "cuda":
        values |= {
            "gpu": torch.cuda.get_device_name(settings.device),
            "cuda": torch.version.cuda or torch.version.hip,
            _CUBLAS: os.environ.get(_CUBLAS),
            "tf32": torch.backends.cuda.matmul.allow_tf32,
        }
    return values


def changed_conditions(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return a message for each compute condition that changed between two runs."""
    return [
        f"{key} was {before.get(key)!r} and is {after.get(key)!r}"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    ]


def describe_machine() -> list[tuple[str, str, str | None]]:
    """Return the `tutelage doctor` lines about torch and the processor: name, value, remedy."""
    (_, remark), cuda = current_platform(), torch.cuda.is_available()
    device = torch.cuda.get_device_name() if cuda else "cpu (torch sees no GPU)"
    return [
        ("torch", torch.__version__, None),
        ("device", f"{device}; {remark}" if remark else device, None),
        ("cores", str(_count_cores()), None),
        ("processor", f"{cpu_vendor()}, {torch.backends.cpu.get_cpu_capability()}", None),
        ("bfloat16", "native" if has_bfloat16() or cuda else "not native: float32 is used", None),
    ]
