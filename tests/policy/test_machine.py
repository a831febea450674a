"""What is chosen for a machine, why, and what a resume compares."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.weights.samples import config

from tutelage.errors import ConfigError, ModelError
from tutelage.policy import machine
from tutelage.policy.model import load_policy
from tutelage.testing import tiny_policy

SMALL, LARGE = 600_000, 500_000_000


def test_small_models_use_threads_for_micro_batches() -> None:
    choice = machine.choose_compute(config("trainer.threads=3", "trainer.device=cpu"), SMALL)
    assert choice.device.type == "cpu"
    assert choice.numerics.threads == 3
    assert choice.numerics.dtype == torch.float32
    assert choice.numerics.is_exact
    assert "threads: 3 (trainer.threads)" in choice.reason
    assert "sampler and trainer agree" in choice.reason


def test_threads_that_are_asked_for_compute_an_operation_of_a_large_model() -> None:
    settings = config("trainer.threads=3", "trainer.device=cpu")
    large, small = (machine.choose_compute(settings, size) for size in (LARGE, SMALL))
    assert (large.numerics.threads, large.operation_threads, large.shards) == (1, 3, 1)
    assert (small.operation_threads, small.shards) == (1, 1)


def test_cores_alone_change_no_bit_of_a_large_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    settings = config("trainer.device=cpu")
    for count in (1, 2, 8):
        monkeypatch.setattr("tutelage.policy.machine._count_cores", lambda count=count: count)
        choice = machine.choose_compute(settings, LARGE)
        assert (choice.operation_threads, choice.shards) == (1, 2)
        assert machine.compute_conditions(choice)["shards"] == 2
        assert choice.numerics.threads == min(2, count)
        assert f"threads: {min(2, count)} (the model's size)" in choice.reason
        alone = machine.choose_compute(settings, LARGE, sharded=False)
        assert (alone.operation_threads, alone.shards) == (1, 1)


def test_a_model_that_does_not_fit_on_a_gpu_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_policy().save(tmp_path)

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 28.00 GiB. GPU 0 has")

    monkeypatch.setattr("tutelage.policy.network.FusedNetwork.to", full)
    with pytest.raises(ModelError, match=r"28.00 GiB.*set CUDA_VISIBLE_DEVICES= to keep"):
        load_policy(str(tmp_path), device=torch.device("cuda"))


def test_the_environments_threads_are_honoured_where_no_key_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tutelage.policy.machine._count_cores", lambda: 8)
    for said, count, by, of_large in (
        ("3", 3, "OMP_NUM_THREADS", 3),
        ("many", 8, "the cores here", 1),
    ):
        monkeypatch.setenv("OMP_NUM_THREADS", said)
        small = machine.choose_compute(config("trainer.device=cpu"), SMALL)
        assert small.numerics.threads == count
        assert f"threads: {count} ({by})" in small.reason
        large = machine.choose_compute(config("trainer.device=cpu"), LARGE)
        assert large.operation_threads == of_large
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    keyed = machine.choose_compute(config("trainer.threads=2", "trainer.device=cpu"), LARGE)
    assert "threads: 2 (trainer.threads)" in keyed.reason


def test_work_in_parallel_ends_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, with one thread for an operation; an error leaves nothing running behind it."""
    monkeypatch.setattr("tutelage.policy.machine._count_cores", lambda: 4)
    before, running = torch.get_num_threads(), threading.Barrier(3)

    def work(item: int) -> tuple[int, int, int]:
        if item < 3:
            running.wait(10)
        return item, torch.get_num_threads(), threading.get_ident()

    found = machine.parallel_map(work, range(7), 3)
    assert [(item, threads) for item, threads, _ in found] == [(i, 1) for i in range(7)]
    assert len({ident for _, _, ident in found}) == 3

    def fails(item: int) -> None:
        if item == 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        machine.parallel_map(fails, range(3), 3)
    assert torch.get_num_threads() == before
    assert sum(t.name.startswith("tutelage-shard") for t in threading.enumerate()) <= 3


def test_a_given_format_is_used_everywhere() -> None:
    choice = machine.choose_compute(config("model.dtype=bfloat16", "trainer.device=cpu"), SMALL)
    assert choice.numerics.dtype == choice.cold_start.dtype == torch.bfloat16
    assert not choice.numerics.is_exact
    assert "model.dtype=bfloat16" in choice.reason


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    """What torch is told on a machine that seems to have two GPUs."""
    told: list[tuple[str, object]] = []

    def hear(name: str) -> Any:
        return lambda value, **_: told.append((name, value))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: f"GPU of {device}")
    monkeypatch.setattr(torch.cuda, "set_device", hear("device"))
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    return told


def test_each_process_of_a_launcher_has_a_gpu_of_its_own(
    two_gpus: list[tuple[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, index in (("", 0), ("0", 0), ("1", 1)):
        monkeypatch.setenv("LOCAL_RANK", number)
        choice = machine.choose_compute(config(), SMALL)
        assert choice.device == torch.device("cuda", index)
        assert choice.reason.startswith("cuda:1, " if index else "cuda, ")
        machine.apply_settings(choice, large=False)
        assert two_gpus[-1] == ("device", torch.device("cuda", index))
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ConfigError, match=r"LOCAL_RANK=2, but this machine has 2 GPUs.*=2\)"):
        machine.choose_compute(config(), SMALL)
    assert machine.choose_compute(config("trainer.device=cpu"), SMALL).device.type == "cpu"


def test_a_gpu_repeats_where_torch_can_and_says_what_it_is(
    two_gpus: list[tuple[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a run of the CPU is told and recorded nothing of it."""
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    on_cpu = machine.choose_compute(config("trainer.device=cpu"), SMALL)
    machine.apply_settings(on_cpu, large=False)
    assert two_gpus == []
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    on_gpu = machine.choose_compute(config(), SMALL)
    machine.apply_settings(on_gpu, large=False)
    found = machine.compute_conditions(on_gpu)
    new = {key: found[key] for key in found.keys() - machine.compute_conditions(on_cpu).keys()}
    assert new == {
        "gpu": "GPU of cuda:0",
        "cuda": "12.8",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "tf32": False,
    }
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    machine.apply_settings(on_gpu, large=False)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8", "who sets it knows why"
