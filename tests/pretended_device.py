"""A pretended GPU for machines without one: real numbers, and CUDA's rules about devices.

It is torch's own Python backend, so that autograd, modules and optimizers take it for a device.
What is "on" it are wrappers whose data lie in main memory, where every operation is computed. What
CUDA refuses is refused here: operands on different devices (torch lets scalars of the CPU and
indices of the CPU pass, and so does this), `.numpy()`, generators of the CPU, operators that the
CPU alone has. Each point where the host would wait for the device is counted, by the line of ours
that waits.

It knows nothing of kernels, streams and memory, and sees one thread alone: what it lets pass may
still fail on a GPU.

    @on_device
    def test_it_learns(device: PretendedDevice, fresh: Fresh) -> None:
        policy = fresh().to(device.first)
        ...
        print(device.waits)

Torch counts a process's devices at its first backward pass, and a backend of Python cannot be taken
back: the tests of a file run in a process of their own, and all others see the machine as it is.

`tests/real_device.py` has the same tests run on a GPU.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, Self

import pytest
import torch
from tests.real_device import ON_GPU, RealDevice
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "pretended"
aten: Any = torch.ops.aten
_BY_INDEX = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
    aten._unsafe_index_put.default,
}
"""Operators that take indices of the CPU for a tensor on the device."""
_ITEMS = {Tensor.__getitem__, Tensor.__setitem__}
_INDICES = (torch.long, torch.int32, torch.bool, torch.uint8)
_MOVES = {aten._to_copy.default, aten.copy_.default, aten._copy_from.default}
_WAITS = {aten._local_scalar_dense.default, aten.nonzero.default}


class DeviceError(RuntimeError):
    """What a GPU would have refused."""


class _Stream:
    """All that is computed is computed at once, so nothing waits for a stream or an event."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def _nothing(self, *_: Any) -> Any:
        return self

    wait_stream = wait_event = record_event = record = wait = synchronize = _nothing


class _Module(backend_registration._DummyBackendModule):
    """What `torch.pretended` answers."""

    Stream = Event = _Stream

    def current_stream(self, *_: Any) -> _Stream:
        return _Stream()

    def stream(self, _: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def set_device(self, _: Any) -> None:
        pass

    def device_count(self) -> int:
        return 2

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


@functools.cache
def _register() -> None:
    """Once in a process: torch has one place for a backend of Python."""
    backend_registration._setup_privateuseone_for_python_backend(
        rename=NAME, backend_module=_Module()
    )


def on_device(test: Callable[..., None]) -> Callable[..., None]:
    """A test that runs in a process of its own file, with an open `PretendedDevice` as `device`.
    Its other fixtures are handed over."""
    signature = inspect.signature(test)
    fixtures = [p for name, p in signature.parameters.items() if name != "device"]

    @functools.wraps(test)
    def run(**given: Any) -> None:
        failure = _process().submit(_failure, test.__module__, test.__name__, given).result()
        if failure:
            pytest.fail(failure, pytrace=False)

    run.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
    return run


@pytest.fixture(scope="module", autouse=True)
def process_ended() -> Iterator[None]:
    """For files whose tests are `on_device`."""
    yield
    _process().shutdown()
    _process.cache_clear()


@functools.cache
def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def _failure(module: str, name: str, given: dict[str, Any]) -> str:
    """What goes wrong in a test, in the other process; nothing where it passes."""
    torch.set_num_threads(1)
    patch = pytest.MonkeyPatch()
    try:
        with RealDevice() if ON_GPU else PretendedDevice() as device:
            without_inference_mode(patch)
            test = getattr(importlib.import_module(module), name)
            inspect.unwrap(test)(device=device, **given)
    except BaseException:
        return traceback.format_exc()
    finally:
        patch.undo()
    return ""


class OnDevice(Tensor):
    """A tensor on a pretended device; `inner` has its data."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: Any, inner: Tensor, device: torch.device) -> OnDevice:
        made: Any = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=device,
        )
        made.inner = inner
        return made

    def __init__(self, inner: Tensor, device: torch.device) -> None:
        pass

    def __repr__(self, **_: Any) -> str:
        return f"OnDevice({self.inner!r}, {self.device})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def __reduce_ex__(self, protocol: Any) -> Any:
        """What is sent to another process, or saved, is read into main memory there."""
        return self.inner.__reduce_ex__(protocol)

    def tolist(self) -> Any:
        _wait()
        return self.inner.tolist()

    def numpy(self, **_: Any) -> Any:
        raise DeviceError(f"numpy() of a tensor on {self.device}; use .cpu() first, {_where()}")


class PretendedDevice(TorchDispatchMode):
    """While this is open there are two pretended GPUs."""

    def __init__(self) -> None:
        _register()
        super().__init__()
        self.first, self.second = (torch.device(NAME, i) for i in range(2))
        self.waits: collections.Counter[str] = collections.Counter()
        """How often the host waited, by the line that did."""
        self.operations = 0
        self._functions = _Functions()
        self._swapped = torch.__future__.get_swap_module_params_on_conversion()

    def __enter__(self) -> Self:
        _ACTIVE.append(self)
        # A module that moves keeps its parameters, and ties between them, as on a GPU.
        torch.__future__.set_swap_module_params_on_conversion(True)
        self._functions.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._functions.__exit__(*error)
        torch.__future__.set_swap_module_params_on_conversion(self._swapped)
        _ACTIVE.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(isinstance(t, DTensor) for t in (*_leaves(args), *_leaves(kwargs.values()))):
            return func(*args, **kwargs)  # computed with its parts, which come here
        return _run(func, args, kwargs)


_ACTIVE: list[PretendedDevice] = []


def _active() -> PretendedDevice | None:
    return _ACTIVE[-1] if _ACTIVE else None


class _Functions(TorchFunctionMode):
    """What moves data to a device below dispatch, in two steps: `torch.tensor(data, device=...)`,
    and lists of numbers as indices."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _ITEMS and isinstance(args[0], OnDevice):
            key = args[1] if isinstance(args[1], tuple) else (args[1],)
            key = tuple(torch.tensor(k) if isinstance(k, list) else k for k in key)
            return func(args[0], key, *args[2:])
        device = kwargs.get("device")
        if func is torch.tensor and device is not None and torch.device(device).type == NAME:
            rest = {key: value for key, value in kwargs.items() if key != "device"}
            with torch._C.DisableTorchFunction():
                return torch.tensor(*args, **rest).to(_numbered(torch.device(device)))
        return func(*args, **kwargs)


def _run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Compute an operation in main memory, after what a GPU would have checked."""
    flat = [*_leaves(args), *_leaves(kwargs.values())]
    here = [t for t in flat if isinstance(t, OnDevice)]
    asked = kwargs.get("device")
    _check(func, args, flat, here, asked is not None and torch.device(asked).type == NAME)
    target = here[0].device if here else None
    to_host = here and asked is not None and torch.device(asked).type == "cpu"
    if (here and func in _WAITS) or (to_host and func is aten._to_copy.default):
        _wait()
    if asked is not None:
        target = _numbered(torch.device(asked)) if torch.device(asked).type == NAME else None
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if func is aten.copy_.default:
        target = args[0].device if isinstance(args[0], OnDevice) else None
    if func is aten._local_scalar_dense.default:
        target = None
    if kwargs.get("pin_memory"):
        kwargs = {**kwargs, "pin_memory": False}
    inner_args = [_mapped(_inner, x) for x in args]
    inner_kwargs = {key: _mapped(_inner, x) for key, x in kwargs.items()}
    out = func(*inner_args, **inner_kwargs)
    if not func._schema.returns:
        return None
    if args and isinstance(args[0], Tensor) and out is inner_args[0] and func._schema.is_mutable:
        return args[0]
    if isinstance(kwargs.get("out"), Tensor):
        return kwargs["out"]
    if target is None:
        return out
    if (active := _active()) is not None:
        active.operations += 1
    known = {id(t.inner): t for t in here}
    return _mapped(lambda t: known[id(t)] if id(t) in known else OnDevice(t, target), out)


def _check(
    func: Any, args: Sequence[Any], flat: Sequence[Any], here: Sequence[OnDevice], made: bool
) -> None:
    """Raise `DeviceError` for operands that do not meet on a GPU."""
    if (here or made) and any(
        isinstance(g, torch.Generator) and g.device.type == "cpu" for g in flat
    ):
        raise DeviceError(f"{func}: a generator of the CPU, {_where()}")
    if not here or func in _MOVES:
        return
    devices = {t.device for t in here}
    if len(devices) > 1:
        raise DeviceError(f"{func}: tensors on {sorted(map(str, devices))}, {_where()}")
    hosts = [t for t in flat if isinstance(t, Tensor) and not isinstance(t, OnDevice) and t.dim()]
    if func in _BY_INDEX:
        if not isinstance(args[0], OnDevice):
            raise DeviceError(f"{func}: indices on the device into a CPU tensor, {_where()}")
        hosts = [t for t in hosts if t.dtype not in _INDICES]
    if hosts:
        shape = tuple(hosts[0].shape)
        raise DeviceError(f"{func}: a tensor on the device with one of the CPU {shape}, {_where()}")
    if "mkldnn" in str(func):
        raise DeviceError(f"{func}: the CPU alone has it, {_where()}")


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    """What is in the arguments of an operator: values, and lists of them."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _leaves(value)
        else:
            yield value


def _mapped(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The value with each tensor in it changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(change, one) for one in value)
    return value


def _inner(tensor: Tensor) -> Tensor:
    return tensor.inner if isinstance(tensor, OnDevice) else tensor


def _numbered(device: torch.device) -> torch.device:
    return torch.device(NAME, device.index or 0)


def _wait() -> None:
    if (active := _active()) is not None:
        active.waits[_where()] += 1


def _where() -> str:
    """The line of ours that computes."""
    frame = sys._getframe()
    while frame is not None:
        _, ours, name = frame.f_code.co_filename.rpartition("/tutelage/")
        if ours:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "no line of ours"


def without_inference_mode(patch: pytest.MonkeyPatch) -> None:
    """Have what samples run without gradients instead: torch gives a tensor of Python no inference
    mode."""
    if ON_GPU:
        return
    from tutelage.engine import backends
    from tutelage.policy import decoder

    for owner, name in (
        (decoder, "extend"),
        (backends._HFBackend, "extend"),
        (backends._HFBackend, "copy"),
    ):
        patch.setattr(owner, name, torch.no_grad()(getattr(owner, name).__wrapped__))


def with_sharding(patch: pytest.MonkeyPatch) -> None:
    """Have torch's FSDP shard over pretended devices: what it frees, allocates and pins there has
    no memory of its own."""
    if ON_GPU:
        return
    parameter = importlib.import_module("torch.distributed.fsdp._fully_shard._fsdp_param")
    for name in ("free_storage", "alloc_storage"):
        patch.setattr(parameter, name, lambda _: None)
    patch.setattr(Tensor, "pin_memory", lambda tensor, *_: tensor)
