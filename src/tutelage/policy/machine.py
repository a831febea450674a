"""The machine: what is there, what is chosen for a run and why, and what repetition depends on.

Choices are made from what the machine is, never from how fast it happens to be, so that equal
machines repeat a run bit for bit. `compute_conditions` goes into the run folder; a difference on resume is
a warning.
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
"""What launchers such as torchrun number the processes of one machine in."""
_CUBLAS, _REPEATS = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""cuBLAS adds in one order with a workspace of this size, where none is configured."""
_KERNELS = 128
_ARENA_MAX = -8
"""The number of `mallopt` for how many heaps there are, in glibc's `malloc.h`."""
_PARTS = 2
"""Parts of a large model's batch that are computed at the same time, in sampling and in training:
not as many as there are cores, or bits would depend on them."""
SMALL_MODEL = 20_000_000
"""Parameters below which one operation gets one thread: more would wait more than they work."""


@dataclass(frozen=True, slots=True)
class ComputeSettings:
    """Device, number formats and threads of a run, and the reason in words."""

    device: torch.device
    numerics: Numerics
    cold_start: Numerics
    reason: str
    operation_threads: int = 1
    """How many threads one operation gets."""
    shards: int = 1
    """In how many parts the engine computes a batch."""


def machine_facts() -> Machine:
    """Return what configuration is checked against."""
    memory = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdecimal():
        memory.append(int(text))
    gpus = torch.cuda.device_count() if this_platform().device == "cuda" else 0
    nodes, ranks = (
        int(os.environ.get(name) or 1) for name in ("GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE")
    )
    vllm = find_spec("vllm") is not None
    return Machine(gpus, _cores(), nodes, min(memory), has_bfloat16(), ranks, vllm=vllm)


def free_memory(device: torch.device) -> int:
    """Bytes of memory that this process may still take: of a GPU, else of the machine, within the
    limits of its control group."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept  # torch gives out what it keeps first
    if sys.platform != "linux":
        return machine_facts().memory
    lines = Path("/proc/self/status").read_text() + Path("/proc/meminfo").read_text()
    sizes = {key: 1024 * int(kb) for key, kb in re.findall(r"(\w+):\s+(\d+) kB", lines)}
    return max(0, min(sizes["MemAvailable"], machine_facts().memory - sizes["VmRSS"]))


def this_platform() -> Support:
    """What runs here, by what torch sees."""
    seen: Accelerator = "none"
    if torch.cuda.is_available():
        seen = "rocm" if torch.version.hip else "cuda"
    elif torch.backends.mps.is_available():
        seen = "mps"
    return platform_support(platform.system(), seen)


def _cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_settings(key: int | None = None, *, large: bool = False) -> tuple[int, int, str]:
    """Return how many threads a run gets, in how many shards its engine computes a batch, and which
    source decides: `trainer.threads`, if that is `key`, the environment, or the machine.

    Those of a `large` model compute one operation. The order of a sum, and so its bits, depends on
    their number and on what is computed with it: more than one come from a setting alone, and the
    cores decide nothing; shards, each on a thread of its own, make use of two.
    """
    if key:
        return key, 1, "trainer.threads"
    # OpenMP takes a list for nested regions, of which the first is the outermost.
    text = os.environ.get(OMP, "").partition(",")[0].strip()
    if text.isdecimal() and int(text) > 0:
        return int(text), 1, OMP
    return (1, _PARTS, "the model's size") if large else (_cores(), 1, "the cores here")


def gradient_threads(config: RunConfig, parameters: int, *, gpu: bool) -> int:
    """Return how many threads compute the gradients of a policy of this number of parameters, each
    of a micro-batch that is in memory meanwhile; they use one core each and change no result."""
    if gpu:
        return 1
    large = parameters >= SMALL_MODEL
    threads, shards, _ = thread_settings(config.trainer.threads, large=large)
    return min(shards, _cores()) if large else threads


def sampling_device(wanted: str = "auto") -> torch.device:
    """Return where a policy is sampled: on the GPU of this process where torch sees one, unless a
    run's `trainer.device` says cpu. It has the number of the process among those that a launcher
    started here, else it is the first. Raises `ConfigError` where there are fewer GPUs."""
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    number, there = os.environ.get(RANK_HERE, ""), torch.cuda.device_count()
    index = int(number) if number.isdecimal() else 0
    if index and index >= there:
        raise ConfigError(
            f"{RANK_HERE}={number}, but this machine has {there} GPU{'s' if there > 1 else ''}: "
            f"start one process per GPU (--nproc-per-node={there}), or use trainer.device=cpu "
            "(outside a run: CUDA_VISIBLE_DEVICES=)"
        )
    return torch.device("cuda", index)


def has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 natively."""
    return re.search("(avx512|amx)_bf16", cpu_description()) is not None


def choose_compute(config: RunConfig, parameters: int, sharded: bool = True) -> ComputeSettings:
    """Choose device, formats and threads for a policy of this number of parameters. `sharded` says
    whether the engine can compute a batch in parts."""
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
        level = config.rollout.correction
        does = "which corrects nothing" if level == "none" else "which corrects it"
        why += f"; sampler and trainer differ by rounding: rollout.correction={level}, {does}"
    threads, shards, source = thread_settings(config.trainer.threads, large=large and not cuda)
    for_gradients = gradient_threads(config, parameters, gpu=cuda)
    seen = "torch sees a GPU" if cuda else "no GPU" if wanted == "auto" else "as configured"
    reason = (
        f"{device if device.index else device.type} ({this_platform().remark or seen}), "
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


def apply_settings(choice: ComputeSettings, *, large: bool) -> None:
    """Have this process compute as chosen. With a large model all threads allocate from one heap,
    where the C library can (glibc): each would keep what tensors leave in one of its own. And of
    oneDNN's kernels, which it compiles for every shape, fewer are kept than its 1,024. On a GPU it
    is the one of this process, and cuBLAS repeats; see also `gradients.py`."""
    if choice.device.type == "cuda":
        os.environ.setdefault(_CUBLAS, _REPEATS)  # before its first product
        torch.cuda.set_device(choice.device)
    torch.set_num_threads(choice.operation_threads)
    if large:
        _call_glibc("mallopt", _ARENA_MAX, 1)
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(_KERNELS))


@contextmanager
def single_thread() -> Generator[None]:
    """Around operations so small that several threads would wait more than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def parallel_map(work: Callable[[Item], Out], items: Sequence[Item], threads: int) -> list[Out]:
    """Return what `work` gives for each item, in order, on up to `threads` threads where there are
    as many cores. One operation gets one thread, so no bit depends on the cores. All have ended
    when this ends, also where one raised."""
    if threads == 1:
        return [work(item) for item in items]
    with single_thread():
        working = [_pool(min(threads, _cores())).submit(work, item) for item in items]
        wait(working)
    return [one.result() for one in working]


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """One pool for the process: every new thread would get a memory arena of its own."""
    return ThreadPoolExecutor(threads, "tutelage-shard", lambda: torch.set_num_threads(1))


def trim_memory() -> None:
    """Give freed memory back to the operating system, where the C library can (glibc).

    Tensors of ever different sizes leave the heap full of holes: a run grows by a gigabyte without
    this, and it costs some milliseconds.
    """
    _call_glibc("malloc_trim", 0)


def _call_glibc(name: str, *numbers: int) -> None:
    """Call a function of the C library where it has it."""
    import ctypes

    found = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    if found is not None:
        found(*numbers)


def compute_conditions(choice: ComputeSettings) -> dict[str, Any]:
    """Return what bit-for-bit repetition depends on."""
    import transformers

    found = {
        "tutelage": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "platform": platform.platform(),
        "cpu": cpu_vendor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "matmul": matmul_kernel(),
        "device": choice.device.type,
        "dtype": str(choice.numerics.dtype),
        "cold_start_dtype": str(choice.cold_start.dtype),
        "operation_threads": torch.get_num_threads(),
    }
    if choice.shards > 1:
        found["shards"] = choice.shards
    if choice.device.type == "cuda":
        found |= {
            "gpu": torch.cuda.get_device_name(choice.device),
            "cuda": torch.version.cuda or torch.version.hip,
            _CUBLAS: os.environ.get(_CUBLAS),
            "tf32": torch.backends.cuda.matmul.allow_tf32,
        }
    return found


def changed_conditions(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Conditions that changed, in words."""
    return [
        f"{key} was {before.get(key)!r} and is {now.get(key)!r}"
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key)
    ]


def describe_machine() -> list[tuple[str, str, str | None]]:
    """What `tutelage doctor` reports of torch and the processor: name, value, and a remedy."""
    support, cuda = this_platform(), torch.cuda.is_available()
    device = torch.cuda.get_device_name() if cuda else "cpu (torch sees no GPU)"
    return [
        ("torch", torch.__version__, None),
        ("device", f"{device}; {support.remark}" if support.remark else device, None),
        ("cores", str(_cores()), None),
        ("processor", f"{cpu_vendor()}, {torch.backends.cpu.get_cpu_capability()}", None),
        ("bfloat16", "native" if has_bfloat16() or cuda else "not native: float32 is used", None),
    ]
