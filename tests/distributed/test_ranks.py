"""Several ranks train as one process does, whether each has the whole model or a shard of it:
gradients in tree order are the same sum on each number of them, torch's own reduction repeats for
the same number."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tests.testing.vllm_server import VLLMServer
from tests.tiny_policies import fresh_policy
from tests.weights import tiny_job
from tests.weights.test_sft import chat, write
from torch.distributed.checkpoint.filesystem import FileSystemReader

from tutelage.policy.model import load_policy
from tutelage.testing import tiny_policy
from tutelage.weights import checkpoint

from . import jobs
from .ranks import started, together

ADAPTERS: dict[str, object] = {
    "model__lora__rank": 4,
    "model__enable_gradient_checkpointing": "true",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model, tasks and reward of the tiny job."""
    return tiny_job.material(tmp_path_factory.mktemp("material"))


@pytest.fixture(scope="module")
def alone(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process, in tree order."""
    place = tmp_path_factory.mktemp("alone")
    together(1, place, jobs.train, source, place / "run", "tree")
    return place / "run"


def assert_same(out: Path, reference: Path) -> None:
    """Weights and metrics, bit for bit."""
    assert jobs.metrics(out) == jobs.metrics(reference)
    assert jobs.digest(out) == jobs.digest(reference)


@pytest.mark.parametrize(
    ("size", "order"),
    [
        (2, "tree"),
        (4, "tree shards"),
        pytest.param(4, "tree", marks=pytest.mark.full),
        pytest.param(2, "tree shards", marks=pytest.mark.full),
    ],
)
def test_in_tree_order_the_weights_are_those_of_one_process(
    source: Path, alone: Path, tmp_path: Path, size: int, order: str
) -> None:
    out = tmp_path / "run"
    ranks = together(size, tmp_path, jobs.train, source, out, order)
    assert_same(out, alone)
    assert [ranks.said(r) + ranks.shown(r) for r in range(1, size)] == [""] * (size - 1)
    assert {p.name for p in out.iterdir()} == {p.name for p in alone.iterdir()}
    assert (out / "checkpoints" / "step_000002" / "parts").is_dir() is ("shards" in order)


@pytest.mark.full  # tree order is exact, and has a test above
@pytest.mark.parametrize("order", ["shards", "plain"])
def test_two_ranks_repeat_and_are_one_process_to_rounding(
    source: Path, alone: Path, tmp_path: Path, order: str
) -> None:
    for name in ("a", "b"):
        together(2, tmp_path / f"of_{name}", jobs.train, source, tmp_path / name, order)
    assert_same(tmp_path / "a", tmp_path / "b")
    one, two = (load_file(p / "policy" / "model.safetensors") for p in (alone, tmp_path / "a"))
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-4


@pytest.mark.full
def test_adapters_and_recomputed_activations_are_sharded_too(source: Path, tmp_path: Path) -> None:
    for size, order in ((1, "tree"), (2, "tree shards")):
        out = tmp_path / str(size)
        together(size, tmp_path / f"of_{size}", jobs.train_with, source, out, order, ADAPTERS)
    assert_same(tmp_path / "2", tmp_path / "1")
    adapter = "adapter/adapter_model.safetensors"
    assert (tmp_path / "2" / adapter).read_bytes() == (tmp_path / "1" / adapter).read_bytes()


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(keys, id=name, marks=pytest.mark.full)
        for name, keys in {
            "whole KL in the loss": {"actor__use_kl_loss": "true", "actor__kl_loss_type": "full"},
        }.items()
    ],
)
def test_a_reference_works_beside_a_sharded_policy(
    source: Path, tmp_path: Path, keys: dict[str, object]
) -> None:
    for size, order in ((1, "tree"), (2, "tree shards")):
        out = tmp_path / str(size)
        together(size, tmp_path / f"of_{size}", jobs.train_with, source, out, order, keys)
    assert_same(tmp_path / "2", tmp_path / "1")


CRITIC: dict[str, object] = {
    "algorithm__adv_estimator": "gae",
    "algorithm__use_kl_in_reward": "true",
    "critic__optim__lr": 1e-2,
}


@pytest.fixture(scope="module")
def alone_with_critic(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process with a critic, in tree order."""
    place = tmp_path_factory.mktemp("critic")
    together(1, place, jobs.train_with, source, place / "run", "tree", CRITIC)
    return place / "run"


def chunks(out: Path, name: str) -> int:
    """Parts of a tensor in the checkpoint of the second step."""
    reader = FileSystemReader(out / "checkpoints" / "step_000002" / "parts")
    found: Any = reader.read_metadata().state_dict_metadata[name]
    return len(found.chunks)


@pytest.mark.full
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.full)])
def test_a_critic_is_sharded_as_the_policy_is(
    source: Path, alone_with_critic: Path, tmp_path: Path, size: int
) -> None:
    out = tmp_path / "run"
    together(size, tmp_path, jobs.train_with, source, out, "tree shards", CRITIC)
    assert_same(out, alone_with_critic)
    values = [line["value/grad_norm"] for line in jobs.metrics(out) if line["phase"] == "rl"]
    assert min(values) > 0
    for name in ("weights.embed", "weights.layers.1.down", "optimizer.parts.0.state.0.exp_avg"):
        assert chunks(out, f"optimizer.critic.{name}") == size
    assert chunks(out, "optimizer.critic.weights.value_head.weight") == 1


@pytest.mark.full
@pytest.mark.parametrize("layout", ["gpt2", "phi"])
def test_critics_of_other_models_are_sharded_too(tmp_path: Path, layout: str) -> None:
    (tmp_path / "source").mkdir()
    own = tiny_job.material(tmp_path / "source")
    fresh_policy(layout, 3).save(own / "model", replace=True)
    for size, order in ((1, "tree"), (2, "tree shards")):
        out = tmp_path / str(size)
        together(size, tmp_path / f"of_{size}", jobs.train_with, own, out, order, CRITIC)
    assert_same(tmp_path / "2", tmp_path / "1")


@pytest.mark.full
def test_with_a_sharded_critic_two_ranks_repeat_and_are_one_process_to_rounding(
    source: Path, alone_with_critic: Path, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        out = tmp_path / name
        together(2, tmp_path / f"of_{name}", jobs.train_with, source, out, "shards", CRITIC)
    assert_same(tmp_path / "a", tmp_path / "b")
    one, two = (
        [line["value/grad_norm"] for line in jobs.metrics(p) if line["phase"] == "rl"]
        for p in (alone_with_critic, tmp_path / "a")
    )
    assert one == pytest.approx(two, rel=1e-3)


@pytest.mark.full
@pytest.mark.parametrize(
    ("killed", "resumed"),
    [(1, 1), (0, 2), (1, 4)],
)
def test_a_sharded_critic_goes_on_from_its_checkpoint(
    source: Path, alone_with_critic: Path, tmp_path: Path, killed: int, resumed: int
) -> None:
    out = tmp_path / "run"
    work = started(2, tmp_path / "two", jobs.train_with, source, out, "tree shards", CRITIC)
    with work as ranks:
        ranks.until(lambda: (out / "checkpoints" / "step_000002" / checkpoint.SUMS).is_file())
        ranks.kill(killed)
        ranks.end()
    together(resumed, tmp_path / "again", jobs.resume, out, "tree shards")
    assert_same(out, alone_with_critic)


def test_demonstrations_are_learned_from_on_shards(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    tiny_policy("qwen2", 3).save(source / "model")
    write(source / "train.jsonl", [chat(i, 7) for i in range(10, 16)])
    write(source / "val.jsonl", [chat(20, 7), chat(21, 7)])
    for size, order in ((1, "tree"), (2, "tree shards")):
        out = tmp_path / str(size)
        together(size, tmp_path / f"of_{size}", jobs.learn, source, out, order)
    assert_same(tmp_path / "2", tmp_path / "1")


def at_servers(source: Path, urls: str, out: Path, size: int, order: str) -> None:
    """Train so many ranks on what vLLM servers sample."""
    keys: dict[str, object] = {"rollout__name": "vllm", "rollout__servers": urls}
    together(size, out.with_suffix(".said"), jobs.train_with, source, out, order, keys)


@pytest.mark.full
@pytest.mark.parametrize("order", ["tree shards", "tree"])
def test_the_first_rank_brings_the_weights_of_all_to_vllm_servers(
    source: Path, tmp_path: Path, order: str
) -> None:
    with VLLMServer(load_policy(str(source / "model"))) as server:
        at_servers(source, f"[{server.url}]", tmp_path / "one", 1, "tree")
        at_servers(source, f"[{server.url}]", tmp_path / "two", 2, order)
        assert server.weight_version == "free"
    assert_same(tmp_path / "two", tmp_path / "one")
    trained = [line for line in jobs.metrics(tmp_path / "two") if line["phase"] == "rl"]
    assert all(0 < line["vllm/probe"] < 1e-3 for line in trained)


@pytest.mark.full
def test_a_stop_is_asked_of_the_first_rank_and_ends_all(
    source: Path, alone: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with started(2, tmp_path / "two", jobs.train, source, out, "tree shards") as ranks:
        ranks.until(lambda: any((out / "checkpoints").glob("step_*")))
        for process in reversed(ranks.processes):  # torchrun sends it to all
            os.kill(process.pid, signal.SIGINT)
        codes = ranks.end()
    assert codes == [1, 0]
    assert "StopRequested" in ranks.said(0)
    assert ranks.said(1) == ""
    assert json.loads((out / "result.json").read_text())["status"] == "stopped"
    together(2, tmp_path / "again", jobs.resume, out, "tree shards")
    assert_same(out, alone)


@pytest.mark.full
@pytest.mark.parametrize(
    ("killed", "resumed"),
    [(0, 1), *(pytest.param(*pair, marks=pytest.mark.full) for pair in ((1, 4), (0, 2)))],
)
def test_a_rank_is_killed_and_another_number_goes_on(
    source: Path, alone: Path, tmp_path: Path, killed: int, resumed: int
) -> None:
    out = tmp_path / "run"
    with started(2, tmp_path / "two", jobs.train, source, out, "tree shards") as ranks:
        ranks.until(lambda: (out / "checkpoints" / "step_000002" / checkpoint.SUMS).is_file())
        ranks.kill(killed)
        codes = ranks.end()
    assert codes[killed] == -9
    if killed:
        assert codes[0] == 1
        assert "another rank has ended" in ranks.said(0)
    else:
        assert (codes[1], ranks.said(1)) == (0, ""), "the launcher tells of rank 0"
    together(resumed, tmp_path / "again", jobs.resume, out, "tree shards")
    assert_same(out, alone)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(20))
def test_a_rank_is_killed_at_any_moment(
    source: Path, alone: Path, tmp_path: Path, seed: int
) -> None:
    rng, out = random.Random(seed), tmp_path / "run"
    steps, delay = rng.randrange(3), rng.uniform(0.0, 1.0)
    metrics = out / "metrics.jsonl"

    def far() -> bool:
        return (out / "config.json").is_file() and (
            steps == 0 or (metrics.is_file() and len(metrics.read_text().splitlines()) >= steps)
        )

    with started(2, tmp_path / "two", jobs.train, source, out, "tree shards") as ranks:
        ranks.until(far)
        ranks.processes[0].join(delay)
        ranks.kill(rng.randrange(2))
        ranks.end()
    resumed = rng.choice([1, 2, 4])
    together(resumed, tmp_path / "again", jobs.resume, out, "tree shards")
    assert_same(out, alone)
