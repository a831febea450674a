"""How a policy in training is sampled is the run's decision, whatever a client's body says: its
losses are computed for that distribution."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from tests.testing.upstream import remote_over

from tutelage.gateway import Gateway
from tutelage.resources import LLM, NamedResources, Roles
from tutelage.rollouts.models import GatewayModelProvider, PolicySource
from tutelage.seeds import SeedTree
from tutelage.types import Sampling

HI = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": HI},
    "/responses": {"input": "hi"},
    "/messages": {"messages": HI, "max_tokens": 9},
}
OTHER = {"temperature": 0.1, "top_p": 0.2, "top_k": 3, "seed": 5}
FURTHER: list[tuple[str, Any]] = [
    ("min_p", 0.5),
    ("frequency_penalty", 1),
    ("logit_bias", {"1": 100}),
    ("repetition_penalty", 2),
    ("min_tokens", 5),
    ("chat_template_kwargs", {"enable_thinking": False}),
]
"""What would have it sampled otherwise, and would go on to another server."""
IGNORED: dict[str, Any] = {"user_tag": "low", "what_nobody_knows": 1}
"""What asks nothing of the sampler, and does not go on."""


class Elsewhere:
    """A policy that is sampled at an endpoint, by a client of its server."""

    def __init__(self, gateway: Gateway, codec: Any) -> None:
        self.seen: list[dict[str, Any]] = []
        transport = httpx2.MockTransport(self._answer)
        client = remote_over(transport, "http://up/v1", "k", "far", token_ids=True)
        resources = NamedResources(
            {"main": LLM("main", trainable=True, endpoint="http://up/v1", api_key="k")}
        )
        models = GatewayModelProvider(
            gateway=gateway,
            resources=resources,
            roles=Roles.find(resources, {}),
            sources={"main": PolicySource(None, codec, Sampling(temperature=0.7), "main")},
            remote=lambda name, seeds: client,
            max_tokens=16,
            tokenizers={},
        )
        self.attempt = models.open("r", "a", SeedTree(0), 0)

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.seen.append(json.loads(request.content))
        entries = [{"token": "a", "logprob": -0.5}]
        choice = {
            "message": {"role": "assistant", "content": "a"},
            "finish_reason": "stop",
            "token_ids": [5],
            "logprobs": {"content": entries},
        }
        return httpx2.Response(200, json={"choices": [choice], "prompt_token_ids": [1, 2]})

    async def ask(self, path: str, **more: Any) -> httpx2.Response:
        """A request of the agent."""
        llm = self.attempt.resources["main"]
        headers = {"authorization": f"Bearer {llm.api_key}"}
        body = {"model": "main", **BODIES[path], **more}
        async with httpx2.AsyncClient() as http:
            return await http.post(f"{llm.endpoint}{path}", json=body, headers=headers)


@pytest.mark.parametrize("path", BODIES)
async def test_a_body_does_not_override_the_runs_sampling(tiny: Any, path: str) -> None:
    with Gateway() as gateway:
        case = Elsewhere(gateway, tiny("qwen2").codec)
        answer = await case.ask(path, **OTHER, **IGNORED)
        assert answer.status_code == 200, answer.text
        if path == "/responses":  # which repeats how it was sampled
            assert (answer.json()["temperature"], answer.json()["top_p"]) == (0.7, 1.0)
        for name, value in FURTHER:
            answer = await case.ask(path, **{name: value})
            assert answer.status_code == 400
            assert name in answer.json()["error"]["message"]
        (call,) = await case.attempt.close()
    (sent,) = case.seen
    assert (sent["temperature"], sent["top_p"], sent.get("top_k", 0)) == (0.7, 1.0, 0)
    assert "seed" not in sent
    assert not IGNORED.keys() & sent.keys()
    assert (call.sampling.temperature, call.policy) == (0.7, "main")
