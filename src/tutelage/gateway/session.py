"""One attempt's access to its models: base URL, keys, budget, and the state of its requests.

Keys are derived from the gateway's secret by HMAC, looked up by their hash and compared in constant
time. Closing a session cancels its running requests, and later ones get 410; the record of calls
stays with the client passed to `Gateway.open`. `keys.py` has the registry, `server.py` opens
sessions.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tutelage.gateway.completions import AnswerCache, PendingCompletion, ServedModel
from tutelage.gateway.dialects import Dialect
from tutelage.gateway.errors import NO_RETRY, ApiError, attempt_closed, bad_request, model_not_found
from tutelage.gateway.forward import ForwardedCall, Upstream
from tutelage.gateway.record import OnCall, Recorder
from tutelage.gateway.reply import finish_reason
from tutelage.gateway.request import ChatRequest
from tutelage.gateway.rewards import PostedRewards
from tutelage.types import JSON, Mode, Sampling

if TYPE_CHECKING:
    from tutelage.gateway.keys import SessionRegistry

STOPPED = "the server has stopped"
"""The error of a call that was running when its server stopped."""
ENDED = "the attempt has ended"
"""The error of a call that was running when its attempt ended."""
COUNTED = 1 << 16
"""Minimum prompt length, in tokens, up to which tokens are counted for any context length."""
KEPT_IDS = 4096
"""Number of latest calls of an attempt whose response ids are kept."""


@dataclass(eq=False, repr=False, kw_only=True)
class AttemptSession:
    """Session that gives one attempt access to its models, created by `Gateway.open`. Public
    members are thread-safe."""

    rollout_id: str
    attempt_id: str
    base_url: str
    api_key: str
    main: ServedModel
    others: Mapping[str, ServedModel]
    names: Collection[str] | None
    agent: str
    sampling: Sampling
    token_budget: int | None
    on_call: OnCall | None
    recorder: Recorder
    registry: SessionRegistry
    environment: Mapping[str, str]
    closed: bool = field(default=False, init=False)
    server_stops: bool = field(default=False, init=False)
    """True if it closes because the server stops, not because the attempt ended."""
    in_flight: int = field(default=0, init=False)
    spent: int = field(default=0, init=False)
    """Tokens sampled by the main client so far; of cancelled replies, the streamed ones."""
    ledger: AnswerCache = field(default_factory=AnswerCache, init=False)
    posted: PostedRewards = field(default_factory=PostedRewards, init=False)
    """Rewards posted over HTTP."""
    _response_ids: OrderedDict[str, str] = field(default_factory=OrderedDict[str, str], init=False)
    _count: int = field(default=0, init=False)
    _running: set[PendingCompletion] = field(default_factory=set[PendingCompletion], init=False)
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False)

    # ------------------------------------------------------------ for the runner

    def env(self, agent: str | None = None, mode: Mode = Mode.TRAIN) -> dict[str, str]:
        """Return the environment variables with which an agent's programs use this session.

        They are for model clients, trace exporters and agents of agent-lightning, and give the URL
        for rewards.
        """
        key = self.api_key if agent is None else self.key_for(agent)
        url = self.base_url
        # Agents of agent-lightning parse the rollout id and the mode in their URLs.
        root, _, rollout = url.removesuffix("/v1").rpartition("/rollout/")
        kind = "train" if mode is Mode.TRAIN else "val"
        values = {
            "OPENAI_BASE_URL": url,
            "OPENAI_API_BASE": url,
            "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": key,
            "TUTELAGE_REWARD_URL": f"{url}/rewards",
            "AGL_OPENAI_BASE_URL": f"{root}/proxy/rollout/{rollout}/mode/{kind}/openai/v1",
            "AGL_EVENT_URL": f"{root}/api/rollouts/{rollout}/events",
            "AGL_KEY": key,
        }
        return values | {k: v.format(base=url, key=key) for k, v in self.environment.items()}

    def key_for(self, agent: str) -> str:
        """Return an API key for another agent of the same attempt. Calls with this key are recorded
        under that agent."""
        return self.registry.key_for(self, agent)

    @property
    def ids(self) -> tuple[str, str]:
        """Return the rollout id and the attempt id."""
        return self.rollout_id, self.attempt_id

    @property
    def budget_left(self) -> int | None:
        """Return the attempt's remaining token budget, or None without a budget."""
        return None if self.token_budget is None else max(0, self.token_budget - self.spent)

    def response_id(self, call_id: str) -> str | None:
        """Return a call's response id, which links the call to its spans and evaluations.

        The first choice of a response has the response's id, the i-th one that id with `-i`.
        """
        return self._response_ids.get(call_id)

    def close(self, timeout: float = 5.0) -> None:
        """Reject new requests, cancel and await running requests, and flush the recorder.

        Use `aclose` on the gateway's own loop, where this cannot wait. May be called twice.
        """
        loop, running = self._loop, self._cancel_running()
        if loop is not None and loop.is_running() and running and not _is_current_loop(loop):
            future = asyncio.run_coroutine_threadsafe(_wait_all(running, timeout), loop)
            future.result(timeout + 1)
        if loop is None or not _is_current_loop(loop):
            self.recorder.flush(timeout)

    async def finish(self) -> None:
        """Reject new requests, and wait for running replies that must be sampled to their end.

        Those continue even if their clients disconnected (`ServedModel.finishes`). Must run on the
        gateway's loop.
        """
        self.closed = True
        running = [answer.task for answer in tuple(self._running) if answer.must_finish]
        await _wait_all(running, None)

    def stop(self) -> None:
        """Close the session on server shutdown. Clients of unfinished replies receive this as the
        error."""
        self.server_stops = True
        self.close()

    async def aclose(self, timeout: float = 5.0) -> None:
        """Close the session from any event loop, including the gateway's."""
        if self._loop is not None and _is_current_loop(self._loop):
            await _wait_all(self._cancel_running(), timeout)
            await asyncio.to_thread(self.recorder.flush, timeout)
        else:
            await asyncio.to_thread(self.close, timeout)

    def _cancel_running(self) -> list[asyncio.Task[Any]]:
        """Mark the session closed and cancel its running tasks; return the tasks."""
        self.closed = True
        if not self.server_stops:  # else known keys get the error of the stop instead of 410
            self.registry.remove(self)
        running = [answer.task for answer in tuple(self._running)]
        for task in running:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(task.cancel)
        return running

    # ------------------------------------------------------------ for the endpoints

    def closed_error(self) -> ApiError:
        """Return the error for requests that run when the session closes or arrive later."""
        if self.server_stops:
            return ApiError(500, f"{STOPPED}; retry after it restarts", code="server_stopped")
        return attempt_closed()

    def models(self) -> list[str]:
        """Return the names of the available models, with the main model first."""
        return [*(self.names or [self.main.name]), *self.others]

    def model(self, name: str) -> ServedModel:
        """Return the model with the given name. Raises `ApiError` 404.

        The main model accepts any name if `names` is None.
        """
        if name in self.others:
            return self.others[name]
        if self.names is not None and name not in self.names:
            raise model_not_found(name, self.models())
        return self.main

    def parse(self, dialect: Dialect, body: JSON) -> ChatRequest:
        """Parse the body of a request. Raises `ApiError`.

        Fields of the body that have no effect are kept for the record.
        """
        request = dialect.read(body, self.sampling, self.ledger)
        unused = dialect.request.unused_fields(body)
        return replace(request, unused=unused) if unused else request

    def forward(self, dialect: Dialect, body: JSON, agent: str) -> ForwardedCall | None:
        """Return the call that forwards a request upstream, or None if it is not forwarded.

        Raises `ApiError`.
        """
        name = body.get("model")
        model = self.model(name) if isinstance(name, str) else self.main
        upstream = model.client
        if not isinstance(upstream, Upstream) or dialect.name != upstream.dialect:
            return None
        if self.closed:
            raise self.closed_error()
        limit = self._token_limit(model)
        return ForwardedCall(upstream, body, agent, limit, partial(self._record_forwarded, model))

    def count_tokens(self, model_name: object, parse: Callable[[], ChatRequest]) -> int:
        """Count the prompt tokens of a request.

        `parse` parses the request, and is called only if the model can count tokens. Raises
        `ApiError` if the tokenizer is not available.
        """
        model = self.model(model_name) if isinstance(model_name, str) else self.main
        render = getattr(model.decoder, "render", None)
        if render is None:
            raise bad_request(f"cannot count the tokens of remote model {model.name!r}", "model")
        request = parse()
        context: int | None = getattr(model.client, "max_length", None)
        limit = () if context is None else (max(context, COUNTED),)
        return len(render(request.messages, request.tools, *limit))

    def answer(
        self,
        dialect: Dialect,
        key: bytes,
        retry: bool,
        request: ChatRequest,
        agent: str,
        size: int = 0,
    ) -> PendingCompletion:
        """Return the answer to a request: a new answer, or for a retry the existing one.

        `key` identifies equal requests; the body has `size` bytes. The prefix of the answer's id
        depends on the dialect.
        """
        if self.closed:
            raise self.closed_error()
        if retry:
            earlier = self.ledger.find(key)
            if earlier is not None:
                return earlier
        model = self.model(request.model)
        if request.logprobs and model.decoder is None:
            raise bad_request(f"{model.name!r} does not support log-probabilities", "logprobs")
        if request.scored is not None and getattr(model.client, "policy", None) is None:
            message = f"model {model.name!r} does not support log-probabilities of the prompt"
            raise bad_request(message, "prompt_logprobs")
        limit = self._token_limit(model)
        if limit is not None and limit < request.sampling.max_tokens:
            request = replace(request, sampling=replace(request.sampling, max_tokens=limit))
        self._count += 1
        self._loop = asyncio.get_running_loop()
        answer = PendingCompletion(
            f"{dialect.prefix}{self.attempt_id}-{self._count}",
            dialect.name,
            request,
            model,
            agent,
            self._record_answer,
            key,
            size,
        )
        self._running.add(answer)
        self.ledger.add(answer)
        return answer

    def end_request(self, task: object = None) -> None:
        """Decrement the number of requests in flight."""
        self.in_flight -= 1

    def _token_limit(self, model: ServedModel) -> int | None:
        """Return the maximum number of reply tokens in the attempt's budget, or None if unlimited.

        Raises `ApiError` if the budget is used up.
        """
        left = self.budget_left if model is self.main else None
        if left == 0:
            message = f"the attempt has used up its budget of {self.token_budget} tokens"
            raise ApiError(402, message, code="token_budget_exhausted", headers=NO_RETRY)
        return left

    def _record_answer(self, answer: PendingCompletion, error: BaseException | None) -> None:
        """Record an answer whose sampling has ended, and count its tokens."""
        self._running.discard(answer)
        sampled = answer.usage[1]
        if error is None:
            for i, call in enumerate(answer.calls):
                self._response_ids[call.id] = f"{answer.id}-{i}" if i else answer.id
            while len(self._response_ids) > KEPT_IDS:
                self._response_ids.popitem(last=False)
            answer.finish_reasons = tuple(map(finish_reason, answer.calls))
        else:
            self.ledger.discard(answer.id)
            sampled = sum(map(len, answer.tokens))
        self._record(answer, answer.model, sampled, error)

    def _record_forwarded(self, model: ServedModel, call: ForwardedCall) -> None:
        """Record a forwarded call, and count its tokens."""
        self._record(call, model, call.usage[1] if call.usage else 0, call.failure)

    def _record(
        self,
        request: PendingCompletion | ForwardedCall,
        model: ServedModel,
        num_tokens: int,
        error: BaseException | None,
    ) -> None:
        """Count the sampled tokens of a request, and queue its record."""
        self.spent += num_tokens if model is self.main else 0
        if self.on_call is None:
            return
        request.ended_ns = time.time_ns()
        if error is not None:
            request.partial_replies = request.partial_messages()
            request.error = f"{type(error).__name__}: {error}"
            if not isinstance(error, Exception):
                reason = STOPPED if self.server_stops else ENDED
                request.disconnected, request.error = not self.closed, reason
        self.recorder.put(self.on_call, request)


def _is_current_loop(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


async def _wait_all(tasks: Sequence[asyncio.Task[Any]], timeout: float | None) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=timeout)
