"""The trained artefacts of the package are what the code of today makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from benchmarks.house.artefacts import NAMES, fingerprint, machine
from benchmarks.house.planner_recipe import PlannerRecipe, save_shipped, train
from safetensors.torch import load_file

from tutelage.orchestration.planner import saving
from tutelage.policy.model import load_policy
from tutelage.policy.sources import artefact

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", NAMES)
def test_it_was_trained_by_this_recipe(name: str) -> None:
    record = json.loads((artefact(name) / "artefact.json").read_text(encoding="utf-8"))
    kept, found = record["fingerprint"], fingerprint(name)
    again = "train it again: make artefacts"
    assert {k: kept[k] for k in ("recipe", "template", "tools")} == {
        k: found[k] for k in ("recipe", "template", "tools")
    }, again
    assert found["losses"] == pytest.approx(kept["losses"], rel=1e-3), again
    if record["machine"] == machine():
        assert found["weights"] == kept["weights"], again


def test_they_are_small() -> None:
    files = [file for name in NAMES for file in artefact(name).iterdir()]
    assert sum(file.stat().st_size for file in files) <= 7e6
    for name in ("math", "prompts"):
        weights = load_file(artefact(name) / "model.safetensors").values()
        assert {tensor.dtype for tensor in weights} == {torch.bfloat16}
        assert {p.dtype for p in load_policy(str(artefact(name))).parameters()} == {torch.float32}


@pytest.mark.full
def test_a_planner_plans_alike_after_it_was_stored(tmp_path: Path) -> None:
    fitting = train(PlannerRecipe(workflows=60, held_out=12, epochs=1, width=16))
    content = saving.make_checkpoint(fitting.model, {}, 1, 0.0)
    save_shipped(content, tmp_path / "planner.safetensors")
    found = saving.load_shipped(tmp_path / "planner.safetensors")
    memory, kept = found.memory, fitting.model.memory
    assert memory is not None
    assert kept is not None
    assert torch.equal(memory.plans_MN, kept.plans_MN)
    assert torch.allclose(memory.texts.values_F, kept.texts.values_F, atol=1e-6)
    text = "Summarise the report and read it aloud"
    assert found.plan(text, 0).nodes[0].tool == fitting.model.plan(text, 0).nodes[0].tool


def test_the_shipped_planner_plans() -> None:
    assert saving.builtin_planner().plan("Translate this text to German and read it aloud", 0).nodes
