"""Where the gateway of a run listens, which address agents are given, and what is refused."""

from __future__ import annotations

import re

import pytest

from tutelage.errors import ConfigError
from tutelage.gateway import Gateway, ScriptedClient
from tutelage.gateway.address import BIND, URL, read_address


@pytest.mark.parametrize(
    ("bind", "url", "expected"),
    [
        (None, None, ("127.0.0.1", 0, None)),
        ("10.0.0.5:8200", None, ("10.0.0.5", 8200, None)),
        ("[::1]:8200", None, ("::1", 8200, None)),
        ("0.0.0.0:8200", "http://node1:8200/", ("0.0.0.0", 8200, "http://node1:8200")),
    ],
)
def test_an_address_is_read(
    bind: str | None, url: str | None, expected: tuple[str, int, str | None]
) -> None:
    env = {k: v for k, v in ((BIND, bind), (URL, url)) if v is not None}
    assert read_address(env) == expected


@pytest.mark.parametrize(
    ("bind", "url", "words"),
    [
        ("0.0.0.0:8200", None, "set TUTELAGE_GATEWAY_URL=http://NAME:8200"),
        (None, "http://node1:8200", "set TUTELAGE_GATEWAY=HOST:PORT"),
        ("0.0.0.0", "http://node1:8200", "needs a fixed port"),
        ("10.0.0.5:99999", None, "use HOST or HOST:PORT"),
        ("127.0.0.1:8200", "ftp://node1", "is not a valid HTTP URL"),
    ],
)
def test_what_agents_could_not_reach_is_refused(
    bind: str | None, url: str | None, words: str
) -> None:
    env = {k: v for k, v in ((BIND, bind), (URL, url)) if v is not None}
    with pytest.raises(ConfigError, match=re.escape(words)):
        read_address(env)


def test_a_run_gives_keys_of_a_random_secret_wherever_it_listens() -> None:
    address = ("0.0.0.0", 8200, "http://node1:8200")
    doors = [Gateway.for_address(*address).open("r", "a", ScriptedClient(["x"])) for _ in range(2)]
    assert {door.base_url for door in doors} == {"http://node1:8200/rollout/r/attempt/a/v1"}
    assert doors[0].api_key != doors[1].api_key
    env = doors[0].env()
    assert env["TUTELAGE_REWARD_URL"] == doors[0].base_url + "/rewards"
    assert env["AGL_EVENT_URL"] == "http://node1:8200/api/rollouts/r/attempt/a/events"


def test_it_listens_where_it_is_told() -> None:
    with Gateway.for_address("127.0.0.2") as gateway:
        assert gateway.url == f"http://127.0.0.2:{gateway.port}"
