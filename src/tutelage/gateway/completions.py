"""Sampling of one request, shared by all requests that wait for it, and kept for retries.

An `PendingCompletion` is a task of its own, so a client that repeats a request joins the one that
runs, and a client that goes away cancels it only when nobody else waits. `session.py` keeps the
answers.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, cast

from tutelage.engine.logprobs import TokenLogprob, token_logprobs
from tutelage.errors import SCHEMA_FIELD, ConstraintError
from tutelage.gateway.record import RecordedRequest
from tutelage.gateway.request import ChatRequest
from tutelage.gateway.text import TextDecoder, token_entry
from tutelage.replies import ThoughtStream, thought_of
from tutelage.types import JSON, UNBOUNDED, Call, ChatClient

KEPT_ANSWERS = 1024
"""Answers that an attempt keeps for repeats, and for requests that go on from them."""
KEPT_BYTES = 1 << 27
"""And the most that their requests have together."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A client and what the gateway knows about it."""

    name: str
    client: ChatClient
    takes: frozenset[str]
    """Keywords of its `chat`: which listeners it tells of a reply as that comes."""
    decoder: TextDecoder | None
    finishes: bool
    """Whether a reply of which something was handed out is sampled to its end when nobody waits for
    it any more: its reader acted on it, and it is to be trained."""

    @staticmethod
    def of(name: str, client: ChatClient) -> ServedModel:
        """Look at a client once, so that requests need not."""
        found = getattr(client, "codec", None)
        try:
            takes = frozenset(inspect.signature(client.chat).parameters)
        except (TypeError, ValueError):
            takes = frozenset[str]()
        return ServedModel(
            name,
            client,
            takes,
            cast("TextDecoder", found) if hasattr(found, "decode") else None,
            bool(getattr(client, "finishes", False)),
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of a choice that goes out, and what is said of the tokens that end in it, None where
    log-probabilities were not asked for. The last piece has the tokens that are no text, too."""

    text: str
    logprobs: Sequence[JSON] | None = None
    thought: str = ""
    """The field in which another server tells it as a thought; empty for text."""


class PendingCompletion(RecordedRequest):
    """One request while it is sampled, and its calls afterwards, one for each choice."""

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
        """`on_end` is called once, before waiting requests are notified. `key` identifies what is
        asked, and `size` is that of the request's body in bytes."""
        self.id, self.api, self.agent = id, api, agent
        self.request, self.model, self.model_name = request, model, request.model
        self.key, self.size = key, size
        self.began_ns = time.time_ns()
        self.created = self.began_ns // 1_000_000_000
        choices = request.choices
        self.tokens: list[list[int]] = [[] for _ in range(choices)]
        """What each choice has sampled so far; stays empty where the client hands out nothing."""
        self.parts: list[list[Piece]] = [[] for _ in range(choices)]
        """What a client that hands out text has handed out of each choice."""
        self.token_logprobs: list[list[TokenLogprob]] = []
        """The log-probabilities of `tokens`, where they are asked for and come with them."""
        if request.stream:
            self.token_logprobs += ([] for _ in range(choices))
        self.scored: list[list[TokenLogprob]] = [[] for _ in range(choices)]
        """The log-probabilities of the prompt's tokens after the first, where they are asked
        for."""
        self.prompt_tokens = 0
        """Of the prompt, as soon as a client that tells it knows it; 0 before that."""
        self.usage = (0, 0)
        """Prompt and completion tokens, once sampling has ended."""
        self.delivered = False
        self.failure: Exception | None = None
        """What went wrong while it was written to a client."""
        self._begun = False
        """Whether anything was handed out."""
        self._on_end: OnEnd | None = on_end
        self._waiting = 0
        self._wakers: set[Callable[[], None]] = set()
        self.task: asyncio.Task[tuple[Call, ...]] = asyncio.get_running_loop().create_task(
            self._sample()
        )
        self.task.add_done_callback(self._settled)

    @property
    def usable(self) -> bool:
        """Whether a repeat may have it: it runs and is not being cancelled, or it succeeded."""
        if not self.task.done():
            return not self.task.cancelling()
        return not self.task.cancelled() and self.task.exception() is None

    @property
    def finishing(self) -> bool:
        """Whether it runs and will be sampled to its end, even if nobody waits for it."""
        return self.model.finishes and self._begun and not self.task.done()

    def thoughts(self) -> ThoughtStream:
        """What cuts its text into a thought and the rest; without the thought where the request
        wants none."""
        hidden = self.request.sampling.max_thinking_tokens == 0
        decoder = self.model.decoder
        marks = decoder.thoughts if decoder is not None and decoder.thoughts.known else None
        return ThoughtStream(marks, hidden=hidden)

    def logprobs(self, choice: Call) -> list[JSON] | None:
        """Log-probabilities of the sampled tokens at temperature 1, None where none were asked for;
        one entry for each token."""
        if self.model.decoder is None or not self.request.logprobs:
            return None
        return self.entries(choice.sampled.token_ids, token_logprobs(choice.sampled))

    def entries(self, ids: Sequence[int], logprobs: Sequence[TokenLogprob]) -> list[JSON]:
        """What is said of tokens: of the end-of-turn token, which is no text, only beside ids."""
        decoder = self.model.decoder
        assert decoder is not None
        return [
            token_entry(decoder, token, logprob)
            for token, logprob in zip(ids, logprobs, strict=True)
            if self.request.token_ids or token not in decoder.eos_ids
        ]

    def prompt_logprobs(self, index: int) -> list[JSON | None]:
        """Return what is said of the tokens of a choice's prompt, as vLLM says it: None of the
        first, which nothing comes before."""
        decoder, ids = self.model.decoder, self.calls[index].prompt_ids
        assert decoder is not None
        out: list[JSON | None] = [None]
        for token, (value, top) in zip(ids[1:], self.scored[index], strict=True):
            found = {**dict(top), token: value}
            out.append({
                str(id): {"logprob": logprob, "decoded_token": decoder.decode([id])}
                for id, logprob in found.items()
            })  # fmt: skip
        return out

    def partial(self) -> tuple[JSON, ...]:
        """What has come of each choice so far, as messages; of one that is not streamed nothing
        is known before its end."""
        messages: list[JSON] = []
        for tokens, parts in zip(self.tokens, self.parts, strict=True):
            message, decoder = JSON(role="assistant", content=None), self.model.decoder
            if tokens and decoder is not None:
                said = decoder.decode([i for i in tokens if i not in decoder.eos_ids])
                message["content"] = said.strip() if decoder.strips else said
            for part in parts:
                name = part.thought or "content"
                message[name] = (message.get(name) or "") + part.text
            messages.append(message)
        return tuple(messages)

    def asked(self, index: int) -> JSON:
        """See `RecordedRequest`; a limit that nobody named is null."""
        request = self.request
        asked, prompt = self.calls[index] if self.calls else request, request.prompt_of(index)
        tools = [tool.to_dict() for tool in asked.tools]
        for tool in tools:
            if tool["function"]["name"] in request.strict:
                tool["function"]["strict"] = True
        sampling = {**asdict(asked.sampling), "seed": request.seed_of(index)}
        if asked.sampling.max_tokens == UNBOUNDED:
            sampling["max_tokens"] = None
        return {
            **({"unused": request.unused} if request.unused else {}),
            **({} if prompt is None else {"prompt": prompt}),
            "messages": [m.to_dict(extra=True) for m in asked.messages],
            "tools": tools,
            "sampling": sampling,
            "constraint": asked.constraint,
        }

    def join(self, wake: Callable[[], None] | None = None) -> None:
        """Begin to wait; `wake` is called for each new piece and at the end."""
        self._waiting += 1
        if wake is not None:
            self._wakers.add(wake)
            self.task.add_done_callback(lambda _: wake())

    def leave(self, wake: Callable[[], None] | None = None) -> None:
        """Stop waiting; the last one to leave a running answer cancels it, unless it finishes."""
        self._waiting -= 1
        if wake is not None:
            self._wakers.discard(wake)
        if self.finishing:
            return
        if self._waiting <= 0 and not self.task.done():
            self.task.cancel()
        elif self._waiting <= 0 and self.request.stream and self.usable and self.failure is None:
            for parts in self.parts:
                parts.clear()  # a repeat is told the whole reply

    async def _sample(self) -> tuple[Call, ...]:
        n = self.request.choices
        tasks = [asyncio.ensure_future(self._choice(i)) for i in range(n)] if n > 1 else []
        try:
            calls = tuple(await asyncio.gather(*tasks)) if tasks else (await self._choice(0),)
        except BaseException as error:  # one choice that fails ends the others
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._end(error)
            raise
        # A client without ids may know the counts from its server.
        counts = [c.usage or (len(c.prompt_ids), len(c.sampled.token_ids)) for c in calls]
        n, self.calls = self.request.n, calls
        prompts = sum(max(counts[i : i + n])[0] for i in range(0, len(counts), n))
        self.usage = prompts, sum(new for _, new in counts)
        self._end(None)
        return calls

    def _end(self, error: BaseException | None) -> None:
        on_end, self._on_end = self._on_end, None
        if isinstance(error, asyncio.CancelledError) and self.failure is not None:
            error = self.failure  # its client has not left
        if on_end is not None:
            on_end(self, error)

    def _settled(self, task: asyncio.Task[tuple[Call, ...]]) -> None:
        """For a task that was cancelled before it began; and an answer that nobody waits for any
        more must not complain about its exception."""
        self._end(asyncio.CancelledError() if task.cancelled() else task.exception())

    async def _choice(self, index: int) -> Call:
        request = self.request
        extra: dict[str, Any] = {}  # what a client is told only where it is asked for
        if request.constraint is not None:
            extra["constraint"] = request.constraint
        if request.seed is not None:
            extra["seed"] = request.seed_of(index)
        if request.top_logprobs:
            extra["top_logprobs"] = request.top_logprobs
        if request.prompts:
            extra["prompt"] = request.prompt_of(index)
        if request.stream:
            listeners: dict[str, Any] = {
                "on_prompt": partial(setattr, self, "prompt_tokens"),
                "on_token": partial(self._token, index),
                "on_text": partial(self._part, index),
                "on_fields": partial(self._fields, index),
            }
            if request.logprobs:
                listeners["on_logprobs"] = self.token_logprobs[index].extend
            extra |= {n: each for n, each in listeners.items() if n in self.model.takes}
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
            words = str(error).replace(f"`{SCHEMA_FIELD}`", f"`{request.schema_field}`")
            raise ConstraintError(words, request.schema_field) from error
        if request.scored is not None:
            scoring: Any = self.model.client
            self.scored[index] = await scoring.score(call.prompt_ids, request.scored)
        return call

    def _token(self, index: int, ids: Sequence[int]) -> None:
        self.tokens[index] += ids
        self._wake()

    def _fields(self, index: int, fields: JSON) -> None:
        thought, name = thought_of(fields)
        if thought:
            self._part(index, thought, name)

    def _part(self, index: int, text: str, thought: str = "") -> None:
        self.parts[index].append(Piece(text, thought=thought))
        self._wake()

    def _wake(self) -> None:
        self._begun = True
        for wake in tuple(self._wakers):
            wake()


class KeptAnswers(OrderedDict[str, PendingCompletion]):
    """The latest answers of an attempt by their ids.

    It finds the answer of a repeated request (`x-stainless-retry-count`, or an equal
    `Idempotency-Key`): sampling twice would put a call into the record that no agent ever saw. And
    a response that a later request names, with its conversation.
    """

    def __init__(self) -> None:
        super().__init__()
        self._size = 0

    def find(self, key: bytes) -> PendingCompletion | None:
        """Return the answer that a repeat of this request is about: the oldest that never arrived,
        else the latest. Equal requests are common where an agent samples the same prompt several
        times."""
        usable = [each for each in self.values() if each.key == key and each.usable]
        return next((a for a in usable if not a.delivered), usable[-1] if usable else None)

    def answer(self, answer_id: str) -> PendingCompletion | None:
        """Return the answer of that id, None for one that is not kept or has not ended."""
        found = self.get(answer_id)
        return found if found is not None and found.task.done() and found.usable else None

    def add(self, answer: PendingCompletion) -> None:
        """Keep an answer, and forget the oldest when there are too many, or too long ones."""
        self[answer.id] = answer
        self._size += answer.size
        while len(self) > KEPT_ANSWERS or self._size > KEPT_BYTES:
            ended = next((id for id, each in self.items() if each.task.done()), None)
            if ended is None:
                break
            self.forget(ended)

    def forget(self, answer_id: str) -> None:
        """Keep it no longer; unknown ones are fine."""
        if (kept := self.pop(answer_id, None)) is not None:
            self._size -= kept.size


OnEnd = Callable[[PendingCompletion, BaseException | None], None]
"""Takes an answer that has ended, and what ended it badly."""
