"""`tutelage serve RUN_OR_MODEL`: serve a policy, another server's model, or scripted replies to
OpenAI and Anthropic clients.

This module opens one session in the gateway, prints how to reach it, and waits for Ctrl-C.
"""

from __future__ import annotations

import os
import secrets
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import Field

from tutelage.config.fields import Count, CountOrZero, Names, Section

if TYPE_CHECKING:
    from tutelage.gateway import Gateway
    from tutelage.gateway.call_log import CallLog
    from tutelage.gateway.record import Recorder
    from tutelage.types import ChatClient

_CALLS_KEPT = 0
_SLOTS = 16


class _ServeOptions(Section):
    """Options of `serve`."""

    upstream: str | None = None
    """Forward requests to this OpenAI-compatible base URL and record them; its key is
    OPENAI_API_KEY."""
    scripted: Path | None = None
    """Serve the replies of a JSONL file; needs no model."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Port; 0 chooses a free one."""
    secret: str | None = None
    """API key of this server; default: TUTELAGE_SECRET, else a random key."""
    api_key: str | None = None
    """Another name of --secret."""
    allow_origin: Names = ()
    """Origins of web pages whose browsers may send requests, such as http://localhost:3000; "*":
    any."""
    slots: Count | None = None
    """Maximum concurrent requests; default: 16."""
    max_length: Annotated[int, Field(ge=2)] | None = None
    """Context length in tokens; default: the run's."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Temperature of requests that set none; default: 1, or the upstream server's."""
    max_tokens: Count | None = None
    """Maximum tokens per reply of requests that set no limit; default: 512 for a model on a CPU."""
    seed: CountOrZero | None = None
    """Random seed of sampling; default: 0."""
    record: Path | None = None
    """Append every call to a JSONL file, with token ids, and the spans that agents send."""


def serve(
    options: _ServeOptions,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN_OR_MODEL",
            help="Run, model folder or OWNER/NAME on huggingface.co; with --upstream a model's "
            "name there.",
        ),
    ] = None,
) -> None:
    """Serve a model to any client of OpenAI or Anthropic."""
    from tutelage.cli.console import echo, echo_pairs, messages, output
    from tutelage.gateway import Gateway
    from tutelage.gateway.call_log import CallLog
    from tutelage.tracing.ingest import ingest_traces
    from tutelage.types import UNBOUNDED, Sampling

    secret = _read_secret(options)
    gateway = Gateway(
        host=options.host,
        port=options.port,
        secret=secret,
        allow_origins=options.allow_origin,
    )
    client = _make_client(target, options, gateway)
    log = None if options.record is None else CallLog(options.record)
    # Another server's model is announced by the name that it has there.
    name = str(target) if options.upstream else Path(str(options.scripted or target)).name
    temperature = 1.0 if options.temperature is None else options.temperature
    cap = options.max_tokens or getattr(client, "reply_tokens", UNBOUNDED)
    tokens = f"{f'at most {cap:,}' if cap < UNBOUNDED else 'no limit'} where a request names none"
    if length := getattr(client, "max_length", None):
        tokens += f", context {length:,}"
    gateway.app.on_traces = partial(
        ingest_traces, (lambda run, spans: None) if log is None else log.log_spans, "serve"
    )
    with ExitStack() as stack:
        if log is not None:
            stack.callback(_close_log, log, gateway.recorder)
        stack.enter_context(gateway)
        attempt_session = gateway.open(
            "serve",
            f"main-{secrets.token_hex(4)}",  # ids of replies have it: each start has its own
            client,
            model=name,
            api_key=secret,
            sampling=Sampling(temperature=temperature, max_tokens=cap),
            on_call=log,
        )
        # A secret that the user chose is not repeated on a terminal that others may see.
        typed = options.secret or options.api_key
        chosen = "'the secret that you gave'" if typed else '"$TUTELAGE_SECRET"'
        key = attempt_session.api_key if secret is None else chosen
        console = output()
        # Lines for a shell, which a script can read too.
        for api, url in (("OPENAI", f"{gateway.url}/v1"), ("ANTHROPIC", gateway.url)):
            echo(console, f"export {api}_BASE_URL={url}")
            echo(console, f"export {api}_API_KEY={key}")
        console.file.flush()
        echo_pairs(messages(), [("tokens", tokens)])
        echo(messages(), (f"serving {name}; stop with Ctrl-C", "dim"))
        try:
            while gateway.is_serving:  # Ctrl-C, SIGTERM and SIGHUP interrupt it
                time.sleep(0.5)
        finally:
            attempt_session.stop()


def _make_client(target: str | None, options: _ServeOptions, gateway: Gateway) -> ChatClient:
    """Return the client that answers requests. Raises `ConfigError` for contradictory options."""
    from tutelage.cli.console import fetch, show_status
    from tutelage.errors import ConfigError
    from tutelage.seeds import SeedTree

    upstream, scripted = options.upstream, options.scripted
    if target is not None and not target.strip():
        raise ConfigError(f"invalid name of a run or model: {target!r}")
    if upstream is not None and target is None:
        raise ConfigError(f"--upstream {upstream!r} needs the name of a model on that server")
    if (target is None) == (scripted is None):
        raise ConfigError("pass either a run or model to serve, or --scripted FILE")
    names = ("slots", "max_length", "max_tokens", "seed", *["temperature"] * (upstream is None))
    unused = [f"--{n.replace('_', '-')}" for n in names if getattr(options, n) is not None]
    if unused and (scripted or upstream):
        why = "--upstream samples on another server" if upstream else "--scripted does not sample"
        raise ConfigError(f"{why}, so {' and '.join(unused)} would have no effect; remove it")
    seeds = SeedTree(secrets.randbits(63))  # for ids of tool calls, which no other start has
    if scripted is not None:
        from tutelage.gateway import Script, ScriptedClient

        return ScriptedClient(Script.load(scripted), seeds=seeds, keep=_CALLS_KEPT)
    if upstream is not None:
        from tutelage.config.api_keys import read_api_key
        from tutelage.engine.endpoint import check_url
        from tutelage.gateway.forward import Upstream

        try:
            url = check_url(upstream)
        except ConfigError as error:
            raise ConfigError(f"--upstream: {error}") from error
        key = read_api_key(os.environ, "OPENAI_API_KEY")
        defaults = options.model_dump(include={"temperature"}, exclude_none=True)
        return Upstream(url, key, str(target), seeds=seeds, defaults=defaults)
    gateway.check_address()
    fetch(target)
    with show_status("loading the model ..."):
        from tutelage.evaluate.targets import load_chat_client

        slots, length = options.slots or _SLOTS, options.max_length
        return load_chat_client(str(target), slots=slots, max_length=length, seed=options.seed or 0)


def _read_secret(options: _ServeOptions) -> str | None:
    """Return the API key set by the user, or None. Raises `ConfigError` for a key that clients
    cannot send."""
    from tutelage.config.api_keys import validate_api_key
    from tutelage.errors import ConfigError

    typed = {"--secret": options.secret, "--api-key": options.api_key}
    source = next((name for name, key in typed.items() if key), "TUTELAGE_SECRET")
    secret = typed.get(source) or os.environ.get(source) or None
    if secret is not None and validate_api_key(secret, source) != secret:
        raise ConfigError(f"the key in {source} starts or ends with whitespace; remove it")
    return secret


def _close_log(log: CallLog, recorder: Recorder) -> None:
    """Close the call log and print the number of calls that are missing from it."""
    from tutelage.cli.failures import warn

    log.close()
    if missing := recorder.dropped + recorder.failed:
        warn(
            f"Calls that are not in {str(log.path)!r}: {missing} ({recorder.dropped} came "
            f"faster than they were written, {recorder.failed} could not be written)."
        )
