"""Endpoints of served LLMs, configured by environment variables.

There are three roles: `task` plays, `gradient` criticises, `edit` rewrites. Each has a base URL, a
key and a model, and falls back on the shared ones. `remote.py` sends the requests. Keys stay in
memory: only URLs and model names are ever written to files.
"""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tutelage.bounded import DIRECT
from tutelage.config.api_keys import read_api_key, validate_api_key
from tutelage.errors import ConfigError

ROLES = ("task", "gradient", "edit")
OPENAI = "https://api.openai.com/v1"
DEFAULT_MODEL = "gpt-4o-mini"
ENV_FILE = ".env"
NO_KEY = "none"
"""Placeholder for a key: without one the openai package would read the environment's."""
_PATHS = ("/chat/completions", "/completions", "/responses", "/messages")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Model and API server of a role or an agent."""

    role: str
    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    token_ids: bool = False
    """Request token ids and log-probabilities from it, to train on them."""

    def __post_init__(self) -> None:
        """Validate the API key. Raises `ConfigError` if it is not valid in an HTTP header."""
        key = validate_api_key(self.api_key, f"the endpoint of {self.role!r}")
        object.__setattr__(self, "api_key", key)

    @property
    def is_local(self) -> bool:
        """Return True if the server runs on this machine, so that its tokens are free."""
        return is_loopback(urlsplit(self.base_url).hostname or "")

    def to_public_dict(self) -> dict[str, str]:
        """Return the URL and the model as a dictionary without secrets."""
        parts = urlsplit(self.base_url)
        netloc = parts.netloc.rpartition("@")[2]
        url = urlunsplit(parts._replace(netloc=netloc, query="", fragment=""))
        return {"base_url": url, "model": self.model}


Endpoints = Mapping[str, Endpoint]


def is_loopback(host: str) -> bool:
    """Return True if the host is a loopback address or `localhost`."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def read_environment() -> dict[str, str]:
    """Return the process's environment variables, with defaults from a local `.env` file."""
    from dotenv import dotenv_values

    file = Path(ENV_FILE)
    defaults = dotenv_values(file) if file.is_file() else {}
    return {**{k: v for k, v in defaults.items() if v is not None}, **os.environ}


def read_endpoints(env: Mapping[str, str]) -> dict[str, Endpoint]:
    """Read the endpoints of all roles that have a URL or an API key in the environment.

    `OPENAI_BASE_URL`, `OPENAI_API_KEY` and `OPENAI_MODEL` are shared; `TUTELAGE_TASK_MODEL`,
    `TUTELAGE_TASK_BASE_URL`, `TUTELAGE_TASK_API_KEY` apply to the task role, and likewise for
    GRADIENT and EDIT. Raises `ConfigError` for an invalid HTTP URL, and for a key that is not valid
    in an HTTP header.
    """
    endpoints: dict[str, Endpoint] = {}
    for role in ROLES:
        own = f"TUTELAGE_{role.upper()}"
        url = _lookup(env, f"{own}_BASE_URL") or _lookup(env, "OPENAI_BASE_URL")
        key = read_api_key(env, f"{own}_API_KEY", "OPENAI_API_KEY")
        if url is None and key is None:
            continue
        model = _lookup(env, f"{own}_MODEL") or _lookup(env, "OPENAI_MODEL") or DEFAULT_MODEL
        endpoints[role] = Endpoint(role, check_url(url or OPENAI), model, key)
    return endpoints


def max_token_count(text: str) -> int:
    """Return an upper bound on the number of tokens in a text: its size in bytes."""
    return len(text.encode())


def list_models(server: Endpoint, timeout: float = 120.0) -> tuple[str, ...]:
    """Return the models that a server lists, waiting at most `timeout` seconds for its response.

    The result is empty if the server lists no models. Raises `ConfigError` if the server does not
    respond, if it rejects the key, or if its API is only at /v1 below the URL.
    """
    import openai

    with openai.OpenAI(
        api_key=server.api_key or NO_KEY,
        base_url=server.base_url,
        timeout=openai.Timeout(timeout, connect=min(10.0, timeout)),
        max_retries=0,
        http_client=openai.DefaultHttpxClient(mounts=DIRECT),
    ) as api:
        for path in ("/models", "/v1/models"):
            try:
                reply: Any = api.get(path, cast_to=object, options=auth_options(server.api_key))
                # The package returns a string if the content type is not JSON.
                reply = json.loads(reply) if isinstance(reply, str) else reply
                models = tuple(str(model["id"]) for model in reply["data"])
            except (KeyError, TypeError, ValueError):
                return ()
            except openai.APIStatusError as error:
                if error.status_code in (401, 403):
                    raise ConfigError(
                        f"the server at {server.base_url!r} rejected the API key (status "
                        f"{error.status_code}): {error.response.text[:200]}. Set OPENAI_API_KEY to "
                        "a valid key"
                    ) from error
                if error.status_code != 404 or server.base_url.endswith("/v1"):
                    return ()
            except openai.APIConnectionError as error:
                cause = type(error.__cause__ or error).__name__
                raise ConfigError(
                    f"no answer from {server.base_url!r} within {timeout:g} seconds ({cause}: "
                    f"{error.__cause__ or error}); start the server, check whether it hangs, or "
                    "pass the URL of a running one, including /v1"
                ) from error
            else:
                if path == "/models":
                    return models
                raise ConfigError(
                    f"{server.base_url!r} is not the base URL of the server's API; add /v1: "
                    f"{server.base_url}/v1"
                )
    return ()


def auth_options(api_key: str | None) -> Any:
    """Return the request options that set the API key for the openai package.

    Without a key no header is sent, not even one with the environment's key.
    """
    import openai

    return {} if api_key else {"headers": {"Authorization": openai.Omit()}}


def _lookup(env: Mapping[str, str], name: str) -> str | None:
    return env.get(name, "").strip() or None


def check_url(url: str) -> str:
    """Validate a base URL and strip its last slash. Raises `ConfigError` if it is invalid."""
    try:
        parts = urlsplit(url)
        valid = parts.hostname and parts.port != 0  # raises unless the port is a number
    except ValueError:
        parts, valid = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not valid or not url.isprintable() or " " in url:
        raise ConfigError(
            f"{url!r} is not a valid base URL of an OpenAI-compatible server: use a URL that "
            "includes /v1, such as http://localhost:11434/v1"
        )
    if "@" in parts.netloc or parts.query or "#" in url:
        part = "fragment" if "#" in url else "secret or a query"
        raise ConfigError(
            f"the base URL at {parts.hostname!r} contains a {part}, which would appear in errors "
            "and records; remove it, and set a key as OPENAI_API_KEY"
        )
    for path in _PATHS:
        if parts.path.rstrip("/").endswith(path):
            base = url.rstrip("/").removesuffix(path)
            raise ConfigError(f"{url!r} ends in an API path, not /v1: use the base URL {base!r}")
    return url.rstrip("/")
