"""Endpoints: where they come from, what they are charged, how they fail; prices; meters."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.prompts.prompt_parts import KEY
from tests.testing.upstream import api_over

from tutelage.engine.endpoint import Endpoint, read_endpoints, read_environment
from tutelage.engine.meter import CallLimits, MeteredClient, UsageMeter
from tutelage.engine.prices import Price, find_price, load_prices
from tutelage.errors import ConfigError, ContextOverflowError
from tutelage.prompts.optimiser_client import OptimiserClient
from tutelage.seeds import SeedTree
from tutelage.types import Call, Message, Sampled, Sampling, StopReason

SEEDS = SeedTree(0)
ASK = [Message("user", "hello")]
Answer = Callable[[httpx2.Request], httpx2.Response]


def client(answer: Answer, price: Price | None = None) -> OptimiserClient:
    endpoint = Endpoint("edit", "http://there/v1", "m", KEY)
    asked = OptimiserClient({"edit": endpoint}, {"edit": price}, SEEDS, Sampling())
    api = api_over(httpx2.MockTransport(answer), endpoint.base_url, KEY)
    asked._clients["edit"]._api = api  # pyright: ignore[reportPrivateUsage]
    return asked


def reply(text: str = "hi", usage: dict[str, int] | None = None) -> httpx2.Response:
    body: dict[str, Any] = {"choices": [{"message": {"role": "assistant", "content": text}}]}
    return httpx2.Response(200, json=body | ({"usage": usage} if usage else {}))


# ------------------------------------------------------------ where they come from


def test_roles_share_what_they_do_not_name() -> None:
    env = {
        "OPENAI_BASE_URL": "http://shared/v1/",
        "OPENAI_API_KEY": "a",
        "TUTELAGE_TASK_MODEL": "small",
        "TUTELAGE_EDIT_BASE_URL": "https://big/v1",
        "TUTELAGE_EDIT_API_KEY": "b",
        "TUTELAGE_EDIT_MODEL": "large",
    }
    found = read_endpoints(env)
    assert found["task"] == Endpoint("task", "http://shared/v1", "small", "a")
    assert found["gradient"] == Endpoint("gradient", "http://shared/v1", "gpt-4o-mini", "a")
    assert found["edit"] == Endpoint("edit", "https://big/v1", "large", "b")


def test_a_key_alone_means_openai_and_nothing_means_nobody() -> None:
    assert read_endpoints({"OPENAI_API_KEY": "k"})["task"].base_url == "https://api.openai.com/v1"
    assert read_endpoints({"OPENAI_API_KEY": " ", "OPENAI_MODEL": "m"}) == {}


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="base URL"):
        read_endpoints({"OPENAI_BASE_URL": url})


@pytest.mark.parametrize("url", [f"https://me:{KEY}@host/v1", f"https://host/v1?key={KEY}"])
def test_a_url_with_a_secret_is_refused_without_telling_it(url: str) -> None:
    with pytest.raises(ConfigError, match="OPENAI_API_KEY") as caught:
        read_endpoints({"OPENAI_BASE_URL": url})
    assert KEY not in str(caught.value)


def test_the_environment_wins_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(".env").write_text('OPENAI_MODEL=file\nOPENAI_API_KEY="quoted"  # a key\n')
    monkeypatch.setenv("OPENAI_MODEL", "environment")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    found = read_environment()
    assert found["OPENAI_MODEL"] == "environment"
    assert found["OPENAI_API_KEY"] == "quoted"


def test_neither_keys_nor_secrets_in_urls_are_shown() -> None:
    endpoint = Endpoint("task", f"https://me:{KEY}@host:1/v1?token={KEY}", "m", KEY)
    assert KEY not in repr(endpoint).replace(endpoint.base_url, "")
    assert endpoint.to_public_dict() == {"base_url": "https://host:1/v1", "model": "m"}


# ------------------------------------------------------------ asking


async def test_a_reply_is_counted_by_usage_and_priced() -> None:
    asked = client(
        lambda _: reply("x", {"prompt_tokens": 100, "completion_tokens": 10}), Price(1, 2)
    )
    got = await asked("edit", ASK, "step/1")
    assert (got.text, got.usage.tokens) == ("x", 110)
    assert got.usage.dollars == pytest.approx(120e-6)
    await asked.aclose()


async def test_a_server_without_usage_is_charged_at_the_bound_and_counted() -> None:
    asked = client(lambda _: reply("éé"))
    got = await asked("edit", ASK, "step/1")
    assert got.usage.tokens == len(b"hello") + len("éé".encode())
    assert asked.unknown == 1
    await asked.aclose()


async def test_requests_carry_a_seed_of_their_own_that_repeats() -> None:
    seen: list[int] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(json.loads(request.content)["seed"])
        return reply()

    asked = client(answer)
    for key in ("a", "b", "a"):
        await asked("edit", ASK, key)
    assert seen[0] == seen[2] != seen[1]
    await asked.aclose()


# ------------------------------------------------------------ prices


def test_the_users_prices_win_and_dated_names_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    known = load_prices(env={})
    assert find_price(known, "gpt-4o-mini-2024-07-18") == find_price(known, "gpt-4o-mini")
    assert find_price(load_prices(env={}), "nobody") is None
    Path("prices.toml").write_text('[models]\n"gpt-4o-mini" = { input = 9, output = 9.5 }\n')
    assert find_price(load_prices(env={}), "gpt-4o-mini") == Price(9, 9.5)
    Path("other.toml").write_text('[models]\n"mine" = { input = 0, output = 0 }\n')
    assert find_price(load_prices(env={"TUTELAGE_PRICES": "other.toml"}), "mine") == Price(0, 0)


@pytest.mark.parametrize(
    "text", ["[models", '[models]\n"m" = 3\n', '[models]\n"m" = { input = -1, output = 1 }\n']
)
def test_a_price_table_that_cannot_be_read_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"prices\.toml"):
        load_prices(path)
    with pytest.raises(ConfigError, match="price table not found"):
        load_prices(tmp_path / "none.toml")


# ------------------------------------------------------------ meters


class Fixed:
    """Answers at once; counts what it is told to."""

    def __init__(self, usage: tuple[int, int] | None) -> None:
        self.counted = usage
        self.sampled: list[Sampling] = []

    async def chat(self, messages: Any, *, sampling: Sampling, **_: Any) -> Call:
        self.sampled.append(sampling)
        said = Sampled((), (), (), StopReason.STOP, 0)
        return Call("c", "main", 0, tuple(messages), (), said, Message("assistant", "x"), sampling)

    def usage(self, call: Call) -> tuple[int, int] | None:
        return self.counted


async def test_a_meter_bounds_calls_and_requests_and_never_passes_its_worst() -> None:
    caps, price = CallLimits(calls=2, prompt_tokens=100, reply_tokens=10), Price(1, 1)
    meter = UsageMeter(caps)
    asked = MeteredClient(Fixed(None), meter, price)
    with pytest.raises(ContextOverflowError, match="max_prompt_tokens"):
        await asked.chat([Message("user", "x" * 1000)], sampling=Sampling())
    for _ in range(2):
        await asked.chat([Message("user", "x" * 200)], sampling=Sampling())
    with pytest.raises(ContextOverflowError, match="max_turns"):
        await asked.chat(ASK, sampling=Sampling())
    used, worst = meter.usage(), caps.worst_case(price)
    assert used.calls == worst.calls == 2
    assert used.tokens <= worst.tokens
    assert used.dollars <= worst.dollars


async def test_replies_are_cut_to_what_was_promised() -> None:
    inner = Fixed((1, 1))
    asked = MeteredClient(inner, UsageMeter(CallLimits(1, 100, 10)), None)
    await asked.chat(ASK, sampling=Sampling(max_tokens=500))
    assert inner.sampled[0].max_tokens == 10
