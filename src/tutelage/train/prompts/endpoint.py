"""Where the LLMs of a prompt search are served: from the environment, and asked over HTTP.

Three roles: `task` plays, `gradient` criticises, `edit` rewrites. Each has a base URL, a key and a
model; what a role does not name is the shared one. `OptimiserClient` is the search's `Ask`:
`engine/remote.py` sends, retries and pauses, this module bounds, counts and prices. Keys stay in
memory: nothing here is written down but URLs and model names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import httpx2

from tutelage.algorithms.prompt import Reply, Usage
from tutelage.engine.remote import RemoteChatClient
from tutelage.errors import ConfigError
from tutelage.seeds import SeedTree
from tutelage.train.prompts.prices import Price
from tutelage.types import Message, Sampling

ROLES = ("task", "gradient", "edit")
OPENAI = "https://api.openai.com/v1"
DEFAULT_MODEL = "gpt-4o-mini"
ENV_FILE = ".env"
REQUEST_TOKENS = 16_000
"""Tokens of a request to the optimiser at most; the evidence in it is cut to 12,000."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One role's model, and where it is served."""

    role: str
    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)

    def shown(self) -> dict[str, str]:
        """What may be written down: no key, and no secret inside the URL."""
        parts = urlsplit(self.base_url)
        place = parts.netloc.rpartition("@")[2]
        url = urlunsplit(parts._replace(netloc=place, query="", fragment=""))
        return {"base_url": url, "model": self.model}


Endpoints = Mapping[str, Endpoint]


def environment(path: Path | None = None) -> dict[str, str]:
    """The process's variables over those of the `.env` file in the working directory."""
    from dotenv import dotenv_values

    file = path or Path(ENV_FILE)
    found = dotenv_values(file) if file.is_file() else {}
    return {**{k: v for k, v in found.items() if v is not None}, **os.environ}


def read_endpoints(env: Mapping[str, str]) -> dict[str, Endpoint]:
    """The endpoint of every role; none where neither a URL nor a key is named.

    `OPENAI_BASE_URL`, `OPENAI_API_KEY` and `OPENAI_MODEL` are shared; `TUTELAGE_TASK_MODEL`,
    `TUTELAGE_TASK_BASE_URL`, `TUTELAGE_TASK_API_KEY` are the task role's own, and so for GRADIENT
    and EDIT. Raises `ConfigError` for what is no http URL.
    """
    found: dict[str, Endpoint] = {}
    for role in ROLES:
        own = f"TUTELAGE_{role.upper()}"
        url = _said(env, f"{own}_BASE_URL") or _said(env, "OPENAI_BASE_URL")
        key = _said(env, f"{own}_API_KEY") or _said(env, "OPENAI_API_KEY")
        if url is None and key is None:
            continue
        model = _said(env, f"{own}_MODEL") or _said(env, "OPENAI_MODEL") or DEFAULT_MODEL
        found[role] = Endpoint(role, _checked(url or OPENAI), model, key)
    return found


def no_endpoint(algorithm: str, without: str) -> ConfigError:
    """What to say where an algorithm needs an optimiser LLM and there is none; `without` is how
    the caller asks for a search that needs none."""
    return ConfigError(
        f"{algorithm} asks an optimiser LLM, and no endpoint is set. Two ways out: set "
        "OPENAI_BASE_URL or OPENAI_API_KEY in .env or the environment (any OpenAI-compatible "
        f"server: OpenAI, vLLM, Ollama), or search without an LLM: {without}"
    )


def token_bound(text: str) -> int:
    """At least as many tokens as `text` has: no tokenizer makes more than one of a byte."""
    return len(text.encode())


@dataclass(slots=True)
class Counted:
    """What an endpoint's calls came to; `unknown` had no usage and were charged at their bound."""

    calls: int = 0
    prompt: int = 0
    completion: int = 0
    unknown: int = 0

    def add(self, usage: tuple[int, int] | None, bound: tuple[int, int]) -> tuple[int, int]:
        """Count a call; returns the tokens it is charged."""
        self.calls += 1
        self.unknown += usage is None
        prompt, completion = bound if usage is None else usage
        self.prompt += prompt
        self.completion += completion
        return prompt, completion


class OptimiserClient:
    """Asks the LLM of a role; see `algorithms/prompt/contract.py`, `Ask`. Used on one event loop.

    A request carries a seed from the seed tree where the server takes one. Raises `EngineError`
    when the retries are used up.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        prices: Mapping[str, Price | None],
        seeds: SeedTree,
        *,
        temperature: float = 1.0,
        max_tokens: int = 2000,
        timeout: float = 120.0,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """`prices` by role; None is not known and counts no dollars."""
        self.counted = {role: Counted() for role in ("gradient", "edit")}
        self._sampling = Sampling(temperature=temperature, max_tokens=max_tokens)
        self._endpoints, self._prices, self._seeds = endpoints, prices, seeds
        self._clients = {
            role: RemoteChatClient(
                endpoint.base_url,
                endpoint.api_key,
                endpoint.model,
                seeds=seeds.child(role),
                name=role,
                timeout=timeout,
                keep=64,
                transport=transport,
            )
            for role, endpoint in endpoints.items()
            if role in self.counted
        }

    async def __call__(self, role: str, messages: Sequence[Message], step_key: str) -> Reply:
        """One question; `step_key` addresses its seed."""
        client = self._clients[role]
        seed = self._seeds.child(step_key).value(31)
        call = await client.chat(messages, sampling=self._sampling, agent=role, seed=seed)
        text = call.reply.content or ""
        bound = (sum(token_bound(m.content or "") for m in messages), token_bound(text))
        prompt, completion = self.counted[role].add(client.usage(call), bound)
        price = self._prices.get(role)
        dollars = 0.0 if price is None else price.of(prompt, completion)
        return Reply(text, Usage(1, prompt + completion, dollars))

    async def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            await client.close()


def worst_call(prices: Sequence[Price | None], reply_tokens: int) -> Usage:
    """The most that one request to an optimiser can cost, at the dearest of these prices."""
    dearest = max((p.of(REQUEST_TOKENS, reply_tokens) for p in prices if p), default=0.0)
    return Usage(1, REQUEST_TOKENS + reply_tokens, dearest)


def _said(env: Mapping[str, str], name: str) -> str | None:
    return env.get(name, "").strip() or None


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(
            f"{url!r} is no base URL of an OpenAI-compatible server: write it up to and with its "
            "/v1, as http://localhost:11434/v1"
        )
    if "@" in parts.netloc or parts.query:
        raise ConfigError(
            f"the base URL at {parts.hostname!r} holds a secret or a query, which would stand in "
            "error messages and records; give the key as OPENAI_API_KEY"
        )
    return url.rstrip("/")
