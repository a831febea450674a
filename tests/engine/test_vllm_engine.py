"""Servers of vLLM as one engine, on the server that stands in for it: samples, weights, faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.testing.vllm_server import VLLMServer

from tutelage.engine.protocol import Request
from tutelage.engine.vllm import VLLMEngine
from tutelage.engine.weight_transfer import WeightTransfer
from tutelage.errors import (
    ConfigError,
    ContextOverflowError,
    EngineError,
    ServersLostError,
    SyncError,
)
from tutelage.policy.lora import LoraConfig, with_lora
from tutelage.policy.model import Policy
from tutelage.policy.row import Row
from tutelage.testing import tiny_policy
from tutelage.types import JSON, Sampled, Sampling

PROMPT = (5, 9, 200, 17, 33)
Made = Callable[..., VLLMEngine]


@pytest.fixture
def policy() -> Policy:
    """What is trained."""
    return tiny_policy()


@pytest.fixture
def server(policy: Policy) -> Iterator[VLLMServer]:
    """A server of it."""
    with VLLMServer(policy) as made:
        yield made


@pytest.fixture
def engine_of(policy: Policy, tmp_path: Path) -> Iterator[Made]:
    """Engines of servers, closed at the end; what they say is in `notes`."""
    with ExitStack() as stack:

        def make(*servers: VLLMServer, run: str = "run", **more: Any) -> VLLMEngine:
            transfer = more.pop("transfer", None)
            folder = tmp_path / run
            engine = VLLMEngine(
                [s.url for s in servers],
                more.pop("policy", policy),
                transfer or WeightTransfer(folder / "sync", torch.float32),
                run=folder,
                dtype=torch.float32,
                max_length=more.pop("max_length", 256),
                **more,
            )
            stack.callback(engine.close)
            return engine

        yield make


def changed(policy: Policy, seed: int = 1) -> Policy:
    """The same policy after a step."""
    other = policy.copy()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, tensor in other.named_tensors():
            tensor.add_(0.05 * torch.randn(tensor.shape, generator=generator))
    return other


def sample(engine: VLLMEngine, *, session: str | None = None, **sampling: Any) -> Sampled:
    """One reply."""
    given: dict[str, Any] = {"max_tokens": 6, **sampling}
    request = Request(PROMPT, Sampling(**given), seed=3, session=session)
    return asyncio.run(engine.sample(request))


def off(policy: Policy, sampled: Sampled, temperature: float = 1.0) -> float:
    """The largest difference of its log-probabilities from the trainer's."""
    ids = sampled.token_ids
    row = Row((*PROMPT, *ids), (0,) * len(PROMPT) + (1,) * len(ids))
    with torch.no_grad():
        ours = policy.score([row], temperature=temperature).logp_K
    return float((ours - torch.tensor(sampled.logprobs)).abs().max())


# ---------------------------------------------------------------- samples and weights


def test_samples_carry_the_version_and_the_trainers_log_probabilities(
    server: VLLMServer, engine_of: Made, policy: Policy
) -> None:
    engine = engine_of(server)
    assert engine.version == -1
    engine.update_weights(policy, 0)
    first = sample(engine, temperature=0.7)
    assert (first.policy_version, first.versions, len(first.token_ids)) == (0, None, 6)
    assert off(policy, first, 0.7) < 1e-4
    other = changed(policy)
    engine.update_weights(other, 1)
    second = sample(engine)
    assert second.policy_version == engine.version == 1
    assert off(other, second) < 1e-4


def test_what_is_sampled_during_an_update_has_a_span_for_each_version(
    server: VLLMServer, engine_of: Made, policy: Policy
) -> None:
    engine, other = engine_of(server), changed(policy)
    engine.update_weights(policy, 0)

    async def play() -> Sampled:
        asking = Request(PROMPT, Sampling(max_tokens=90, temperature=1.5), seed=2)
        server.hold = (
            server.drawn + 2,
            server.weight_version,
        )  # the rest is drawn under the other weights
        before, work = server.drawn, asyncio.create_task(engine.sample(asking))
        while server.drawn < before + 2:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(engine.update_weights, other, 1)
        return await work

    sampled = asyncio.run(play())
    assert sampled.versions is not None
    assert [version for version, _ in sampled.versions] == [0, 1]
    assert sampled.versions[-1][1] == len(sampled.token_ids)
    assert sampled.policy_version == 0


def test_tokens_are_told_and_stop_strings_and_limits_are_kept(
    server: VLLMServer, engine_of: Made, policy: Policy
) -> None:
    engine = engine_of(server)
    engine.update_weights(policy, 0)
    told: list[int] = []
    request = Request(
        PROMPT, Sampling(max_tokens=5), seed=3, on_token=told.extend, session="a/b", top_logprobs=3
    )
    sampled = asyncio.run(engine.sample(request))
    assert tuple(told) == sampled.token_ids
    pairs = zip(sampled.token_ids, sampled.top, strict=True)
    assert all(token in dict(top) and len(top) == 3 for token, top in pairs)
    text = policy.codec.decode(sampled.token_ids[:2])
    stopped = sample(engine, max_tokens=5, stop=(text,))
    assert stopped.token_ids == sampled.token_ids[:2]
    with pytest.raises(ContextOverflowError, match="256"):
        asyncio.run(engine.sample(Request((1,) * 256, Sampling(), seed=0)))


def test_adapters_are_sent_alone(server: VLLMServer, engine_of: Made, tmp_path: Path) -> None:
    base = tiny_policy()
    base.save(tmp_path / "base")
    adapted = with_lora(base, LoraConfig(rank=4, alpha=8.0), seed=3)
    transfer = WeightTransfer(tmp_path / "adapters", torch.float32, str(tmp_path / "base"))
    engine = engine_of(server, transfer=transfer, policy=adapted)
    for version in range(2):
        with torch.no_grad():
            for name, tensor in adapted.named_tensors():
                if name.endswith("lora_B"):
                    tensor.add_(0.2)
        dict(adapted.hf_tensors())  # merges them
        engine.update_weights(adapted, version)
        sampled = sample(engine)
        assert (sampled.policy_version, off(adapted, sampled) < 1e-4) == (version, True)
    assert not list((tmp_path / "adapters").glob("*/model*"))


def test_the_file_transport_writes_the_tensors_once_in_the_samplers_format(
    policy: Policy, tmp_path: Path
) -> None:
    transfer = WeightTransfer(tmp_path / "sync", torch.bfloat16)
    for version in range(2):
        transfer.write(policy, version)
    files = sorted((tmp_path / "sync").rglob("*.safetensors"))
    assert {file.parent.name for file in files} == {"version_000001"}
    tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert len(tensors) == len(files)
    assert list(tensors) == list(dict(policy.hf_tensors()))
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}


# ---------------------------------------------------------------- the probe


def test_an_update_that_reports_success_and_changes_nothing_is_caught(
    server: VLLMServer, engine_of: Made, policy: Policy
) -> None:
    engine = engine_of(server)
    engine.update_weights(policy, 0)
    server.lies = True
    with pytest.raises(SyncError, match="different weights than the trainer"):
        engine.update_weights(changed(policy), 1)


def test_a_small_step_that_changes_nothing_is_caught(
    server: VLLMServer, engine_of: Made, policy: Policy
) -> None:
    """It moves the log-probabilities by far less than the bounds, and by more than rounding."""
    engine, versions = engine_of(server), [policy]
    for _ in range(3):
        versions.append(versions[-1].copy())
        with torch.no_grad():
            dict(versions[-1].named_tensors())["norm"].mul_(1.00002)
    for version, each in enumerate(versions[:3]):
        engine.update_weights(each, version)
    assert engine.probed is not None
    assert engine.probed < 1e-5
    engine.update_weights(versions[2], 3)  # a step that moves nothing
    server.lies = True
    with pytest.raises(SyncError, match="has the weights of an earlier version"):
        engine.update_weights(versions[3], 4)


def test_log_probabilities_that_are_no_numbers_are_refused(
    server: VLLMServer, engine_of: Made, policy: Policy
) -> None:
    engine = engine_of(server)
    engine.update_weights(policy, 0)
    server.nan = True
    with pytest.raises(EngineError, match="NaN"):
        sample(engine)
    with pytest.raises(SyncError, match=r"non-finite log-probabilities \(NaN\) after an update"):
        engine.update_weights(policy, 1)


# ---------------------------------------------------------------- servers that cannot be used


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"tokens": False}, "--enable-scale-out"),
        ({"development": False}, "VLLM_SERVER_DEV_MODE=1"),
        ({"plugin": False}, r"rollout\.weight_transfer=lora"),
    ],
)
def test_a_server_without_what_it_takes_is_refused(
    engine_of: Made, policy: Policy, flags: dict[str, Any], sentence: str
) -> None:
    with VLLMServer(policy, **flags) as server, pytest.raises(ConfigError, match=sentence):
        engine_of(server)


def test_a_server_of_raw_log_probabilities_is_refused(engine_of: Made, policy: Policy) -> None:
    with VLLMServer(policy, processed=False) as server:
        engine = engine_of(server)
        with pytest.raises(ConfigError, match="processed_logprobs"):
            engine.update_weights(policy, 0)


def test_two_runs_on_one_server_are_refused_until_the_first_gives_it_up(
    server: VLLMServer, engine_of: Made, policy: Policy
) -> None:
    first = engine_of(server, run="first")
    with pytest.raises(ConfigError, match="another run"):
        engine_of(server, run="second")
    first.update_weights(policy, 0)
    engine_of(server, run="first")  # continued after a kill
    first.close()
    engine_of(server, run="second").update_weights(policy, 0)


def test_an_answer_of_other_weights_is_not_used(
    server: VLLMServer, engine_of: Made, policy: Policy
) -> None:
    notes: list[str] = []
    engine = engine_of(server, patience=0.0, note=notes.append)
    engine.update_weights(policy, 0)
    server.weight_version = "other-12345678:4"
    with pytest.raises(EngineError, match="sampled from the weights 'other-12345678:4'"):
        sample(engine)
    assert any("excluded" in note for note in notes)


def test_an_update_that_a_killed_trainer_began_is_ended_first(
    server: VLLMServer, engine_of: Made, policy: Policy
) -> None:
    engine_of(server).update_weights(policy, 0)
    server.answer("POST", "/pause", {})
    server.answer("POST", "/start_weight_update", {})
    engine = engine_of(server)
    engine.update_weights(changed(policy), 1)
    assert sample(engine).policy_version == 1


# ---------------------------------------------------------------- failover


@pytest.fixture
def two(policy: Policy) -> Iterator[tuple[VLLMServer, VLLMServer]]:
    """Two servers."""
    with VLLMServer(policy) as one, VLLMServer(policy) as other:
        yield one, other


def asked(server: VLLMServer) -> int:
    """Requests for tokens so far, the probes left out."""
    return sum(
        path.endswith("generate") and not str(body.get("cache_salt", "probe")).startswith("probe")
        for path, body in server.requests
    )


def test_conversations_stick_to_a_server_and_are_spread(
    two: tuple[VLLMServer, VLLMServer], engine_of: Made, policy: Policy
) -> None:
    engine = engine_of(*two)
    engine.update_weights(policy, 0)

    async def play() -> None:
        async def turns(name: str) -> None:
            for seed in range(3):
                request = Request(PROMPT, Sampling(max_tokens=3), seed=seed, session=name)
                await engine.sample(request)

        await asyncio.gather(*(turns(f"s{i}") for i in range(4)))

    asyncio.run(play())
    assert [asked(server) for server in two] == [6, 6]


def test_a_dead_server_is_left_out_and_one_that_returns_gets_weights_and_probe_first(
    two: tuple[VLLMServer, VLLMServer],
    engine_of: Made,
    policy: Policy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tutelage.engine.vllm._CHECK_INTERVAL", 0.0)
    notes: list[str] = []
    engine, other = engine_of(*two, note=notes.append), changed(policy)
    events: list[tuple[str, JSON]] = []

    def tell(text: str, event: str, values: JSON) -> None:
        notes.append(text)
        events.append((event, values))

    engine.report_servers(tell)
    engine.update_weights(policy, 0)
    two[0].kill()
    results = []
    for name in ("a", "b", "c"):
        try:
            results.append(sample(engine, session=name))
        except EngineError:
            results.append(None)
    assert results.count(None) == 1
    engine.update_weights(other, 1)
    before = asked(two[0])
    two[0].restart()

    async def back() -> None:
        while not any("is back" in note for note in notes):
            await engine.sample(Request(PROMPT, Sampling(max_tokens=1), seed=0))
            await asyncio.sleep(0.01)

    asyncio.run(back())
    (_, lost), returned = events
    assert lost.pop("reason").startswith("no answer from the vLLM server")
    assert events[0] == ("server_lost", {"server": two[0].url, "version": 0})
    assert returned == ("server_back", {"server": two[0].url, "version": 1})
    assert two[0].weight_version == two[1].weight_version
    calls = [path for path, _ in two[0].requests]
    assert calls.index("/finish_weight_update") < len(calls)
    assert asked(two[0]) >= before
    two[1].kill()
    with pytest.raises(EngineError):
        sample(engine, session="b")
    assert off(other, sample(engine, session="d")) < 1e-4


def test_with_no_server_left_requests_wait_for_one(
    server: VLLMServer, engine_of: Made, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tutelage.engine.vllm._CHECK_INTERVAL", 0.0)
    notes: list[str] = []
    engine = engine_of(server, note=notes.append)
    engine.update_weights(policy, 0)
    server.kill()
    with pytest.raises(EngineError):
        sample(engine)

    async def waits() -> Sampled:
        work = asyncio.create_task(engine.sample(Request(PROMPT, Sampling(max_tokens=2), seed=0)))
        while not any("no vLLM server responds" in note for note in notes):
            await asyncio.sleep(0.01)
        server.restart()
        return await work

    assert asyncio.run(waits()).policy_version == 0


def test_waiting_ends_and_ends_the_run(server: VLLMServer, engine_of: Made, policy: Policy) -> None:
    engine = engine_of(server, patience=0.0)
    engine.update_weights(policy, 0)
    server.kill()
    with pytest.raises(EngineError):
        sample(engine)
    for _ in range(2):  # the others do not wait again
        with pytest.raises(ServersLostError, match=r"rollout\.server_patience"):
            sample(engine)
