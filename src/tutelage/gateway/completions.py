"""Sampling of one request, shared by all requests that wait for it, and kept for retries.

An `PendingCompletion` is a task of its own, so a client that repeats a request joins the one that
runs, and a client that goes away cancels it only when nobody else waits. `session.py` keeps the
answers.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from tutelage.engine.answered import whole_number
from tutelage.engine.streamed import Completion
from tutelage.errors import SCHEMA_FIELD, ConstraintError, ContextOverflowError, RemoteError
from tutelage.gateway.request import ChatRequest
from tutelage.gateway.text import TextDecoder
from tutelage.types import JSON, Call, ChatClient, Message

if TYPE_CHECKING:
    from tutelage.engine.answered import Answered
    from tutelage.engine.logprobs import TokenLogprob


def _unanswered(call: Call) -> Answered | None:
    return None


def _uncounted(call: Call) -> tuple[int, int] | None:
    return None


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A client and what the gateway knows about it."""

    name: str
    client: ChatClient
    streams: bool
    """Whether the client hands out tokens as they are sampled."""
    decoder: TextDecoder | None
    tells_logprobs: bool = False
    """Whether log-probabilities come with them."""
    tells: bool = False
    """Whether the client hands out text as it comes, in place of tokens."""
    tells_fields: bool = False
    """Whether thoughts and tool calls come with it."""
    passes: bool = False
    """Whether another server gets what of a request is not read here."""
    tells_prompt: bool = False
    """Whether the client tells the length of a prompt before it samples."""
    finishes: bool = False
    """Whether a reply of which something was handed out is sampled to its end when nobody waits for
    it any more: its reader acted on it, and it is to be trained."""
    answered: Callable[[Call], Answered | None] = _unanswered
    """What another server said of a call, None where none answered."""
    counted: Callable[[Call], tuple[int, int] | None] = _uncounted
    """Prompt and completion tokens of a call as another server counted them, None where none
    did."""

    @staticmethod
    def of(name: str, client: ChatClient) -> ServedModel:
        """Look at a client once, so that requests need not."""
        found = getattr(client, "codec", None)
        decoder = cast("TextDecoder", found) if hasattr(found, "decode") else None
        return ServedModel(
            name,
            client,
            _takes(client, "on_token"),
            decoder,
            _takes(client, "on_logprobs") or _takes(client, "on_entries"),
            _takes(client, "on_text"),
            _takes(client, "on_fields"),
            _passes(client),
            _takes(client, "on_prompt"),
            bool(getattr(client, "finishes", False)),
            getattr(client, "answered", _unanswered),
            getattr(client, "usage", _uncounted),
        )

    def usage(self, calls: Sequence[Call], n: int) -> tuple[int, int]:
        """Prompt and completion tokens, `n` calls for each prompt. A client without ids may know
        them from its server."""
        prompts = sampled = longest = 0
        for i, call in enumerate(calls):
            prompt, new = self.counts(call)
            longest = prompt if i % n == 0 else max(longest, prompt)
            prompts += longest if i % n == n - 1 else 0
            sampled += new
        return prompts, sampled

    def counts(self, call: Call) -> tuple[int, int]:
        """Prompt and completion tokens of a call; where another server's number is none, those on
        record."""
        known = len(call.prompt_ids), len(call.sampled.token_ids)
        told = self.answered(call)
        if told is None:
            return self.counted(call) or known
        prompt = whole_number(told.usage.get("prompt_tokens"))
        new = whole_number(told.usage.get("completion_tokens"))
        return known[0] if prompt is None else prompt, known[1] if new is None else new


@dataclass(frozen=True, slots=True)
class Part:
    """What a client that hands out text has handed out at once."""

    text: str = ""
    fields: JSON = field(default_factory=lambda: {})
    """What is no text: a piece of a thought or of tool calls, as the fields of a delta."""
    entries: Sequence[JSON] = ()
    """What its server says of the tokens."""


class PendingCompletion:
    """One request while it is sampled, and its calls afterwards, one for each choice."""

    def __init__(
        self,
        id: str,
        request: ChatRequest,
        model: ServedModel,
        agent: str,
        on_end: OnEnd,
        size: int = 0,
    ) -> None:
        """`on_end` is called once, before waiting requests are notified. `size` is that of the
        request's body in bytes."""
        self.id, self.request, self.model, self.agent = id, request, model, agent
        self.size = size
        self.began_ns = time.time_ns()
        self.created = self.began_ns // 1_000_000_000
        choices = request.choices
        self.tokens: list[list[int]] = [[] for _ in range(choices)]
        """What each choice has sampled so far; stays empty where the client hands out nothing."""
        self.parts: list[list[Part]] = [[] for _ in range(choices)]
        """What a client that hands out text has handed out of each choice."""
        self.logprobs: list[list[TokenLogprob]] = []
        """The log-probabilities of `tokens`, where they are asked for and come with them."""
        self._entries: list[list[JSON]] = []
        """What such a client has said of the tokens of the next part."""
        if request.stream:
            self.logprobs += ([] for _ in range(choices))
            self._entries += ([] for _ in range(choices))
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
    def calls(self) -> tuple[Call, ...]:
        """The calls, once `task` is done. Raises what sampling raised."""
        return self.task.result()

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

    def partial(self) -> tuple[JSON, ...]:
        """What has come of each choice so far, as messages; of one that is not streamed nothing
        is known before its end."""
        return tuple(map(self._so_far, self.tokens, self.parts))

    def _so_far(self, tokens: Sequence[int], parts: Sequence[Part]) -> JSON:
        found, decoder = Completion(functions=True), self.model.decoder
        if tokens and decoder is not None:
            said = decoder.decode([i for i in tokens if i not in decoder.eos_ids])
            said = said.strip() if decoder.strips else said
            found.add({"choices": [{"delta": {"content": said}}]})
        for part in parts:
            found.add({"choices": [{"delta": part.fields or {"content": part.text}}]})
        return found.message

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
                return await self.model.client.chat(
                    messages,
                    tools=request.tools,
                    sampling=request.sampling,
                    agent=self.agent,
                    **extra,
                )
            except RemoteError as error:
                if error.part and not request.stream:
                    self.parts[index].append(Part(fields=error.part))
                raise
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
        if request.passed is not None:
            extra["passed"] = request.passed
        if request.prompts:
            extra["prompt"] = request.prompt_of(index)
        if self.model.tells_prompt and request.stream:
            extra["on_prompt"] = self._prompt
        if self.model.streams and request.stream:
            extra["on_token"] = partial(self._token, index)
            if request.logprobs and self.model.tells_logprobs:
                extra["on_logprobs"] = self.logprobs[index].extend
        elif self.model.tells and request.stream:
            extra |= self._listeners(index)
        return extra

    def _listeners(self, index: int) -> dict[str, Any]:
        """What a client that hands out text is told to take its parts."""
        told: dict[str, Any] = {"on_text": partial(self._text, index)}
        if self.request.theirs and self.model.tells_logprobs:
            told["on_entries"] = self._entries[index].extend
        if self.model.tells_fields:
            told["on_fields"] = partial(self._fields, index)
        return told

    def _prompt(self, length: int) -> None:
        self.prompt_tokens = length

    def _token(self, index: int, ids: Sequence[int]) -> None:
        self.tokens[index] += ids
        self._wake()

    def _text(self, index: int, text: str) -> None:
        self._part(index, text, {})

    def _fields(self, index: int, fields: JSON) -> None:
        self._part(index, "", fields)

    def _part(self, index: int, text: str, fields: JSON) -> None:
        entries, self._entries[index][:] = tuple(self._entries[index]), ()
        self.parts[index].append(Part(text, fields, entries))
        self._wake()

    def _wake(self) -> None:
        self._begun = True
        for wake in tuple(self._wakers):
            wake()


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


def _takes(client: ChatClient, name: str) -> bool:
    """Whether `client.chat` takes a keyword of that name."""
    try:
        return name in inspect.signature(client.chat).parameters
    except (TypeError, ValueError):
        return False


def _passes(client: ChatClient) -> bool:
    return bool(getattr(client, "passes", False))


OnEnd = Callable[[PendingCompletion, tuple[Call, ...], BaseException | None], None]
"""Takes an answer that has ended, with its calls or with what ended it."""
