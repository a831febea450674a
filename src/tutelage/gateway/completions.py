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
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from tutelage.engine.logprobs import TokenLogprob, token_logprobs
from tutelage.errors import SCHEMA_FIELD, ConstraintError, ContextOverflowError
from tutelage.gateway.request import ChatRequest
from tutelage.gateway.text import TextDecoder, token_entry
from tutelage.replies import ThoughtStream, thought_of
from tutelage.types import JSON, Call, ChatClient, Message

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

    def usage(self, calls: Sequence[Call], n: int) -> tuple[int, int]:
        """Prompt and completion tokens, `n` calls for each prompt. A client without ids may know
        them from its server."""
        counts = [self.counts(call) for call in calls]
        prompts = sum(max(counts[i : i + n])[0] for i in range(0, len(counts), n))
        return prompts, sum(new for _, new in counts)

    def counts(self, call: Call) -> tuple[int, int]:
        """Prompt and completion tokens of a call, as its server counted them, else those on
        record."""
        return call.usage or (len(call.prompt_ids), len(call.sampled.token_ids))


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of a choice that goes out, and what is said of the tokens that end in it, None where
    log-probabilities were not asked for. The last piece has the tokens that are no text, too."""

    text: str
    logprobs: Sequence[JSON] | None = None
    thought: str = ""
    """The field in which another server tells it as a thought; empty for text."""


class PendingCompletion:
    """One request while it is sampled, and its calls afterwards, one for each choice."""

    def __init__(
        self,
        id: str,
        request: ChatRequest,
        model: ServedModel,
        agent: str,
        on_end: OnEnd,
        key: bytes = b"",
        size: int = 0,
    ) -> None:
        """`on_end` is called once, before waiting requests are notified. `key` identifies what is
        asked, and `size` is that of the request's body in bytes."""
        self.id, self.request, self.model, self.agent = id, request, model, agent
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
    def choices(self) -> tuple[Call, ...]:
        """The calls, none before sampling has ended well."""
        return self.task.result() if self.task.done() and self.usable else ()

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
        decoder, ids = self.model.decoder, self.choices[index].prompt_ids
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
        return tuple(map(self._so_far, self.tokens, self.parts))

    def _so_far(self, tokens: Sequence[int], parts: Sequence[Piece]) -> JSON:
        message, decoder = JSON(role="assistant", content=None), self.model.decoder
        if tokens and decoder is not None:
            said = decoder.decode([i for i in tokens if i not in decoder.eos_ids])
            message["content"] = said.strip() if decoder.strips else said
        for name in dict.fromkeys(part.thought or "content" for part in parts):
            told = [part.text for part in parts if (part.thought or "content") == name]
            message[name] = "".join(told)
        return message

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
        try:
            one = self.request.choices == 1
            calls = (await self._choice(0),) if one else await self._choices()
        except BaseException as error:
            self._end((), error)
            raise
        self.usage = self.model.usage(calls, self.request.n)
        self._end(calls, None)
        return calls

    def _end(self, calls: tuple[Call, ...], error: BaseException | None) -> None:
        on_end, self._on_end = self._on_end, None
        if isinstance(error, asyncio.CancelledError) and self.failure is not None:
            error = self.failure  # its client has not left
        if on_end is not None:
            on_end(self, calls, error)

    def _settled(self, task: asyncio.Task[tuple[Call, ...]]) -> None:
        """For a task that was cancelled before it began; and an answer that nobody waits for any
        more must not complain about its exception."""
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self._end((), error)

    async def _choices(self) -> tuple[Call, ...]:
        tasks = [asyncio.ensure_future(self._choice(i)) for i in range(self.request.choices)]
        try:
            return tuple(await asyncio.gather(*tasks))
        finally:  # one choice that fails ends the others: no answer is half an answer
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _choice(self, index: int) -> Call:
        request = self.request
        extra, messages = self._options(index), request.messages
        while True:
            try:
                call = await self.model.client.chat(
                    messages,
                    tools=request.tools,
                    sampling=request.sampling,
                    agent=self.agent,
                    **extra,
                )
                if request.scored is not None:
                    scoring: Any = self.model.client
                    self.scored[index] = await scoring.score(call.prompt_ids, request.scored)
                return call
            except ConstraintError as error:
                raise _in_clients_words(error, request.schema_field) from error
            except ContextOverflowError:
                messages = _without_oldest(messages) if request.truncate else ()
                if not messages:
                    raise
                await asyncio.sleep(0)  # each try is rendered, and others wait for the loop

    def _options(self, index: int) -> dict[str, Any]:
        """What a client is told only where it is asked for."""
        request = self.request
        extra: dict[str, Any] = {}
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
                "on_prompt": self._prompt,
                "on_token": partial(self._token, index),
                "on_text": partial(self._part, index),
                "on_fields": partial(self._fields, index),
            }
            if request.logprobs:
                listeners["on_logprobs"] = self.token_logprobs[index].extend
            extra |= {n: each for n, each in listeners.items() if n in self.model.takes}
        return extra

    def _prompt(self, length: int) -> None:
        self.prompt_tokens = length

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


def _in_clients_words(error: ConstraintError, field: str) -> ConstraintError:
    """An error of a schema that names the field in which the client sent it."""
    if error.field != SCHEMA_FIELD:
        return error
    return ConstraintError(str(error).replace(f"`{SCHEMA_FIELD}`", f"`{field}`"), field)


def _without_oldest(messages: Sequence[Message]) -> tuple[Message, ...]:
    """A conversation without its oldest turn: what comes before the second message of a user, but
    for the system's. () when one turn is all there is. Of many turns a sixteenth goes at once: each
    try is rendered."""
    system = [m for m in messages if m.role == "system"]
    others = [m for m in messages if m.role != "system"]
    begins = [i for i, m in enumerate(others) if m.role == "user" and i]
    gone = max(0, (len(begins) + 1) // 16 - 1)
    return (*system, *others[begins[gone] :]) if begins else ()


OnEnd = Callable[[PendingCompletion, tuple[Call, ...], BaseException | None], None]
"""Takes an answer that has ended, with its calls or with what ended it."""
