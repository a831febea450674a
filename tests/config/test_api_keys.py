"""Keys of servers are cleaned where they come in, and what no header carries is refused untold."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tutelage.config.api_keys import read_api_key
from tutelage.engine.endpoint import Endpoint, read_endpoints
from tutelage.engine.remote import RemoteChatClient
from tutelage.errors import ConfigError
from tutelage.orchestration.execution.pools.openai import OpenAIPool
from tutelage.orchestration.execution.verifiers import make_verifier
from tutelage.orchestration.execution.workers import Worker
from tutelage.rewards import resolve_reward
from tutelage.tools import ToolOptions, resolve_tools
from tutelage.tracing.export import headers

UNSENT = ("sk-very\r\nx: secret", "sk-very\x00secret", "sk-verysecrét", "sk-very\u200bsecret")


def test_a_key_has_no_white_space_around_it_and_an_empty_one_is_none() -> None:
    assert read_api_key({"A": " sk-1\r\n", "B": "sk-2"}, "A", "B") == "sk-1"
    assert read_api_key({"A": " \n", "B": "sk-2"}, "A", "B") == "sk-2"
    assert read_api_key({"A": ""}, "A", "B") is None
    assert read_endpoints({"OPENAI_API_KEY": "k\r\n"})["task"].api_key == "k"
    assert Endpoint("task", "http://h/v1", "m", "").api_key is None


def judge(key: str) -> object:
    environ = {"TUTELAGE_JUDGE_API_KEY": key}
    options = ToolOptions(judge_base_url="http://h/v1", judge_model="m", environ=environ)
    return resolve_reward("llm_judge", options)


def paid_judge(key: str) -> object:
    where = {"kind": "judge", "model": "m", "base_url": "http://h/v1", "key_env": "JUDGE_KEY"}
    return make_verifier({**where, "price_in": 1, "price_out": 1})


def search(key: str) -> object:
    return resolve_tools(["google_search"], ToolOptions(environ={"SERPER_API_KEY": key}))


PLACES: dict[str, Callable[[str], object]] = {
    "TUTELAGE_TASK_API_KEY": lambda key: read_endpoints({"TUTELAGE_TASK_API_KEY": key}),
    "api_key": lambda key: RemoteChatClient("http://h/v1", key),
    "'helper'": lambda key: Endpoint("helper", "http://h/v1", "m", key),
    "OPENAI_API_KEY": lambda key: OpenAIPool([Worker("gpt")], environ={"OPENAI_API_KEY": key}),
    "TUTELAGE_JUDGE_API_KEY": judge,
    "JUDGE_KEY": paid_judge,
    "SERPER_API_KEY": search,
    "OTEL_EXPORTER_OTLP_HEADERS": lambda key: headers({"OTEL_EXPORTER_OTLP_HEADERS": f"a={key}"}),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("key", UNSENT)
def test_a_key_that_no_header_carries_is_refused_at_once_and_not_told(
    monkeypatch: pytest.MonkeyPatch, place: str, key: str
) -> None:
    monkeypatch.setenv("JUDGE_KEY", key.replace("\x00", "\x01"))
    with pytest.raises(
        ConfigError, match=r"invalid API key|invalid header|cannot be sent"
    ) as caught:
        PLACES[place](key)
    assert place in str(caught.value)
    assert "sk-very" not in str(caught.value)
    assert "secr" not in str(caught.value)
