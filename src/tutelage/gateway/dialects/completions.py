"""The Completions API, `POST /v1/completions`: continues text or token ids without a chat template.

Prompts may be token ids, and token ids are returned in vLLM's format (`return_token_ids`). A
request may have several prompts, whose choices follow one another. `chat_completions.py` is the API
for conversations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, cast

from pydantic import BeforeValidator, Field, PlainValidator, StrictBool, StrictInt
from pydantic_core import PydanticCustomError

from tutelage.gateway.completions import KeptAnswers, PendingCompletion, Piece
from tutelage.gateway.dialects.chat_completions import heading, usage
from tutelage.gateway.dialects.dialect import Path
from tutelage.gateway.dialects.reading import (
    MAX_CHOICES,
    MAX_TOP,
    UNSUPPORTED,
    ChoicesReader,
    Items,
    read,
)
from tutelage.gateway.errors import ApiError, invalid
from tutelage.gateway.reply import (
    DONE,
    event,
    finish_reason,
    visible_content,
)
from tutelage.gateway.request import ChatRequest
from tutelage.gateway.text import token_entry
from tutelage.types import JSON, Call, Sampling

_DEFAULT_TOKENS = 16
"""Default for `max_tokens`, as at OpenAI."""


def _check_prompt(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise ValueError("must be a string or an array of token ids")
    ids = cast("list[Any]", value)
    bad_index = next((at for at, i in enumerate(ids) if type(i) is not int or i < 0), None)
    if bad_index is not None:
        raise PydanticCustomError("token_id", "must be a token id", {"name": bad_index})
    return ids


def _as_list(prompt: Any) -> Any:
    """Convert a single prompt to a list of one prompt; return a list of prompts unchanged."""
    single = isinstance(prompt, str) or (
        isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], int)
    )
    return [prompt] if single else prompt


class _Request(ChoicesReader):
    refused: ClassVar[Mapping[str, Sequence[Any]]] = {
        **UNSUPPORTED,
        "suffix": ("",),
        "add_special_tokens": (False,),
        "tools": ([],),
        "tool_choice": ("auto", "none"),
        "chat_template_kwargs": ({},),
    }
    prompt: Annotated[
        Items[Annotated[str | list[int], PlainValidator(_check_prompt)]], BeforeValidator(_as_list)
    ] = Field(min_length=1, max_length=MAX_CHOICES)
    max_tokens: StrictInt = Field(_DEFAULT_TOKENS, ge=1)
    best_of: StrictInt | None = None
    echo: StrictBool = False
    logprobs: StrictInt | None = Field(None, ge=0, le=MAX_TOP)


class Completions:
    """Serve the Completions API, as a `Dialect`."""

    name = "completions"
    path = "/v1/completions"
    prefix = "cmpl-"
    prompt_field = "prompt"
    request = _Request
    paths: Mapping[str, Mapping[str, Path]] = MappingProxyType({})

    def read(self, body: JSON, defaults: Sampling, kept: KeptAnswers) -> ChatRequest:
        """Parse a text completion request. Raises `ApiError`."""
        request = read(_Request, body)
        if request.best_of not in (None, request.n):
            raise invalid("`best_of` must equal `n`: all completions are returned", "best_of")
        if request.n * len(request.prompt) > MAX_CHOICES:
            raise invalid(f"a request can have at most {MAX_CHOICES} choices", "n")
        request.tool_choice = "auto"
        scored = request.logprobs if request.echo else None
        return request.make_request(
            (),
            (),
            request.sampling(defaults, request.max_tokens),
            None,
            prompts=tuple(p if isinstance(p, str) else tuple(p) for p in request.prompt),
            logprobs=request.logprobs is not None,
            top_logprobs=request.logprobs or 0,
            echo={"echo": True} if request.echo else {},
            **request.choices(request.prompt_logprobs if scored is None else scored),
        )

    def write_reply(self, reply: PendingCompletion) -> JSON:
        """Return the reply as a `text_completion` object."""
        choices = [
            _choice(
                reply,
                i,
                _prompt_text(reply, i) + (visible_content(reply, choice) or ""),
                choice,
                _logprobs(reply, _logprob_entries(reply, i, choice)),
            )
            for i, choice in enumerate(reply.calls)
        ]
        return {**heading(reply, "text_completion"), "choices": choices, "usage": usage(reply)}

    def writer(self, reply: PendingCompletion) -> _Chunks:
        """Return the stream writer of a reply."""
        return _Chunks(reply)


def _prompt_text(reply: PendingCompletion, index: int) -> str:
    """Return the prompt text to echo before a choice, or nothing without `echo`."""
    prompt, decoder = reply.request.choice_prompt(index), reply.model.decoder
    if not reply.request.echo or prompt is None:
        return ""
    return decoder.decode(prompt) if decoder and not isinstance(prompt, str) else str(prompt)


def _logprob_entries(reply: PendingCompletion, index: int, choice: Call) -> list[JSON] | None:
    """Return the log-probability entries of a choice, preceded by those of its prompt with
    `echo`."""
    entries, decoder = reply.logprobs(choice), reply.model.decoder
    if entries is None or decoder is None or not reply.request.echo:
        return entries
    first, *rest = choice.prompt_ids
    head = {"token": decoder.decode([first]), "logprob": None, "top_logprobs": []}
    prompt_logprobs = zip(rest, reply.scored[index], strict=True)
    return [head, *(token_entry(decoder, *each) for each in prompt_logprobs), *entries]


def _choice(
    reply: PendingCompletion, index: int, text: str, choice: Call, logprobs: JSON | None
) -> JSON:
    out: JSON = {
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": finish_reason(choice),
    }
    if reply.request.token_ids:
        out |= {"token_ids": choice.sampled.token_ids, "prompt_token_ids": choice.prompt_ids}
    if reply.request.scored is not None:
        out["prompt_logprobs"] = reply.prompt_logprobs(index)
    return out


def _logprobs(
    reply: PendingCompletion, entries: Sequence[JSON] | None, start: int = 0
) -> JSON | None:
    """Return tokens, log-probabilities and text offsets in the format of the Completions API."""
    if entries is None:
        return None
    tokens = [entry["token"] for entry in entries]
    offsets = list(accumulate(map(len, tokens), initial=start))[:-1]
    values = [entry["logprob"] for entry in entries]
    top = [
        None
        if entry["logprob"] is None
        else {e["token"]: e["logprob"] for e in entry["top_logprobs"]}
        for entry in entries
    ]
    return {
        "tokens": tokens,
        "token_logprobs": values,
        "top_logprobs": top if reply.request.top_logprobs else None,
        "text_offset": offsets,
    }


class _Chunks:
    """Write the stream chunks of a text completion, as a `Writer`."""

    def __init__(self, reply: PendingCompletion) -> None:
        self._reply = reply
        self._begun = [False] * reply.request.choices
        self._offsets = [0] * reply.request.choices
        """Offset of the next token of each choice."""

    def text(self, index: int, new: Piece) -> bytes:
        """Return the chunk for a text delta of a choice."""
        before = "" if self._begun[index] else _prompt_text(self._reply, index)
        self._begun[index] = True
        more = {"logprobs": self._logprobs(index, new), "finish_reason": None}
        return self._chunk([{"index": index, "text": before + new.text, **more}])

    def finish(self, rests: Sequence[Piece]) -> bytes:
        """Return the final chunks: the unsent text and end of each choice, then the usage."""
        out, reply = b"", self._reply
        for i, (choice, rest) in enumerate(zip(reply.calls, rests, strict=True)):
            before = "" if self._begun[i] else _prompt_text(reply, i)
            logprobs = self._logprobs(i, rest)
            out += self._chunk([_choice(reply, i, before + rest.text, choice, logprobs)])
        if reply.request.include_usage:
            out += self._chunk([], {"usage": usage(reply)})
        return out + DONE

    def write_error(self, error: ApiError) -> bytes:
        """Return the last event of a failed stream."""
        return event(error.body())

    def _logprobs(self, index: int, new: Piece) -> JSON | None:
        begin = self._offsets[index]
        self._offsets[index] += sum(len(entry["token"]) for entry in new.logprobs or ())
        return _logprobs(self._reply, new.logprobs, begin)

    def _chunk(self, choices: list[JSON], more: JSON | None = None) -> bytes:
        return event(
            {**heading(self._reply, "text_completion"), "choices": choices, **(more or {})}
        )
