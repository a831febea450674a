"""One attempt's access to its models: base URL, keys, budget, and what its requests left behind.

Keys are derived from the gateway's secret by HMAC, looked up by their hash and compared in constant
time. A closed session cancels what still runs and answers 410 from then on; the record of calls
stays with the client that the session was opened with. `keys.py` has the registry, `server.py`
opens sessions.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tutelage.gateway.completions import KeptAnswers, PendingCompletion, ServedModel
from tutelage.gateway.dialects import Dialect
from tutelage.gateway.dialects.field_errors import shown
from tutelage.gateway.errors import NO_RETRY, ApiError, invalid, model_not_found
from tutelage.gateway.forward import ForwardedCall, Upstream
from tutelage.gateway.record import OnCall, Recorder
from tutelage.gateway.reply import finish_reason
from tutelage.gateway.request import ChatRequest
from tutelage.gateway.rewards import PostedRewards
from tutelage.policy.template_forms import template_forms
from tutelage.tracing import Identity
from tutelage.types import JSON, Mode, Sampling

if TYPE_CHECKING:
    from tutelage.gateway.keys import SessionRegistry

KEPT_ERRORS = 100
STOPPED = "the server has stopped"
"""What ended a call that ran when its server stopped."""
ENDED = "the attempt has ended"
"""What ended one that ran when its attempt did."""
COUNTED = 1 << 16
"""Tokens of a prompt that are counted whatever the context is."""
KEPT_IDS = 4096
"""Calls of an attempt whose ids on the wire are known, the latest."""


@dataclass(eq=False, repr=False, kw_only=True)
class AttemptSession:
    """See the module's docstring. Made by `Gateway.open`; everything public is thread-safe."""

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
    stops: bool = field(default=False, init=False)
    """Whether it closes since the server stops, and no attempt has ended."""
    in_flight: int = field(default=0, init=False)
    spent: int = field(default=0, init=False)
    """Tokens that the main client sampled so far; of what was cut off those that were streamed."""
    errors: list[BaseException] = field(default_factory=list[BaseException], init=False)
    """What went wrong in the engines behind, the latest last, at most a hundred."""
    ledger: KeptAnswers = field(default_factory=KeptAnswers, init=False)
    posted: PostedRewards = field(default_factory=PostedRewards, init=False)
    """Rewards that came by HTTP."""
    _response_of: OrderedDict[str, str] = field(default_factory=OrderedDict[str, str], init=False)
    _count: int = field(default=0, init=False)
    _running: set[PendingCompletion] = field(default_factory=set[PendingCompletion], init=False)
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False)

    # ------------------------------------------------------------ for the runner

    def env(self, agent: str | None = None, mode: Mode = Mode.TRAIN) -> dict[str, str]:
        """Environment variables that point a client, a trace exporter and an agent of
        agent-lightning here, and say where a reward is posted."""
        key = self.api_key if agent is None else self.key_for(agent)
        url = self.base_url
        # agent-lightning's agents read the rollout and the mode out of their URLs.
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
        """A key whose calls belong to another agent of the same attempt."""
        return self.registry.key_for(self, agent)

    @property
    def at(self) -> tuple[str, str]:
        """The ids of the rollout and of the attempt."""
        return self.rollout_id, self.attempt_id

    @property
    def budget_left(self) -> int | None:
        """Tokens that may still be sampled, None without a budget."""
        return None if self.token_budget is None else max(0, self.token_budget - self.spent)

    def response_id(self, call_id: str) -> str | None:
        """The id under which a client saw a call: the join key of its spans and evaluations.

        Of several choices the first has the response's id, the i-th that id with `-i`."""
        return self._response_of.get(call_id)

    def close(self, timeout: float = 5.0) -> None:
        """Refuse new requests, cancel what runs and wait for it, and flush what was recorded.

        On the gateway's own loop it cannot wait: use `aclose` there. Closing twice is fine.
        """
        loop, running = self._loop, self._shut()
        if loop is not None and loop.is_running() and running and not _inside(loop):
            waiting = asyncio.run_coroutine_threadsafe(_settle(running, timeout), loop)
            waiting.result(timeout + 1)
        if loop is None or not _inside(loop):
            self.recorder.flush(timeout)

    async def finish(self) -> None:
        """Refuse new requests, and wait on the gateway's loop for replies that were begun, whether
        or not their clients have left; see `ServedModel.finishes`."""
        self.closed = True
        running = [answer.task for answer in tuple(self._running) if answer.finishing]
        await _settle(running, None)

    def stop(self) -> None:
        """`close` since the server stops, which those whose replies are cut off are told."""
        self.stops = True
        self.close()

    async def aclose(self, timeout: float = 5.0) -> None:
        """`close` from any event loop, the gateway's included."""
        if self._loop is not None and _inside(self._loop):
            await _settle(self._shut(), timeout)
            await asyncio.to_thread(self.recorder.flush, timeout)
        else:
            await asyncio.to_thread(self.close, timeout)

    def _shut(self) -> list[asyncio.Task[Any]]:
        """Close, and cancel what runs; returns it."""
        self.closed = True
        if not self.stops:  # else a key that is known is told of the stop, on a kept connection too
            self.registry.remove(self)
        running = [answer.task for answer in tuple(self._running)]
        for task in running:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(task.cancel)
        return running

    # ------------------------------------------------------------ for the endpoints

    def over(self) -> ApiError:
        """The answer to requests that run when it closes, or come later."""
        if self.stops:
            return ApiError(500, f"{STOPPED}; retry after it restarts", code="server_stopped")
        return AttemptClosedError(*self.at)

    def models(self) -> list[str]:
        """Names that requests may use; the first is the main one."""
        return [*(self.names or [self.main.name]), *self.others]

    def model(self, name: str) -> ServedModel:
        """The model of that name. Without a list of its own names the main one answers to any.
        Raises `ApiError` 404."""
        if name in self.others:
            return self.others[name]
        if self.names is not None and name not in self.names:
            raise model_not_found(name, self.models())
        return self.main

    def read(self, dialect: Dialect, body: JSON) -> ChatRequest:
        """Return the request of a body, with what of it changes nothing for the record. Raises
        `ApiError`."""
        request = dialect.read(body, self.sampling, self.ledger)
        unused = dialect.request.unused(body)
        return replace(request, unused=unused) if unused else request

    def forward(self, dialect: Dialect, body: JSON, agent: str) -> ForwardedCall | None:
        """Return the call of a request that goes on as it came, None for one that is read here.
        Raises `ApiError`."""
        name = body.get("model")
        model = self.model(name) if isinstance(name, str) else self.main
        upstream = model.client
        if not isinstance(upstream, Upstream) or dialect.name != upstream.dialect:
            return None
        if self.closed:
            raise self.over()
        most = self._allowed(model)
        return ForwardedCall(upstream, body, agent, most, partial(self._forwarded, model))

    async def count(self, name: object, read: Callable[[], ChatRequest]) -> int:
        """Tokens of the prompt of a request, which is read once it is known that its model counts.
        Raises `ApiError` for one whose tokenizer is not here."""
        model = self.model(name) if isinstance(name, str) else self.main
        render = getattr(model.decoder, "render", None)
        if render is None:
            raise invalid(f"token counts of remote model {model.name!r} are not available", "model")
        request = read()
        context: int | None = getattr(model.client, "max_length", None)
        bound = () if context is None else (max(context, COUNTED),)
        aside = getattr(model.client, "render", None)  # long prompts in a thread
        if aside is not None:
            return len(await aside(request.messages, request.tools, *bound))
        return len(render(request.messages, request.tools, *bound))

    def answer(
        self,
        dialect: Dialect,
        key: bytes,
        repeat: bool,
        request: ChatRequest,
        agent: str,
        size: int = 0,
    ) -> PendingCompletion:
        """The answer to a request: a new one, or for a repeat the one that there is.

        `key` identifies the request, whose body has `size` bytes. The answer's id says which API it
        is of.
        """
        if self.closed:
            raise self.over()
        if repeat:
            pending_completion = self.ledger.find(key)
            if pending_completion is not None:
                return pending_completion
        model = self.model(request.model)
        if request.logprobs and model.decoder is None:
            raise invalid(f"model {model.name!r} does not support log-probabilities", "logprobs")
        if request.scored is not None and getattr(model.client, "policy", None) is None:
            words = f"model {model.name!r} does not support log-probabilities of the prompt"
            raise invalid(words, "prompt_logprobs")
        if request.template:
            forms = template_forms(request.messages, request.tools)
            alike = getattr(getattr(model.decoder, "thoughts", None), "ignores_variables", None)
            if not (alike and alike(*forms, request.template)):
                raise invalid(
                    f"`chat_template_kwargs` = {shown(request.template)}: all requests must render "
                    "the chat template in the same way, since turns are continued and trained with "
                    "it; leave these options out",
                    "chat_template_kwargs",
                )
        least = None if request.constraint is None else request.constraint.min_tokens
        if least and not hasattr(model.decoder, "grammar"):
            words = f"`min_tokens` = {least} is not supported for the remote model {model.name!r}"
            raise invalid(words, "min_tokens")
        most = self._allowed(model)
        if most is not None and most < request.sampling.max_tokens:
            request = replace(request, sampling=replace(request.sampling, max_tokens=most))
        self._count += 1
        self._loop = asyncio.get_running_loop()
        answer = PendingCompletion(
            f"{dialect.prefix}{self.attempt_id}-{self._count}",
            dialect.name,
            request,
            model,
            agent,
            self._ended,
            key,
            size,
        )
        self._running.add(answer)
        self.ledger.add(answer)
        return answer

    def request_ended(self, task: object = None) -> None:
        """Count a request no longer."""
        self.in_flight -= 1

    def _allowed(self, model: ServedModel) -> int | None:
        """Return the tokens that a reply may have by the attempt's budget, None without one.
        Raises `ApiError` where nothing is left."""
        left = self.budget_left if model is self.main else None
        if left == 0:
            words = f"the attempt has used up its budget of {self.token_budget} tokens"
            raise ApiError(402, words, code="token_budget_exhausted", headers=NO_RETRY)
        return left

    def _ended(self, answer: PendingCompletion, error: BaseException | None) -> None:
        """Count and record an answer when its sampling has ended, delivered or not."""
        self._running.discard(answer)
        sampled = answer.usage[1]
        if error is None:
            for i, call in enumerate(answer.calls):
                self._response_of[call.id] = f"{answer.id}-{i}" if i else answer.id
            while len(self._response_of) > KEPT_IDS:
                self._response_of.popitem(last=False)
            answer.finish_reasons = tuple(map(finish_reason, answer.calls))
        else:
            self.ledger.forget(answer.id)
            sampled = sum(map(len, answer.tokens))
        self._record(answer, answer.model, sampled, error)

    def _forwarded(self, model: ServedModel, call: ForwardedCall) -> None:
        """Count and record a call that went on as it came."""
        self._record(call, model, call.usage[1] if call.usage else 0, call.failure)

    def _record(
        self,
        request: PendingCompletion | ForwardedCall,
        model: ServedModel,
        sampled: int,
        error: BaseException | None,
    ) -> None:
        """Count the tokens that were sampled, remember what went wrong in the engine, and queue the
        record of a request."""
        self.spent += sampled if model is self.main else 0
        if isinstance(error, Exception):  # a cancelled request is nobody's failure
            self.errors = [*self.errors[1 - KEPT_ERRORS :], error]
        if self.on_call is None:
            return
        request.ended_ns = time.time_ns()
        if error is not None:
            request.said, request.error = request.partial(), f"{type(error).__name__}: {error}"
            if not isinstance(error, Exception):
                request.left = not self.closed
                request.error = STOPPED if self.stops else ENDED
        self.recorder.put(self.on_call, request)


class AttemptClosedError(ApiError):
    """The answer to requests of an attempt that has ended, which it names."""

    def __init__(self, rollout_id: str, attempt_id: str) -> None:
        super().__init__(410, "this attempt has ended", code="attempt_closed", headers=NO_RETRY)
        self.attempt = Identity("", rollout_id, attempt_id)


def _inside(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


async def _settle(tasks: Sequence[asyncio.Task[Any]], timeout: float | None) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=timeout)
