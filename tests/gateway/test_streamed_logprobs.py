"""A stream with log-probabilities has the text and the entries of a reply that is not streamed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest

from tutelage.engine.chat import ChatSession
from tutelage.engine.driver import EngineDriver
from tutelage.engine.script import ScriptedReply
from tutelage.gateway import Gateway, ScriptedClient
from tutelage.seeds import SeedTree
from tutelage.testing import tiny_engine

from .conftest import ASK, CALCULATOR, TOOL_TURN

SCRIPTS = {
    "text": "It is 2, and more than that.",
    "characters of several tokens": "Grün — 緑 🌿 und mehr",
    "white space": "so, \n then \n\n",
    "empty": "",
    "a call after text": TOOL_TURN,
    "a call": ScriptedReply(None, TOOL_TURN.tool_calls),
    "a stop string": "one two STOP three",
}


@pytest.fixture
def api(live: Callable[..., Gateway]) -> Callable[[Any], openai.OpenAI]:
    gateways: list[Gateway] = []

    def make(client: Any) -> openai.OpenAI:
        gateways.append(live())
        session = gateways[-1].open("r", "a", client)
        return openai.OpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0)

    return make


@pytest.fixture
def policy(tiny: Any, api: Any) -> openai.OpenAI:
    model = tiny("qwen2")
    driver = EngineDriver(tiny_engine(model, slots=4), schedule="free")
    return api(ChatSession(driver, model.codec, seeds=SeedTree(1), name="att"))


def chat_pieces(chunks: Any, index: int = 0) -> list[tuple[str, list[Any]]]:
    """Text and entries of each chunk of a choice."""
    found: list[tuple[str, list[Any]]] = []
    for chunk in chunks:
        for choice in chunk.choices:
            if choice.index == index:
                entries = choice.logprobs.content if choice.logprobs else None
                assert choice.delta.content in (None, "") or entries is not None
                found.append((choice.delta.content or "", entries or []))
    return found


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("ids", [False, True])
def test_chat_completions(api: Any, script: str, ids: bool) -> None:
    client = api(ScriptedClient([SCRIPTS[script]]))
    asked: dict[str, Any] = {
        "model": "m", "messages": ASK, "logprobs": True, "stop": ["STOP"], "tools": [CALCULATOR],
        "extra_body": {"return_token_ids": ids},
    }  # fmt: skip
    whole = client.chat.completions.create(**asked).choices[0]
    pieces = chat_pieces(client.chat.completions.create(**asked, stream=True))
    assert [e for _, entries in pieces for e in entries] == whole.logprobs.content
    text = "".join(text for text, _ in pieces)
    assert text == (whole.message.content or "")


def test_a_policy(policy: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "m", "messages": ASK, "logprobs": True, "top_logprobs": 3, "seed": 7, "n": 2,
        "max_tokens": 40,
    }  # fmt: skip
    whole = policy.chat.completions.create(**asked)
    chunks = list(policy.chat.completions.create(**asked, stream=True))
    for i, choice in enumerate(whole.choices):
        assert choice.logprobs is not None
        pieces = chat_pieces(chunks, i)
        assert [e for _, entries in pieces for e in entries] == choice.logprobs.content
        assert all(len(e.top_logprobs) == 3 for _, entries in pieces for e in entries)
        assert len({e.logprob for _, entries in pieces for e in entries}) > 4
