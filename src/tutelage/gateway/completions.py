"""Sample each request once, and keep the answer for retries and later requests.

A `PendingCompletion` runs in its own task: a client that repeats a request joins the running task,
and a disconnect cancels it only if no other client waits. `session.py` keeps the answers.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from tutelage.engine.logprobs import TokenLogprob, token_logprobs
from tutelage.errors import SCHEMA_FIELD, ConstraintError
from tutelage.gateway.record import RecordedRequest
from tutelage.gateway.request import ChatRequest
from tutelage.gateway.text import token_entry
from tutelage.replies import ThoughtStream, read_thought
from tutelage.types import JSON, UNBOUNDED, Call, ChatClient

if TYPE_CHECKING:
    from tutelage.gateway.text import TextDecoder

KEPT_ANSWERS = 1024
"""Maximum number of answers that an attempt keeps for retries and follow-up requests."""
KEPT_BYTES = 1 << 27
"""Maximum total size of their requests, in bytes."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A served model: a chat client and its capabilities."""

    name: str
    client: ChatClient
    chat_keywords: frozenset[str]
    """Keyword parameters of its `chat` method, which include the supported callbacks."""
    decoder: TextDecoder | None
    finishes: bool
    """True if a reply that was partly delivered is sampled to its end although no client waits: the
    agent acted on it, and it is used for training."""

    @staticmethod
    def from_client(name: str, client: ChatClient) -> ServedModel:
        """Create a served model from a client, and inspect the capabilities of the client."""
        codec = getattr(client, "codec", None)
        try:
            chat_keywords = frozenset(inspect.signature(client.chat).parameters)
        except (TypeError, ValueError):
            chat_keywords = frozenset[str]()
        return ServedModel(
            name,
            client,
            chat_keywords,
            cast("TextDecoder", codec) if hasattr(codec, "decode") else None,
            bool(getattr(client, "finishes", False)),
        )


@dataclass(frozen=True, slots=True)
class Delta:
    """Text delta of a choice.

    If log-probabilities were requested, the last piece has the entries of all tokens, else None.
    """

    text: str
    logprobs: Sequence[JSON] | None = None
    thought: str = ""
    """The field in which an upstream server sends it as a thought; empty for text."""


class PendingCompletion(RecordedRequest):
    """Answer to a request, sampled in its own task. It has one call per choice when finished."""

    def __init__(
        self,
        id: str,
        api: str,
        request: ChatRequest,
        model: ServedModel,
        agent: str,
        on_end: OnEnd,
        key: bytes = b"",
        size: int = 0,
    ) -> None:
        """Start sampling the request.

        `on_end` is called once, before waiting requests are notified. `key` identifies equal
        requests, and `size` is the size of the request's body in bytes.
        """
        self.id, self.api, self.agent = id, api, agent
        self.request, self.model, self.model_name = request, model, request.model
        self.key, self.size = key, size
        self.began_ns = time.time_ns()
        self.created = self.began_ns // 1_000_000_000
        choices = request.num_choices
        self.tokens: list[list[int]] = [[] for _ in range(choices)]
        """Token ids sampled so far, by choice; empty if the client does not stream tokens."""
        self.parts: list[list[Delta]] = [[] for _ in range(choices)]
        """Pieces of text received so far, by choice, from a client that streams text."""
        self.scored: list[list[TokenLogprob]] = [[] for _ in range(choices)]
        """Log-probabilities of the prompt's tokens, by choice, if requested."""
        self.prompt_tokens = 0
        """Tokens of the prompt; 0 until the client reports them."""
        self.usage = (0, 0)
        """Prompt and completion tokens, once sampling has ended."""
        self.delivered = False
        self.failure: Exception | None = None
        """The error that occurred while the reply was written to a client."""
        self._has_output = False
        """True once any output was received."""
        self._on_end: OnEnd | None = on_end
        self._waiting = 0
        self._callbacks: set[Callable[[], None]] = set()
        self.task: asyncio.Task[tuple[Call, ...]] = asyncio.get_running_loop().create_task(
            self._sample()
        )
        self.task.add_done_callback(self._on_done)

    @property
    def is_usable(self) -> bool:
        """Return True if a retried request may share this completion.

        That is so if the completion succeeded, or is running and not being cancelled.
        """
        if not self.task.done():
            return not self.task.cancelling()
        return not self.task.cancelled() and self.task.exception() is None

    @property
    def must_finish(self) -> bool:
        """Return True if a running completion is finished even without waiting clients."""
        return self.model.finishes and self._has_output and not self.task.done()

    def thought_stream(self) -> ThoughtStream:
        """Return a stream that separates thinking from the rest of the reply's text.

        Thoughts are hidden if the request disables them.
        """
        hidden = self.request.sampling.max_thinking_tokens == 0
        decoder = self.model.decoder
        marks = decoder.think_tags if decoder and decoder.think_tags.known else None
        return ThoughtStream(marks, hidden=hidden)

    def logprobs(self, choice: Call) -> list[JSON] | None:
        """Return the log-probability entries of a choice's tokens at temperature 1, or None if they
        were not requested.

        End-of-turn tokens, which have no text, are included only if the request asks for token ids.
        """
        decoder, sampled = self.model.decoder, choice.sampled
        if decoder is None or not self.request.logprobs:
            return None
        return [
            token_entry(decoder, token, logprob)
            for token, logprob in zip(sampled.token_ids, token_logprobs(sampled), strict=True)
            if self.request.token_ids or token not in decoder.eos_ids
        ]

    def partial_messages(self) -> tuple[JSON, ...]:
        """Return the partial output, one message per choice.

        If the client does not stream, the messages are empty until sampling has ended.
        """
        messages: list[JSON] = []
        for tokens, parts in zip(self.tokens, self.parts, strict=True):
            message, decoder = JSON(role="assistant", content=None), self.model.decoder
            if tokens and decoder is not None:
                text = decoder.decode([i for i in tokens if i not in decoder.eos_ids])
                message["content"] = text.strip() if decoder.strips else text
            for part in parts:
                name = part.thought or "content"
                message[name] = (message.get(name) or "") + part.text
            messages.append(message)
        return tuple(messages)

    def describe_choice(self, index: int) -> JSON:
        """Return a choice's request fields and sampling parameters, for the record.

        An unlimited `max_tokens` is recorded as null.
        """
        request = self.request
        source, prompt = self.calls[index] if self.calls else request, request.choice_prompt(index)
        tools = [tool.to_dict() for tool in source.tools]
        for tool in tools:
            if tool["function"]["name"] in request.strict:
                tool["function"]["strict"] = True
        sampling = {**asdict(source.sampling), "seed": request.choice_seed(index)}
        if source.sampling.max_tokens == UNBOUNDED:
            sampling["max_tokens"] = None
        return {
            **({"unused": request.unused} if request.unused else {}),
            **({} if prompt is None else {"prompt": prompt}),
            "messages": [m.to_dict(extra=True) for m in source.messages],
            "tools": tools,
            "sampling": sampling,
            "constraint": source.constraint,
        }

    def add_waiter(self, callback: Callable[[], None] | None = None) -> None:
        """Register a waiting client, and call `callback` for each new delta and at the end."""
        self._waiting += 1
        if callback is not None:
            self._callbacks.add(callback)
            self.task.add_done_callback(lambda _: callback())

    def remove_waiter(self, callback: Callable[[], None] | None = None) -> None:
        """Unregister a waiting client, and cancel sampling if no client is left.

        Sampling is not cancelled if `must_finish` is True.
        """
        self._waiting -= 1
        if callback is not None:
            self._callbacks.discard(callback)
        if self.must_finish:
            return
        if self._waiting <= 0 and not self.task.done():
            self.task.cancel()
        elif self._waiting <= 0 and self.request.stream and self.is_usable and self.failure is None:
            for parts in self.parts:
                parts.clear()  # a retry receives the whole reply

    async def _sample(self) -> tuple[Call, ...]:
        n = self.request.num_choices
        tasks = [asyncio.ensure_future(self._sample_one(i)) for i in range(n)] if n > 1 else []
        try:
            calls = tuple(await asyncio.gather(*tasks)) if tasks else (await self._sample_one(0),)
        except BaseException as error:  # a failed choice cancels the others
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._finish(error)
            raise
        # A client without token ids may report its server's counts.
        counts = [c.usage or (len(c.prompt_ids), len(c.sampled.token_ids)) for c in calls]
        n, self.calls = self.request.n, calls
        prompts = sum(max(counts[i : i + n])[0] for i in range(0, len(counts), n))
        self.usage = prompts, sum(new for _, new in counts)
        self._finish(None)
        return calls

    def _finish(self, error: BaseException | None) -> None:
        on_end, self._on_end = self._on_end, None
        if isinstance(error, asyncio.CancelledError) and self.failure is not None:
            error = self.failure  # cancelled after a write failure, not a disconnect
        if on_end is not None:
            on_end(self, error)

    def _on_done(self, task: asyncio.Task[tuple[Call, ...]]) -> None:
        """Call `on_end` if the task was cancelled before it started.

        Also retrieves the exception of an abandoned task, so that asyncio does not log it.
        """
        self._finish(asyncio.CancelledError() if task.cancelled() else task.exception())

    async def _sample_one(self, index: int) -> Call:
        request = self.request
        extra: dict[str, Any] = {}  # keywords passed only if requested
        if request.constraint is not None:
            extra["constraint"] = request.constraint
        if request.seed is not None:
            extra["seed"] = request.choice_seed(index)
        if request.top_logprobs:
            extra["top_logprobs"] = request.top_logprobs
        if request.prompts:
            extra["prompt"] = request.choice_prompt(index)
        if request.stream:
            listeners: dict[str, Any] = {
                "on_prompt": partial(setattr, self, "prompt_tokens"),
                "on_token": partial(self._add_tokens, index),
                "on_text": partial(self._add_text, index),
                "on_fields": partial(self._add_fields, index),
            }
            extra |= {n: each for n, each in listeners.items() if n in self.model.chat_keywords}
        try:
            call = await self.model.client.chat(
                request.messages,
                tools=request.tools,
                sampling=request.sampling,
                agent=self.agent,
                **extra,
            )
        except ConstraintError as error:
            if error.field != SCHEMA_FIELD:
                raise
            message = str(error).replace(f"`{SCHEMA_FIELD}`", f"`{request.schema_field}`")
            raise ConstraintError(message, request.schema_field) from error
        if request.scored is not None:
            client: Any = self.model.client
            self.scored[index] = await asyncio.to_thread(
                client.score, call.prompt_ids, request.scored
            )
        return call

    def _add_tokens(self, index: int, ids: Sequence[int]) -> None:
        self.tokens[index] += ids
        self._notify()

    def _add_fields(self, index: int, fields: JSON) -> None:
        thought, name = read_thought(fields)
        if thought:
            self._add_text(index, thought, name)

    def _add_text(self, index: int, text: str, thought: str = "") -> None:
        self.parts[index].append(Delta(text, thought=thought))
        self._notify()

    def _notify(self) -> None:
        self._has_output = True
        for callback in tuple(self._callbacks):
            callback()


class AnswerCache(OrderedDict[str, PendingCompletion]):
    """Cache of an attempt's latest answers, by id.

    Finds the answer of a repeated request (`x-stainless-retry-count`, or an equal
    `Idempotency-Key`), since sampling twice would record a call that no agent received. Also finds
    the response, with its conversation, that a later request continues.
    """

    def __init__(self) -> None:
        super().__init__()
        self._size = 0

    def find(self, key: bytes) -> PendingCompletion | None:
        """Return the oldest undelivered answer with this key, else the latest, or None.

        Several answers match if an agent samples the same prompt several times.
        """
        usable = [each for each in self.values() if each.key == key and each.is_usable]
        return next((a for a in usable if not a.delivered), usable[-1] if usable else None)

    def get_finished(self, answer_id: str) -> PendingCompletion | None:
        """Return the finished answer with this id, or None."""
        answer = self.get(answer_id)
        return answer if answer is not None and answer.task.done() and answer.is_usable else None

    def add(self, answer: PendingCompletion) -> None:
        """Add an answer, and remove the oldest ones until the count and total size are within the
        limits."""
        self[answer.id] = answer
        self._size += answer.size
        while len(self) > KEPT_ANSWERS or self._size > KEPT_BYTES:
            oldest = next((id for id, each in self.items() if each.task.done()), None)
            if oldest is None:
                break
            self.discard(oldest)

    def discard(self, answer_id: str) -> None:
        """Remove an answer. Unknown ids are ignored."""
        if (answer := self.pop(answer_id, None)) is not None:
            self._size -= answer.size


OnEnd = Callable[[PendingCompletion, BaseException | None], None]
"""Receives a finished answer, and the error that ended it or None."""
