"""What a training holds in memory, and what is refused, on machines that are made up."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from tutelage.cli import build_app
from tutelage.config import Machine
from tutelage.config.schema import LoraConfig
from tutelage.errors import RunError
from tutelage.policy.described import DescribedModel
from tutelage.policy.lora import with_lora
from tutelage.runs.folder import create
from tutelage.runs.progress import Progress
from tutelage.testing import tiny_policy
from tutelage.weights import jobs, memory
from tutelage.weights.config import resolve
from tutelage.weights.memory import Footprint

from .samples import LAPTOP

GB = 10**9
SEVEN = 7_600_000_000


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has a machine stand for this one."""

    def change(machine: Machine) -> None:
        monkeypatch.setattr(memory, "detect_machine", lambda: machine)
        monkeypatch.setattr("tutelage.policy.machine.detect_machine", lambda: machine)
        monkeypatch.setattr(
            "torch.cuda.get_device_properties",
            lambda _: SimpleNamespace(total_memory=machine.gpu_memory),
        )

    return change


def footprint(
    parameters: int, trained: int | None = None, *keys: str, gpu: bool = False
) -> Footprint:
    config = resolve("math", keys, machine=LAPTOP).config
    return Footprint(config, parameters, parameters if trained is None else trained, gpu)


def test_what_is_trained_is_shared_out_from_20_million_parameters_on(on: Any) -> None:
    on(Machine(0, 64, ranks=4))
    assert footprint(1_000_000).required_bytes() == 16_000_000
    assert footprint(SEVEN).required_bytes() == 4 * SEVEN + 4 * SEVEN
    assert footprint(SEVEN, gpu=True).required_bytes() == 4 * SEVEN + 4 * SEVEN + 2 * SEVEN
    on(LAPTOP)
    assert footprint(SEVEN).required_bytes() == 16 * SEVEN


def test_a_reference_beside_adapters_shares_what_is_frozen(on: Any) -> None:
    on(LAPTOP)
    kl = ("actor.use_kl_loss=true",)
    assert footprint(1_000, 10).required_bytes() == 4_000 + 120
    assert footprint(1_000, 10, *kl).required_bytes() == 4_000 + 120 + 40
    assert footprint(1_000, 10, *kl, "ref.path=other").required_bytes() == 4_000 + 120 + 4_000
    assert footprint(1_000, 1_000, *kl).required_bytes() == 16_000 + 4_000


def test_a_critic_is_trained_as_the_policy_is(on: Any) -> None:
    on(LAPTOP)
    assert footprint(1_000, 10, "adv_estimator=gae").required_bytes() == 2 * (4_000 + 120)


def test_what_cannot_fit_is_refused_with_other_ways(on: Any) -> None:
    on(Machine(1, 64, memory=512 * GB, gpu_memory=80 * GB))
    with pytest.raises(RunError) as refused:
        footprint(SEVEN, gpu=True).check()
    told = str(refused.value)
    assert "a model of 7.60 billion parameters does not fit in memory: it needs 137 GB" in told
    assert "a GPU has 80 GB" in told
    assert "model.lora.rank=16, more memory or GPUs (torchrun), or a smaller model" in told
    footprint(SEVEN).check()
    on(Machine(0, 64, memory=64 * GB, ranks=2))
    with pytest.raises(RunError, match=r"a rank has 32 GB.*Use model\.lora\.rank=16"):
        footprint(SEVEN).check()
    on(Machine(0, 1))
    footprint(SEVEN).check()  # a machine that says nothing refuses nothing


def test_a_stored_model_that_cannot_fit_is_refused_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on: Any
) -> None:
    """By its config, which is all that there is of it."""
    tiny_policy().save(tmp_path / "small")
    (tmp_path / "small" / "model.safetensors").unlink()
    config = tmp_path / "small" / "config.json"
    large = {"vocab_size": 70_000, "hidden_size": 100_000, "num_hidden_layers": 0}
    config.write_text(json.dumps({**json.loads(config.read_text()), **large, "layer_types": []}))
    described = DescribedModel.from_folder(tmp_path / "small")
    assert described is not None
    assert described.count() == 7_000_100_000
    on(Machine(0, 2, memory=64 * GB))
    monkeypatch.setattr("tutelage.weights.inputs.load_policy", pytest.fail)
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"question": "1 + 1?", "answer": "2"}\n' * 8)
    flags = {"model": str(tmp_path / "small"), "train": str(tasks)}
    asked = resolve("rl", ["agent.reward_name=math"], machine=LAPTOP, flags=flags)
    with pytest.raises(
        RunError, match=r"a model of 7\.00 billion parameters does not fit in memory"
    ):
        jobs.train(asked, create(tmp_path / "run"), Progress())


@pytest.mark.parametrize("modules", [(), ("q_proj", "down_proj")])
def test_adapters_are_counted_by_their_rank_before_a_model_is_loaded(
    tmp_path: Path, on: Any, modules: tuple[str, ...]
) -> None:
    policy, folder = tiny_policy(), tmp_path / "small"
    policy.save(folder)
    for file in folder.iterdir():  # as where its weights are still to come
        if file.name != "config.json":
            file.unlink()
    described = DescribedModel.from_folder(folder)
    assert described is not None
    assert described.count() == tiny_policy().count()
    made = with_lora(policy, LoraConfig(rank=3, target_modules=modules), seed=0).parameters()
    adapters = sum(p.numel() for p in made if p.requires_grad)
    keys = ["agent.reward_name=math", "model.lora.rank=3"]
    keys.append(f"model.lora.target_modules=[{','.join(modules)}]")
    flags = {"model": str(folder), "train": "tasks.jsonl"}
    asked = resolve("rl", keys, machine=LAPTOP, flags=flags).config
    needed = Footprint(asked, tiny_policy().count() + adapters, adapters, False).required_bytes()
    on(Machine(0, 2, memory=needed))
    memory.check_model_fits(asked)
    on(Machine(0, 2, memory=needed - 1))
    with pytest.raises(RunError, match="does not fit in memory: it needs"):
        memory.check_model_fits(asked)
    (folder / "config.json").write_text("{")
    assert DescribedModel.from_folder(folder) is DescribedModel.from_folder(tmp_path) is None


def command_of_eight_ranks(place: Path) -> list[str]:
    """The command for two nodes of `docs/scaling.md`, after torchrun's own words, with a model and
    tasks that are there."""
    page = Path(__file__).parents[2] / "docs" / "scaling.md"
    (line,) = (t for t in page.read_text().splitlines() if t.startswith("torchrun --nnodes=2"))
    tiny_policy().save(place / "model")
    tasks = "".join(f'{{"question": "{i} + 1?", "answer": "{i + 1}"}}\n' for i in range(8))
    (place / "tasks.jsonl").write_text(tasks)
    there = {"/models/qwen": "model", "tasks.jsonl": "tasks.jsonl", "/shared/runs/two": "two"}
    words = line.partition(" -m tutelage ")[2].split()
    return [str(place / there[word]) if word in there else word for word in words]


def said_by(words: list[str], code: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the command says, in one line."""
    monkeypatch.setenv("COLUMNS", "100")
    done = CliRunner().invoke(build_app(), [*words, "--dry-run"])
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


@pytest.mark.parametrize(
    ("gigabytes", "code", "told"),
    [
        (512, 0, "memory: 64.6 GB for weights, gradients and optimizer, beside activations"),
        (140, 2, "does not fit in memory: it needs 64.6 GB"),
    ],
)
def test_a_dry_run_of_eight_ranks_says_what_one_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on: Any, gigabytes: int, code: int, told: str
) -> None:
    """Of a model of 7.6 billion parameters, in place of which a tiny one plays."""
    on(Machine(0, 64, 2, gigabytes * GB, ranks=4))
    loaded = lambda setting: Footprint(setting.config, SEVEN, SEVEN, False)  # noqa: E731
    monkeypatch.setattr(Footprint, "from_inputs", loaded)
    assert told in said_by(command_of_eight_ranks(tmp_path), code, monkeypatch)
    assert not (tmp_path / "two").exists()
