"""`tutelage serve RUN_OR_MODEL`: an OpenAI-compatible server for a policy, another server's model,
or scripted replies.

The gateway serves; this file opens one door in it, says how to reach it, and waits for Ctrl-C.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tutelage.gateway import Gateway
    from tutelage.types import ChatClient

_CALLS_KEPT = 0
_SLOTS = 16


def serve(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN_OR_MODEL",
            help="Run, or a model folder or hub name; with --upstream a model's name there.",
        ),
    ] = None,
    upstream: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Pass requests on to this OpenAI-compatible base URL, and record them; its key "
            "is OPENAI_API_KEY.",
        ),
    ] = None,
    scripted: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Serve the replies of a JSONL file; needs no model."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 is any free one.")] = 8000,
    secret: Annotated[
        str | None,
        typer.Option(
            envvar="TUTELAGE_SECRET",
            show_envvar=False,
            help="The API key; else a random one. TUTELAGE_SECRET sets it too.",
        ),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(min=1, show_default=str(_SLOTS), help="Requests sampled at the same time."),
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(min=2, help="Tokens of prompt and reply; else the run's.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, max=2.0, show_default="1.0", help="Where a request names none."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, show_default="0", help="Seed of the samples.")
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Append every call to a JSONL file, with token ids."),
    ] = None,
) -> None:
    """Serve a policy, another server's model, or scripted replies, to any OpenAI client."""
    from tutelage.cli.console import waiting
    from tutelage.errors import ConfigError
    from tutelage.gateway import Gateway, Script, ScriptedClient
    from tutelage.gateway.serving import CallLog
    from tutelage.types import UNBOUNDED, Sampling

    if upstream is not None and target is None:
        raise ConfigError(f"--upstream {upstream!r} needs the name of a model there")
    if (target is None) == (scripted is None):
        raise ConfigError("name what to serve: a run or model, or --scripted FILE, not both")
    own = {"--slots": slots, "--max-length": max_length, "--seed": seed}
    if scripted is not None:
        _refuse(own | {"--temperature": temperature}, "--scripted samples nothing")
    if upstream is not None:
        _refuse(own, "with --upstream another server samples")
    gateway = Gateway(host=host, port=port, secret=secret)
    client: ChatClient
    if scripted is not None:
        client = ScriptedClient(Script.load(scripted), keep=_CALLS_KEPT)
    elif upstream is not None:
        client = _remote(upstream, str(target))
    else:
        with waiting("loading the model ..."):
            from tutelage.evaluate.targets import served

            client = served(
                str(target), slots=slots or _SLOTS, max_length=max_length, seed=seed or 0
            )
    log = None if record is None else CallLog(record)
    name = Path(str(scripted or target)).name
    with closing(log) if log is not None else nullcontext(), gateway:
        door = gateway.open(
            "serve",
            "main",
            client,
            model=name,
            api_key=secret,
            sampling=Sampling(
                temperature=1.0 if temperature is None else temperature, max_tokens=UNBOUNDED
            ),
            on_span=log,
        )
        _tell(gateway, name, None if secret is not None else door.api_key)
        _wait(gateway)


def _refuse(options: Mapping[str, float | None], why: str) -> None:
    """Options that would have no effect are a mistake."""
    from tutelage.errors import ConfigError

    given = [name for name, value in options.items() if value is not None]
    if given:
        raise ConfigError(f"{why}, so {' and '.join(given)} would have no effect; leave it out")


def _remote(url: str, model: str) -> ChatClient:
    from tutelage.engine.remote import RemoteChatClient
    from tutelage.errors import ConfigError

    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--upstream {url!r} is no URL; write it like http://127.0.0.1:8000/v1")
    key = os.environ.get("OPENAI_API_KEY")
    return RemoteChatClient(url, key, model, token_ids=True, keep=_CALLS_KEPT)


def _tell(gateway: Gateway, name: str, key: str | None) -> None:
    """How to reach it, on standard output, so that a script can read it."""
    from tutelage.cli.console import messages, output, say

    console = output()
    say(console, f"OPENAI_BASE_URL={gateway.url}/v1")
    # A secret that the user chose is not repeated on a terminal that others may see.
    say(console, f"OPENAI_API_KEY={key or '(the secret that you gave)'}")
    console.file.flush()
    say(messages(), (f"serving {name}; stop with Ctrl-C", "dim"))


def _wait(gateway: Gateway) -> None:
    """Until Ctrl-C, SIGTERM or SIGHUP, which is how serving ends."""
    while gateway.serving:
        time.sleep(0.5)
