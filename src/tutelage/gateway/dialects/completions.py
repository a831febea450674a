"""The Completions API, `POST /v1/completions`: continues text or token ids without a chat template.

Prompts may be token ids, and token ids are returned in vLLM's format (`return_token_ids`). A
request may have several prompts, whose choices follow one another. `chat_completions.py` is the API
for conversations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Annotated, Any, ClassVar, cast

from pydantic import BeforeValidator, Field, PlainValidator, StrictBool, StrictInt
from pydantic_core import PydanticCustomError

from tutelage.gateway.completions import AnswerCache, Delta, PendingCompletion
from tutelage.gateway.dialects.chat_completions import base_fields, prompt_logprobs, usage
from tutelage.gateway.dialects.dialect import Dialect
from tutelage.gateway.dialects.reading import (
    MAX_CHOICES,
    MAX_TOP,
    UNSUPPORTED,
    ChoicesReader,
    Items,
    validate,
)
from tutelage.gateway.errors import bad_request
from tutelage.gateway.reply import (
    DONE,
    Writer,
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


def _to_list(prompt: Any) -> Any:
    """Return a list of prompts; a single prompt becomes a list of one."""
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
    }
    prompt: Annotated[
        Items[Annotated[str | list[int], PlainValidator(_check_prompt)]], BeforeValidator(_to_list)
    ] = Field(min_length=1, max_length=MAX_CHOICES)
    max_tokens: StrictInt = Field(_DEFAULT_TOKENS, ge=1)
    best_of: StrictInt | None = None
    echo: StrictBool = False
    logprobs: StrictInt | None = Field(None, ge=0, le=MAX_TOP)


def _parse(body: JSON, defaults: Sampling, cache: AnswerCache) -> ChatRequest:
    """Parse a text completion request. Raises `ApiError`."""
    request = validate(_Request, body)
    if request.best_of not in (None, request.n):
        raise bad_request("`best_of` must equal `n`: all completions are returned", "best_of")
    if request.n * len(request.prompt) > MAX_CHOICES:
        raise bad_request(f"a request can have at most {MAX_CHOICES} choices", "n")
    if request.echo and request.stream:
        raise bad_request("`echo` cannot be streamed", "echo")
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
        **request.choice_fields(request.prompt_logprobs if scored is None else scored),
    )


def _write_reply(reply: PendingCompletion) -> JSON:
    """Return the reply as a `text_completion` object."""
    decoder, choices = reply.model.decoder, list[JSON]()
    for i, choice in enumerate(reply.calls):
        text, entries = visible_content(reply, choice) or "", reply.logprobs(choice)
        if reply.request.echo:
            prompt = reply.request.choice_prompt(i)
            if decoder is not None and not isinstance(prompt, str):
                prompt = decoder.decode(choice.prompt_ids)
            text = f"{prompt}{text}"
        if reply.request.echo and decoder is not None and entries is not None:
            pairs = zip(choice.prompt_ids, reply.scored[i], strict=True)
            entries = [*(token_entry(decoder, *pair) for pair in pairs), *entries]
        choices.append(_format_choice(reply, i, text, choice, entries))
    return {**base_fields(reply, "text_completion"), "choices": choices, "usage": usage(reply)}


def _format_choice(
    reply: PendingCompletion,
    index: int,
    text: str,
    choice: Call,
    entries: Sequence[JSON] | None,
) -> JSON:
    out: JSON = {
        "index": index,
        "text": text,
        "logprobs": None if entries is None else _format_logprobs(reply, entries),
        "finish_reason": finish_reason(choice),
    }
    if reply.request.token_ids:
        out |= {"token_ids": choice.sampled.token_ids, "prompt_token_ids": choice.prompt_ids}
    if reply.request.scored is not None:
        out["prompt_logprobs"] = prompt_logprobs(reply, index)
    return out


def _format_logprobs(reply: PendingCompletion, entries: Sequence[JSON]) -> JSON:
    """Return tokens, log-probabilities and text offsets in the format of the Completions API."""
    tokens = [entry["token"] for entry in entries]
    top = [{e["token"]: e["logprob"] for e in entry["top_logprobs"]} or None for entry in entries]
    return {
        "tokens": tokens,
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": top if reply.request.top_logprobs else None,
        "text_offset": list(accumulate(map(len, tokens), initial=0))[:-1],
    }


class _ChunkWriter(Writer):
    """Writer of the stream chunks of a text completion."""

    def write(self, index: int, delta: Delta) -> bytes:
        """Return the chunk for a text delta of a choice."""
        more = {"logprobs": None, "finish_reason": None}
        return self._chunk([{"index": index, "text": delta.text, **more}])

    def write_end(self, deltas: Sequence[Delta]) -> bytes:
        """Return the final chunks: the unsent text and end of each choice, then the usage."""
        out, reply = b"", self._reply
        for i, (choice, rest) in enumerate(zip(reply.calls, deltas, strict=True)):
            out += self._chunk([_format_choice(reply, i, rest.text, choice, rest.logprobs)])
        if reply.request.include_usage:
            out += self._chunk([], usage=usage(reply))
        return out + DONE

    def _chunk(self, choices: list[JSON], **more: JSON) -> bytes:
        return event({**base_fields(self._reply, "text_completion"), "choices": choices, **more})


COMPLETIONS = Dialect(
    name="completions",
    path="/v1/completions",
    prefix="cmpl-",
    prompt_field="prompt",
    request=_Request,
    read=_parse,
    write_reply=_write_reply,
    writer=_ChunkWriter,
)
