"""What is chosen for a machine, why, and what a resume compares."""

from __future__ import annotations

import pytest
import torch

from tutelage.train import machine

from .samples import config

SMALL, LARGE = 600_000, 500_000_000


def test_small_models_use_threads_for_micro_batches() -> None:
    choice = machine.choose(config("trainer.threads=3", "trainer.device=cpu"), SMALL)
    assert choice.device.type == "cpu"
    assert choice.numerics.threads == 3
    assert choice.numerics.dtype == torch.float32
    assert choice.numerics.exact
    assert "3 threads" in choice.reason
    assert "sampler and trainer agree" in choice.reason


def test_large_models_use_threads_inside_an_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    settings = config("trainer.threads=3", "trainer.device=cpu")
    choice = machine.choose(settings, LARGE)
    assert choice.numerics.threads == 1
    machine.set_threads(choice, settings, LARGE)
    machine.set_threads(choice, settings, SMALL)
    assert told == [3, 1]


def test_a_given_format_is_used_everywhere() -> None:
    choice = machine.choose(config("model.dtype=bfloat16", "trainer.device=cpu"), SMALL)
    assert choice.numerics.dtype == choice.cold_start.dtype == torch.bfloat16
    assert not choice.numerics.exact
    assert "model.dtype=bfloat16" in choice.reason


def test_the_choice_is_a_function_of_the_machine() -> None:
    first, again = (machine.choose(config(), SMALL) for _ in range(2))
    assert first == again


def test_conditions_hold_what_repetition_depends_on_and_not_the_gradient_threads() -> None:
    one, two = (
        machine.conditions(machine.choose(config(f"trainer.threads={n}"), SMALL)) for n in (1, 2)
    )
    assert one == two
    assert {"torch", "cpu_capability", "matmul", "dtype", "device", "operation_threads"} <= {*one}


def test_differences_are_told_in_words() -> None:
    before = {"torch": "2.9", "cpu": "amd", "old": 1}
    now = {"torch": "2.10", "cpu": "amd", "new": 2}
    assert machine.differences(before, now) == [
        "new was None and is 2",
        "old was 1 and is None",
        "torch was '2.9' and is '2.10'",
    ]
    assert machine.differences(now, now) == []


def test_the_doctor_has_a_line_for_each_part() -> None:
    lines = {name: (found, remedy) for name, found, remedy in machine.describe()}
    assert {"python", "torch", "device", "cores", "bfloat16", "disk", "transformers"} <= {*lines}
    assert all(found for found, _ in lines.values())
    assert lines["torch"] == (torch.__version__, None)
    assert lines["hydra"][1] is None
