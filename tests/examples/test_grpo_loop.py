"""The loop of `examples/grpo_loop.py` trains what the command trains, bit for bit."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from weights.tiny_job import material, overrides, run

EXAMPLE = Path(__file__).parents[2] / "examples" / "grpo_loop.py"


def test_the_loop_of_public_parts_trains_the_policy_of_the_command(
    one_thread: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source := tmp_path / "source").mkdir()
    material(source)
    keys = {"trainer__total_training_steps": 3}
    folder = run(source, tmp_path / "run", **keys)
    tasks, out = source / "train.jsonl", tmp_path / "own"
    runpy.run_path(str(EXAMPLE))["main"](str(tasks), str(out), *overrides(source, **keys))
    name = "model.safetensors"
    assert (out / name).read_bytes() == (folder.policy / name).read_bytes()
    assert (out / name).read_bytes() != (source / "model" / name).read_bytes()
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert len(EXAMPLE.read_text().splitlines()) <= 150
