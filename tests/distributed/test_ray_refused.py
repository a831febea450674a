"""Ray that cannot be had is said in a sentence, before anything is written."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from weights.samples import LAPTOP
from weights.tiny_job import material, overrides

from tutelage.config import Machine
from tutelage.errors import ConfigError, MissingExtraError
from tutelage.runs.folder import create
from tutelage.runs.progress import Progress
from tutelage.weights import jobs
from tutelage.weights.config import resolve

RAY = "agent.placement=ray"
ADDRESS = "ray_kwargs.ray_init.address"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    return material(tmp_path / "source")


def refused(source: Path, *words: str, ray: bool = True) -> str:
    """Why a run is refused; nothing is left of it."""
    folder = create(source.parent / "run")
    resolved = resolve("math", [*overrides(source), *[RAY] * ray, *words], machine=LAPTOP)
    with pytest.raises((ConfigError, MissingExtraError)) as error:
        jobs.train(resolved, folder, Progress())
    assert not folder.config.is_file()
    assert not folder.store.is_file()
    return str(error.value)


def test_without_ray_the_extra_is_named(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install 'tutelage[ray]'" in refused(source)


def test_an_address_where_nothing_answers(source: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    told = refused(source, f"{ADDRESS}=127.0.0.1:{port}")
    assert f"cannot use a Ray cluster at '127.0.0.1:{port}': Connection refused" in told
    assert "ray start --head" in told


@pytest.mark.parametrize("address", ["ray://10.0.0.5:10001", "10.0.0.5", "head:port"])
def test_what_is_no_address_of_a_head_node(address: str) -> None:
    with pytest.raises(ConfigError, match=r"expected text such as auto or 10.*ray job submit"):
        resolve("math", [RAY, f"{ADDRESS}='{address}'"], machine=LAPTOP)


def test_workers_sample_on_cpus() -> None:
    gpu = Machine(cuda_devices=1, cores=8)
    with pytest.raises(ConfigError, match=r"agent\.placement.*uses a GPU.*trainer\.device=cpu"):
        resolve("math", [RAY], machine=gpu)
    resolve("math", [RAY, "trainer.device=cpu"], machine=gpu)


def test_keys_of_ray_are_unused_without_it() -> None:
    resolved = resolve("math", [f"{ADDRESS}=auto"], machine=LAPTOP)
    assert resolved.unused == {ADDRESS: "agent.placement is local, and only one rank is configured"}


def test_ranks_are_placed_where_a_ray_is_named_and_several_are_asked_for() -> None:
    nodes, gpus = "trainer.nnodes=2", Machine(cuda_devices=4, cores=8)
    for machine, words, ranks in (
        (LAPTOP, [nodes], 1),
        (LAPTOP, [f"{ADDRESS}=auto"], 1),
        (LAPTOP, [nodes, f"{ADDRESS}=auto", "trainer.n_gpus_per_node=8"], 2),
        (LAPTOP, [nodes, "ray_kwargs.ray_init.num_cpus=2"], 2),
        (gpus, [nodes, f"{ADDRESS}=auto", "trainer.n_gpus_per_node=4"], 8),
        (gpus, [f"{ADDRESS}=auto", "trainer.n_gpus_per_node=4"], 4),
    ):
        device = "cpu" if machine is LAPTOP else "cuda"
        resolved = resolve("math", [*words, f"trainer.device={device}"], machine=machine)
        assert machine.count_ray_ranks(resolved.config) == ranks
        assert ("trainer.nnodes" in resolved.unused) is (ranks == 1 and nodes in words)
        assert (ADDRESS in resolved.unused) is (ranks == 1 and nodes not in words)
    started = Machine(cuda_devices=0, cores=2, nodes=2)
    assert started.count_ray_ranks(resolve("math", [f"{ADDRESS}=auto"], machine=LAPTOP).config) == 1
    more = [nodes, f"{ADDRESS}=auto", "trainer.n_gpus_per_node=8"]
    with pytest.raises(ConfigError, match=r"n_gpus_per_node=8.*more than available \(4\)"):
        resolve("math", more, machine=gpus)


def test_placed_ranks_are_refused_beside_what_does_not_go_with_them(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes, auto = "trainer.nnodes=2", f"{ADDRESS}=auto"
    for words, told in (
        ([RAY, auto], r"agent\.placement='ray'.*for ranks that Ray places"),
        (["async_training.staleness_threshold=2", auto], "training with several ranks"),
        ([f"{ADDRESS}=head"], "expected text such as auto or 10"),
    ):
        with pytest.raises(ConfigError, match=told):
            resolve("math", [nodes, "trainer.device=cpu", *words], machine=LAPTOP)
    monkeypatch.setitem(sys.modules, "ray", None)
    told = refused(source, nodes, auto, ray=False)
    assert told == "trainer.nnodes=2 needs Ray; install it with: pip install 'tutelage[ray]'"
