"""The server that stands in for vLLM: what its routes say, and the faults that tests ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import torch
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
