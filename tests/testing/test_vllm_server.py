"""The server that stands in for vLLM: what its routes say, and the faults that tests ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from safetensors.torch import save_file
from tests.marks import long
from tests.testing.vllm_server import VLLMServer

from tutelage.policy.model import Policy
from tutelage.policy.row import Row
from tutelage.testing import tiny_policy

PROMPT = [5, 9, 200, 17, 33]


@pytest.fixture
def server() -> Iterator[VLLMServer]:
    """A server of the first policy."""
    with VLLMServer(tiny_policy()) as made:
        yield made


def ask(server: VLLMServer, path: str, **body: Any) -> httpx2.Response:
    """One request."""
    with httpx2.Client(base_url=server.url, timeout=30.0) as client:
        return client.post(path, json=body) if body else client.get(path)


def generate(server: VLLMServer, *, model: str | None = None, **params: Any) -> dict[str, Any]:
    """The answer to a request for tokens after `PROMPT`, and its only choice in `choice`."""
    body = {"temperature": 1.0, "seed": 3, "max_tokens": 8, "logprobs": 0, **params}
    data = ask(
        server, "/inference/v1/generate", token_ids=PROMPT, model=model, sampling_params=body
    )
    assert data.status_code == 200, data.text
    return {**data.json(), "choice": data.json()["choices"][0]}


def trainer(policy: Policy, ids: list[int], temperature: float = 1.0) -> list[float]:
    """What the trainer says of the tokens after `PROMPT`."""
    row = Row((*PROMPT, *ids), (0,) * len(PROMPT) + (1,) * len(ids))
    with torch.no_grad():
        return policy.score([row], temperature=temperature).logp_K.tolist()


def logprobs(choice: dict[str, Any]) -> list[float]:
    """What the server says of its tokens."""
    return [entry["logprob"] for entry in choice["logprobs"]["content"]]


def swap(server: VLLMServer, folder: Path, label: str) -> None:
    """One weight update, by the calls of vLLM."""
    for path, body in (
        ("/pause?mode=keep", {"x": 0}),
        ("/start_weight_update", {"x": 0}),
        ("/update_weights", {"update_info": {"path": str(folder)}}),
        ("/finish_weight_update", {"weight_version": label}),
        ("/resume", {"x": 0}),
    ):
        assert ask(server, path, **body).status_code == 200


def weights(policy: Policy, folder: Path) -> Path:
    """A folder with the tensors of a policy."""
    folder.mkdir()
    tensors = {name: tensor.clone() for name, tensor in policy.hf_tensors()}
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("temperature", [0.7, *long(0.0, 1.0)])
def test_its_log_probabilities_are_those_of_the_trainer_at_the_temperature(
    server: VLLMServer, temperature: float
) -> None:
    choice = generate(server, temperature=temperature)["choice"]
    ours = trainer(tiny_policy(), choice["token_ids"], temperature or 1.0)
    assert logprobs(choice) == pytest.approx(ours, abs=1e-4)
    assert choice["finish_reason"] == "length"
    if temperature == 0.0:
        assert {entry["rank"] for entry in choice["logprobs"]["content"]} == {1}


def test_a_server_with_raw_log_probabilities_reports_them_before_the_temperature() -> None:
    with VLLMServer(tiny_policy(), processed=False) as server:
        choice = generate(server, temperature=0.5)["choice"]
    assert logprobs(choice) == pytest.approx(trainer(tiny_policy(), choice["token_ids"]), abs=1e-4)


def test_the_tokens_of_a_prompt_are_scored(server: VLLMServer) -> None:
    scored = generate(server, prompt_logprobs=0)["prompt_logprobs"]
    assert scored[0] is None
    found = [
        entry[str(token)]["logprob"] for entry, token in zip(scored[1:], PROMPT[1:], strict=True)
    ]
    row = Row(tuple(PROMPT), (0, 1, 1, 1, 1))
    with torch.no_grad():
        assert found == pytest.approx(tiny_policy().score([row]).logp_K.tolist(), abs=1e-4)


def test_equal_seeds_draw_equal_tokens_alone_and_together(server: VLLMServer) -> None:
    alone = [generate(server, seed=seed)["choice"]["token_ids"] for seed in range(4)]

    async def together() -> list[Any]:
        async with httpx2.AsyncClient(base_url=server.url, timeout=30.0) as client:
            bodies = [
                {"token_ids": PROMPT, "sampling_params": {"seed": s, "max_tokens": 8}}
                for s in range(4)
            ]
            sent = (client.post("/inference/v1/generate", json=body) for body in bodies)
            return [r.json()["choices"][0]["token_ids"] for r in await asyncio.gather(*sent)]

    assert asyncio.run(together()) == alone


def test_an_update_changes_the_weights_and_names_them(server: VLLMServer, tmp_path: Path) -> None:
    other = tiny_policy(seed=7)
    swap(server, weights(other, tmp_path / "w"), "run:1")
    choice = generate(server)["choice"]
    assert logprobs(choice) == pytest.approx(trainer(other, choice["token_ids"]), abs=1e-4)
    assert choice["weight_versions"] == [{"version": "run:1", "start": 0, "end": 8}]
    assert ask(server, "/weight_info").json() == {"weight_version": "run:1"}


def test_what_runs_during_an_update_goes_on_under_the_new_weights(
    server: VLLMServer, tmp_path: Path
) -> None:
    other = tiny_policy(seed=7)
    folder = weights(other, tmp_path / "w")

    async def play() -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        ask(server, "/pause", x=0)
        work = loop.run_in_executor(None, lambda: generate(server, max_tokens=60, ignore_eos=True))
        ask(server, "/resume", x=0)
        while not server.drawn:
            await asyncio.sleep(0.001)
        await loop.run_in_executor(None, swap, server, folder, "run:1")
        return await work

    choice = asyncio.run(play())["choice"]
    first, second = choice["weight_versions"]
    assert (first["version"], second["version"]) == ("default", "run:1")
    assert (first["start"], first["end"], second["end"]) == (0, second["start"], 60)
    ours = trainer(other, choice["token_ids"])[second["start"] :]
    assert logprobs(choice)[second["start"] :] == pytest.approx(ours, abs=1e-4)


def test_an_adapter_is_a_model_of_its_own(server: VLLMServer, tmp_path: Path) -> None:
    from tutelage.policy.lora import LoraConfig, save_adapter, with_lora

    base = tiny_policy()
    base.save(tmp_path / "base")
    adapted = with_lora(base, LoraConfig(rank=4, alpha=8.0), seed=3)
    with torch.no_grad():
        for name, tensor in adapted.named():
            if name.endswith("lora_B"):
                tensor.add_(0.3)
    dict(adapted.hf_tensors())  # merges them
    save_adapter(adapted, tmp_path / "adapter", base=str(tmp_path / "base"))
    body = {"lora_name": "a", "lora_path": str(tmp_path / "adapter")}
    assert ask(server, "/v1/load_lora_adapter", **body).status_code == 200
    choice = generate(server, model="a")["choice"]
    assert logprobs(choice) == pytest.approx(trainer(adapted, choice["token_ids"]), abs=1e-4)
    plain = generate(server)["choice"]
    assert logprobs(plain) == pytest.approx(trainer(tiny_policy(), plain["token_ids"]), abs=1e-4)
    assert ask(server, "/v1/load_lora_adapter", **body).status_code == 400
    assert ask(server, "/v1/load_lora_adapter", load_inplace=True, **body).status_code == 200


def test_it_refuses_what_vllm_refuses(server: VLLMServer) -> None:
    def refused(path: str, **body: Any) -> tuple[int, str]:
        reply = ask(server, path, **body)
        return reply.status_code, reply.json()["error"]["message"]

    way = "/inference/v1/generate"
    assert refused(way, token_ids=[320], sampling_params={"seed": 0})[0] == 400
    assert refused(way, token_ids=[1] * 256, sampling_params={"seed": 0})[0] == 400
    assert refused(way, token_ids=[1], model="other", sampling_params={"seed": 0})[0] == 404
    assert refused("/update_weights", update_info={"path": "x"})[0] == 500
    assert ask(server, "/start_weight_update", x=0).status_code == 200
    status, message = refused("/start_weight_update", x=0)
    assert status == 500
    assert "already active" in message
    status, message = refused(
        "/init_weight_transfer_engine", init_info={"model": {"hidden_size": 7}}
    )
    assert status == 500
    assert "hidden_size=32" in message


def test_a_bias_of_a_token_beyond_the_embedding_is_refused_with_its_size(
    server: VLLMServer,
) -> None:
    body = {"token_ids": [1], "sampling_params": {"logit_bias": {"320": 0.0}}}
    reply = ask(server, "/inference/v1/generate", **body)
    assert reply.status_code == 400
    assert "Vocabulary size: 320" in reply.json()["error"]["message"]


def test_a_token_that_only_the_tokenizer_has_ends_it() -> None:
    with VLLMServer(tiny_policy(), added=1) as server:
        body = {"sampling_params": {"max_tokens": 1}}
        assert ask(server, "/inference/v1/generate", token_ids=[321], **body).status_code == 400
        for path in ("/inference/v1/generate", "/health"):
            with pytest.raises(httpx2.HTTPError):
                ask(server, path, token_ids=[320], **body)


def test_routes_are_missing_where_flags_are() -> None:
    with VLLMServer(tiny_policy(), development=False, tokens=False) as server:
        assert ask(server, "/weight_info").status_code == 404
        assert ask(server, "/inference/v1/generate", token_ids=[1]).status_code == 404
        assert "/pause" not in ask(server, "/openapi.json").json()["paths"]


def test_a_killed_server_answers_nothing_until_it_is_started_again(
    server: VLLMServer, tmp_path: Path
) -> None:
    swap(server, weights(tiny_policy(seed=7), tmp_path / "w"), "run:1")
    server.kill()
    with pytest.raises(httpx2.HTTPError):
        ask(server, "/health")
    server.restart()
    assert ask(server, "/weight_info").json() == {"weight_version": "default"}
    choice = generate(server)["choice"]
    assert logprobs(choice) == pytest.approx(trainer(tiny_policy(), choice["token_ids"]), abs=1e-4)


def test_a_fault_loses_the_chosen_request_or_its_answer(server: VLLMServer) -> None:
    server.fault = lambda path, number: {1: "drop", 2: "deaf"}.get(number)
    for _ in range(2):
        with pytest.raises(httpx2.HTTPError):
            ask(server, "/update_weight_version", new_version="x")
    assert ask(server, "/weight_info").json() == {"weight_version": "x"}


def test_it_can_lie_and_lose_its_numbers(server: VLLMServer, tmp_path: Path) -> None:
    server.lies = True
    swap(server, weights(tiny_policy(seed=7), tmp_path / "w"), "run:1")
    choice = generate(server)["choice"]
    assert choice["weight_versions"][0]["version"] == "run:1"
    assert logprobs(choice) == pytest.approx(trainer(tiny_policy(), choice["token_ids"]), abs=1e-4)
    server.nan = True
    entry = generate(server)["choice"]["logprobs"]["content"][0]
    assert (entry["logprob"], entry["rank"]) == (-9999.0, None)
