"""Clients of a server that a test plays below the openai package."""

from __future__ import annotations

from typing import Any

import httpx2
import openai

from tutelage.engine.remote import RemoteChatClient


def api_over(
    transport: httpx2.AsyncBaseTransport, base_url: str, key: str | None = None, attempts: int = 5
) -> openai.AsyncOpenAI:
    """A connection whose requests go to `transport`."""
    return openai.AsyncOpenAI(
        api_key=key or "none",
        base_url=base_url,
        max_retries=attempts - 1,
        http_client=httpx2.AsyncClient(transport=transport),
    )


def remote_over(
    transport: httpx2.AsyncBaseTransport,
    base_url: str = "http://up/v1",
    key: str | None = None,
    model: str = "default",
    *,
    attempts: int = 5,
    **given: Any,
) -> RemoteChatClient:
    """A client whose requests go to `transport`."""
    api = api_over(transport, base_url, key, attempts)
    return RemoteChatClient(base_url, key, model, api=api, **given)
