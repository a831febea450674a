"""What ranks hold in memory, on machines that are made up."""

from __future__ import annotations

import json
import re
from dataclasses import replace
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
from tutelage.policy.machine import gradient_threads
from tutelage.runs.folder import create
from tutelage.runs.progress import Progress
from tutelage.testing import tiny_policy
from tutelage.weights import jobs, memory
from tutelage.weights.config import resolve
from tutelage.weights.memory import Models, check, parts_of, smallest_setting, words

from .samples import LAPTOP

GB = 10**9
SEVEN = Models(policy=7_600_000_000, trained=7_600_000_000)
MIDDLE = Models(policy=1_540_000_000, trained=1_540_000_000)
"""16 bytes of each are 24.6 GB."""
RANK = Models(policy=3_390_000_000, trained=1_850_000_000, merged=1_310_000_000)
"""The same with adapters of rank 1,600."""
PPO = replace(MIDDLE, critic=True)


def gpus(count: int, ranks: int, nodes: int = 1) -> Machine:
    """GPUs of 80 GB."""
    return Machine(count, 64, nodes, 512 * GB, ranks=ranks, gpu_memory=80 * GB)


def test_what_is_trained_is_shared_out_from_20_million_parameters_on() -> None:
    small = Models(policy=1_000_000, trained=1_000_000)
    assert sum(parts_of(small, gpus(0, 4), gpu=False).values()) == 16_000_000
    assert parts_of(SEVEN, gpus(8, 4), gpu=True) == {
        "weights, gradients and optimizer": 4 * SEVEN.policy,
        "weights to sample from": 4 * SEVEN.policy,
        "the engine's copy": 2 * SEVEN.policy,
    }
    more = parts_of(
        Models(SEVEN.policy, 0, True, critic=True, whole_critic=True), gpus(8, 4), gpu=True
    )
    assert more["reference"] == SEVEN.policy
    assert more["critic"] == 4 * SEVEN.policy


def test_a_reference_beside_adapters_shares_what_is_frozen() -> None:
    models = Models(1_000, 10, reference=True, merged=600, copies=3)
    laptop = gpus(0, 1)
    assert parts_of(models, laptop, gpu=False)["reference"] == 4 * 600
    for whole in (replace(models, whole_reference=True), replace(models, copies=0)):
        assert parts_of(whole, laptop, gpu=False)["reference"] == 4 * 1_000


def test_the_smallest_setting_that_fits_is_named() -> None:
    with pytest.raises(RunError) as refused:
        check(SEVEN, gpus(8, 1), gpu=True)
    told = str(refused.value)
    assert "a model of 7.60 billion parameters" in told
    assert "this process holds 137 GB beside activations and libraries" in told
    assert "a GPU has 80 GB" in told
    # Four would have 76 of 80 GB taken before activations.
    assert told.endswith(
        "The smallest setting that fits: torchrun --nproc-per-node=5 -m tutelage ..."
    )
    check(SEVEN, gpus(8, 4), gpu=True)
    assert "the first rank holds 76 GB" in words(SEVEN, gpus(8, 4), gpu=True)


@pytest.mark.parametrize(
    ("gigabytes", "keys", "said"),
    [
        (4.5, (), "there are 4.50 GB. The job took 4.70 GB at its peak, so it may be killed here"),
        (4.8, (), "there are 4.80 GB"),
        (4.5, ("algorithm.name=sft",), "there are 4.50 GB"),
        (4.5, ("model.path=other",), "there are 4.50 GB"),
    ],
)
def test_a_machine_between_what_the_model_and_what_the_job_needs_is_told(
    gigabytes: float, keys: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(0, 2, memory=int(gigabytes * GB))
    monkeypatch.setattr(memory, "machine_facts", lambda: machine)
    monkeypatch.setattr(memory, "models_of", lambda _: Models(134_520_000, 134_520_000))
    setting: Any = SimpleNamespace(
        config=resolve("word-problems", keys, machine=machine).config,
        choice=SimpleNamespace(device=SimpleNamespace(type="cpu")),
        group=SimpleNamespace(size=1),
    )
    told = memory.fact(setting)["memory"]
    assert said in told
    assert ("may be killed" in told) is ("may be killed" in said)


@pytest.mark.parametrize(
    ("models", "machine", "gpu", "way"),
    [
        (SEVEN, gpus(2, 2), True, "torchrun --nnodes=4 --nproc-per-node=2 -m tutelage ..."),
        (SEVEN, gpus(1, 1), True, "torchrun --nnodes=8 --nproc-per-node=1 -m tutelage ..."),
        (SEVEN, Machine(0, 2, memory=110 * GB), False, "model.lora.rank=16"),
        (RANK, Machine(0, 2, memory=25 * GB), False, "model.lora.rank=16"),
        (MIDDLE, Machine(0, 2, 1, 25 * GB, ranks=2), False, "model.lora.rank=16 and one process"),
        (MIDDLE, Machine(0, 2, 1, 28 * GB, ranks=2), False, "one process"),
        (PPO, Machine(0, 2, memory=40 * GB), False, "model.lora.rank=16"),
        (
            replace(PPO, whole_critic=True),
            Machine(0, 2, memory=40 * GB),
            False,
            "a smaller model",
        ),
        (SEVEN, Machine(0, 2, memory=8 * GB), False, "a smaller model"),
        (
            Models(2_020_000_000, 2_020_000_000, reference=True, copies=3, linear=930_000_000),
            Machine(0, 2, memory=25 * GB),
            False,
            "model.lora.rank=16 model.enable_gradient_checkpointing=true",
        ),
        (Models(135 * 10**6, 135 * 10**6), Machine(0, 2, 1, 3 * GB, ranks=8), False, "one process"),
    ],
    ids=[
        "nodes",
        "nodes of one",
        "adapters",
        "adapters of a smaller rank",
        "no room beside",
        "room",
        "ppo",
        "critic",
        "smaller",
        "adapters block by block",
        "fewer ranks",
    ],
)
def test_other_ways(models: Models, machine: Machine, gpu: bool, way: str) -> None:
    assert smallest_setting(models, machine, gpu=gpu) == way
    with pytest.raises(RunError, match=rf"that fits: {re.escape(way)}$"):
        check(models, machine, gpu=gpu)


def test_a_stored_model_that_cannot_fit_is_refused_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its config, which is all that there is of it."""
    tiny_policy().save(tmp_path / "small")
    (tmp_path / "small" / "model.safetensors").unlink()
    config = tmp_path / "small" / "config.json"
    large = {"vocab_size": 70_000, "hidden_size": 100_000, "num_hidden_layers": 0}
    config.write_text(json.dumps({**json.loads(config.read_text()), **large, "layer_types": []}))
    described = DescribedModel.of(tmp_path / "small")
    assert described is not None
    assert described.count() == 7_000_100_000
    monkeypatch.setattr(memory, "machine_facts", lambda: Machine(0, 2, memory=64 * GB))
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
@pytest.mark.parametrize("weights", [True, False])
def test_adapters_are_counted_by_their_rank_before_a_model_is_loaded(
    tmp_path: Path, modules: tuple[str, ...], weights: bool
) -> None:
    policy, folder = tiny_policy(), tmp_path / "small"
    policy.save(folder)
    if not weights:
        (folder / "model.safetensors").unlink()
    lora = LoraConfig(rank=3, target_modules=modules)
    made = with_lora(policy, lora, seed=0).parameters()
    adapters = sum(p.numel() for p in made if p.requires_grad)
    matrices = sum(
        tensor.numel()
        for name, tensor in policy.hf_tensors()
        if ".layers." in name
        and tensor.dim() == 2
        and (not modules or name.split(".")[-2] in modules)
    )
    described = DescribedModel.of(folder)
    assert described is not None
    assert described.adapter_counts(3, modules) == (adapters, matrices)
    keys = ["agent.reward_name=math", "model.lora.rank=512"]
    flags = {"model": str(folder), "train": "tasks.jsonl"}
    asked = resolve("rl", keys, machine=LAPTOP, flags=flags)
    found = memory._stored(asked.config)  # pyright: ignore[reportPrivateUsage]
    assert found is not None
    told = described.adapter_counts(512)
    assert (found[0].trained, found[0].merged, found[0].linear) == (told[0], told[1], told[1])
    threads = gradient_threads(asked.config, found[0].policy, gpu=False)
    assert found[0].copies == 1 + threads, "one to sample from, and one of each thread"
    blocks = resolve(
        "rl", [*keys, "model.enable_gradient_checkpointing=true"], machine=LAPTOP, flags=flags
    )
    thin = memory._stored(blocks.config)  # pyright: ignore[reportPrivateUsage]
    assert thin is not None
    assert thin[0].copies == 1
    if weights:  # on another layout than the fused decoder's, nothing is merged
        config = folder / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "model_type": "gpt_neox"}))
        found = memory._stored(asked.config)  # pyright: ignore[reportPrivateUsage]
        described = DescribedModel.of(folder)
        assert found is not None
        assert described is not None
        trained = described.adapter_counts(512)[0]
        assert (found[0].trained, found[0].copies) == (trained, 0)
    assert DescribedModel.of(tmp_path) is None


def test_a_model_in_another_format_is_refused_by_its_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything else of the folder is read, as where its weights are still to come."""
    small = tiny_policy()
    small.save(tmp_path / "small")
    described = DescribedModel.of(tmp_path / "small")
    assert described is not None
    assert described.count() == small.count()
    for file in (tmp_path / "small").iterdir():
        if file.name != "config.json":
            file.unlink()
    monkeypatch.setattr(memory, "machine_facts", lambda: Machine(0, 2, memory=small.count()))
    flags = {"model": str(tmp_path / "small"), "train": "tasks.jsonl"}
    asked = resolve("rl", ["agent.reward_name=math"], machine=LAPTOP, flags=flags)
    with pytest.raises(RunError, match=r"does not fit in memory: this process holds"):
        memory.check_stored(asked.config)
    (tmp_path / "small" / "config.json").write_text("{")
    assert DescribedModel.of(tmp_path / "small") is None


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
    ("machine", "code", "told"),
    [
        (
            Machine(0, 64, 2, 512 * GB, ranks=4),
            0,
            "memory: the first rank holds 46 GB beside activations and libraries (weights, "
            "gradients and optimizer 15 GB, weights to sample from 30 GB); there are 512 GB, for 4 "
            "ranks",
        ),
        (
            Machine(0, 64, 2, 140 * GB, ranks=4),
            2,
            "does not fit in memory: the first rank holds 46 GB beside activations and libraries "
            "(weights, gradients and optimizer 15 GB, weights to sample from 30 GB); there are 140 "
            "GB, for 4 ranks. The smallest setting that fits: one process",
        ),
        (Machine(0, 64, 2, 20 * GB, ranks=4), 2, "The smallest setting that fits: a smaller model"),
    ],
    ids=["fits", "fewer ranks", "nothing"],
)
def test_a_dry_run_of_eight_ranks_says_what_one_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: Machine, code: int, told: str
) -> None:
    """Of a model of 7.6 billion parameters, in place of which a tiny one plays."""
    for place in ("tutelage.policy.machine", "tutelage.weights.memory"):
        monkeypatch.setattr(f"{place}.machine_facts", lambda: machine)
    monkeypatch.setattr(memory, "models_of", lambda _: SEVEN)
    assert told in said_by(command_of_eight_ranks(tmp_path), code, monkeypatch)
    assert not (tmp_path / "two").exists()


def test_a_dry_run_says_it_where_the_weights_are_still_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = command_of_eight_ranks(tmp_path)
    (tmp_path / "model" / "model.safetensors").unlink()
    one = Machine(0, 2, memory=64 * GB)
    for place in ("tutelage.policy.machine", "tutelage.weights.memory"):
        monkeypatch.setattr(f"{place}.machine_facts", lambda: one)
    said = said_by(words, 2, monkeypatch)
    assert "memory: this process holds " in said
    assert "there are 64 GB" in said.partition("Error:")[0]
    assert "cannot load the weights" in said


def test_a_dry_run_on_gpus_is_refused_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By figures of one GPU, with the smallest number of them that fits."""
    words = [w for w in command_of_eight_ranks(tmp_path) if w != "trainer.device=cpu"]
    words[words.index("--store") : words.index("--store") + 2] = []
    for place in ("tutelage.policy.machine", "tutelage.weights.memory"):
        monkeypatch.setattr(f"{place}.machine_facts", lambda: gpus(8, 1))
    monkeypatch.setattr(memory, "here", lambda *, gpu: gpus(8, 1))
    monkeypatch.setattr(DescribedModel, "count", lambda _: SEVEN.policy)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("tutelage.weights.inputs.load_policy", pytest.fail)
    said = said_by(words, 2, monkeypatch)
    assert "a model of 7.60 billion parameters does not fit in memory" in said
    assert "the engine's copy 15 GB" in said
    assert "a GPU has 80 GB" in said
    assert "that fits: torchrun --nnodes=2 --nproc-per-node=8 -m tutelage ..." in said


def test_a_machine_that_says_nothing_refuses_nothing() -> None:
    check(SEVEN, Machine(1, 1), gpu=True)
