"""Real workers on any OpenAI-compatible server, with one HTTP request per try.

API keys come from the environment and are sent only to the endpoint of the worker that names their
variable. The cost is the token usage reported by the server times the worker's prices. If the
server reports no usage, or the connection fails after the request was sent, the cost is the upper
bound and is marked as estimated. Failures are returned as typed errors: requests to busy servers
can be retried, truncated and empty answers cannot. The executor does the retries; this pool sends
one request.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tutelage.config.api_keys import read_api_key
from tutelage.engine.endpoint import check_url
from tutelage.engine.remote import RemoteChatClient
from tutelage.errors import (
    ConfigError,
    ContextOverflowError,
    EngineError,
    RemoteError,
    UnreachableError,
    pluralize,
)
from tutelage.orchestration.execution.prompts import SYSTEM, worker_messages
from tutelage.orchestration.execution.workers import (
    ErrorKind,
    Subtask,
    Worker,
    WorkerAnswer,
    WorkerError,
    WorkerEstimate,
    check_workers,
    prompt_tokens,
)
from tutelage.types import Message, Sampling, StopReason

if TYPE_CHECKING:
    pass

EXPECTED_TOKENS = 150.0
"""Expected tokens of an answer, for estimates."""
OVERHEAD = 64
"""Maximum number of tokens that a server's chat template adds to the prompt."""


class OpenAIPool:
    """Worker pool for OpenAI-compatible servers, used on one event loop at a time."""

    name = "openai"
    mock = False

    def __init__(
        self,
        workers: Sequence[Worker],
        *,
        environ: Mapping[str, str] = os.environ,
        timeout: float = 120.0,
    ) -> None:
        """Create a pool. Raises `ConfigError` if a worker's URL is invalid or its API key is not
        set.

        Workers without an endpoint use `OPENAI_BASE_URL` or the OpenAI API, and need
        `OPENAI_API_KEY`.
        """
        self.workers = check_workers(workers)
        self._timeout = timeout
        self._servers: dict[str, tuple[str, str | None]] = {}
        for worker in self.workers:
            name = worker.key_env or (None if worker.endpoint else "OPENAI_API_KEY")
            key = read_api_key(environ, name) if name else None
            if name and not key:
                raise ConfigError(
                    f"no API key for worker {worker.name!r}: {name} is not set; set it, use an "
                    "endpoint that needs no key, or use simulated workers: --pool simulated"
                )
            own = environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
            self._servers[worker.name] = (check_url(worker.endpoint or own), key)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clients: dict[str, RemoteChatClient] = {}

    async def execute(self, worker: Worker, work: Subtask) -> WorkerAnswer:
        """Send one request; see `WorkerPool`."""
        messages, bound = worker_messages(work.prompt), self.estimate(worker, work).bound
        return await self.ask(worker, messages, work.max_tokens, bound)

    def estimate(self, worker: Worker, work: Subtask) -> WorkerEstimate:
        """Estimate cost and latency from the worker's prices and latency profile.

        The bound counts one token per byte of the prompt, the maximum of any byte-level tokenizer.
        """
        tokens_in = prompt_tokens(SYSTEM + work.prompt) + OVERHEAD
        tokens_out = min(EXPECTED_TOKENS, work.max_tokens)
        most_in = len((SYSTEM + work.prompt).encode("utf-8", "replace")) + OVERHEAD
        return WorkerEstimate(
            cost=worker.cost(tokens_in, tokens_out),
            seconds=worker.latency.seconds + worker.latency.per_token * tokens_out,
            bound=worker.cost(most_in, work.max_tokens),
        )

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        clients, self._clients = self._clients, {}
        if self._loop is asyncio.get_running_loop():
            for client in clients.values():
                await client.close()
        self._loop = None

    async def ask(
        self, worker: Worker, messages: Sequence[Message], max_tokens: int, bound: float
    ) -> WorkerAnswer:
        """Send messages to a worker and return the answer; `bound` is the maximum cost in USD."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._clients = loop, {}
        if worker.name not in self._clients:
            url, key = self._servers[worker.name]
            self._clients[worker.name] = RemoteChatClient(
                url,
                key,
                worker.model or worker.name,
                name=worker.name,
                timeout=self._timeout,
                attempts=1,
                keep=max(64, worker.concurrency),
            )
        client, begun = self._clients[worker.name], time.perf_counter()
        sampling = Sampling(temperature=0.0, max_tokens=max_tokens)
        try:
            call = await client.chat(messages, sampling=sampling)
        except EngineError as failure:
            seconds = time.perf_counter() - begun
            kind, billed = error_kind(failure)
            wait = failure.retry_after if isinstance(failure, RemoteError) else None
            error, cost = WorkerError(kind, str(failure), wait), bound if billed else 0.0
            return WorkerAnswer(cost=cost, seconds=seconds, error=error, estimated=billed)
        usage, error = call.usage, None
        if call.sampled.stop_reason is StopReason.LENGTH:
            message = f"the answer was cut off after {pluralize(max_tokens, 'token')}"
            error = WorkerError("truncated", message)
        elif not call.answer.strip():
            error = WorkerError("empty", "the server answered without a text")
        tokens_in, tokens_out = usage or (0, 0)
        return WorkerAnswer(
            output=call.answer,
            cost=bound if usage is None else worker.cost(tokens_in, tokens_out),
            seconds=call.seconds,
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            error=error,
            estimated=usage is None,
        )


_BY_STATUS: Mapping[int, ErrorKind] = {
    **dict.fromkeys((401, 403), "unauthorized"),
    **dict.fromkeys((408, 409), "unavailable"),
    429: "rate_limited",
}


def error_kind(error: EngineError) -> tuple[ErrorKind, bool]:
    """Return the kind of an error, and True if the request may still be billed."""
    if isinstance(error, ContextOverflowError):
        return "refused", False
    if isinstance(error, RemoteError):
        known = _BY_STATUS.get(error.status)
        return known or ("unavailable" if error.status >= 500 else "refused"), False
    if not isinstance(error, UnreachableError):
        return "malformed", True
    return "timeout" if error.reason == "timeout" else "network", error.reason != "connect"
