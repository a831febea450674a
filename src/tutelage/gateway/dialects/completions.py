"""The Completions API, `POST /v1/completions`: continues text or token ids without a chat template.

Prompts may be token ids, and token ids are returned in vLLM's format (`return_token_ids`). A
request may have several prompts, whose choices follow one another. `chat_completions.py` is the API
for conversations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Annotated, Any, ClassVar, cast

from pydantic import BeforeValidator, Field, PlainValidator, StrictInt
from pydantic_core import PydanticCustomError

from tutelage.gateway.completions import KeptAnswers, PendingCompletion, Piece
from tutelage.gateway.dialects.chat_completions import heading, usage
from tutelage.gateway.dialects.dialect import Dialect
from tutelage.gateway.dialects.reading import (
    MAX_CHOICES,
    MAX_TOP,
    UNSUPPORTED,
    ChoicesReader,
    Items,
    read,
)
from tutelage.gateway.errors import invalid
from tutelage.gateway.reply import (
    DONE,
    Writer,
    event,
    finish_reason,
    visible_content,
)
from tutelage.gateway.request import ChatRequest
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
        "echo": (False,),
        "add_special_tokens": (False,),
        "tools": ([],),
        "tool_choice": ("auto", "none"),
    }
    prompt: Annotated[
        Items[Annotated[str | list[int], PlainValidator(_check_prompt)]], BeforeValidator(_as_list)
    ] = Field(min_length=1, max_length=MAX_CHOICES)
    max_tokens: StrictInt = Field(_DEFAULT_TOKENS, ge=1)
    best_of: StrictInt | None = None
    logprobs: StrictInt | None = Field(None, ge=0, le=MAX_TOP)


def _read(body: JSON, defaults: Sampling, kept: KeptAnswers) -> ChatRequest:
    """Parse a text completion request. Raises `ApiError`."""
    request = read(_Request, body)
    if request.best_of not in (None, request.n):
        raise invalid("`best_of` must equal `n`: all completions are returned", "best_of")
    if request.n * len(request.prompt) > MAX_CHOICES:
        raise invalid(f"a request can have at most {MAX_CHOICES} choices", "n")
    request.tool_choice = "auto"
    return request.make_request(
        (),
        (),
        request.sampling(defaults, request.max_tokens),
        None,
        prompts=tuple(p if isinstance(p, str) else tuple(p) for p in request.prompt),
        logprobs=request.logprobs is not None,
        top_logprobs=request.logprobs or 0,
        **request.choices(),
    )


def _write_reply(reply: PendingCompletion) -> JSON:
    """Return the reply as a `text_completion` object."""
    choices = [
        _choice(reply, i, visible_content(reply, choice) or "", choice, reply.logprobs(choice))
        for i, choice in enumerate(reply.calls)
    ]
    return {**heading(reply, "text_completion"), "choices": choices, "usage": usage(reply)}


def _choice(
    reply: PendingCompletion,
    index: int,
    text: str,
    choice: Call,
    entries: Sequence[JSON] | None,
) -> JSON:
    out: JSON = {
        "index": index,
        "text": text,
        "logprobs": None if entries is None else _logprobs(reply, entries),
        "finish_reason": finish_reason(choice),
    }
    if reply.request.token_ids:
        out |= {"token_ids": choice.sampled.token_ids, "prompt_token_ids": choice.prompt_ids}
    return out


def _logprobs(reply: PendingCompletion, entries: Sequence[JSON]) -> JSON:
    """Return tokens, log-probabilities and text offsets in the format of the Completions API."""
    tokens = [entry["token"] for entry in entries]
    top = [{e["token"]: e["logprob"] for e in entry["top_logprobs"]} for entry in entries]
    return {
        "tokens": tokens,
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": top if reply.request.top_logprobs else None,
        "text_offset": list(accumulate(map(len, tokens), initial=0))[:-1],
    }


class _Chunks(Writer):
    """Write the stream chunks of a text completion."""

    def text(self, index: int, new: Piece) -> bytes:
        """Return the chunk for a text delta of a choice."""
        more = {"logprobs": None, "finish_reason": None}
        return self._chunk([{"index": index, "text": new.text, **more}])

    def write_end(self, rests: Sequence[Piece]) -> bytes:
        """Return the final chunks: the unsent text and end of each choice, then the usage."""
        out, reply = b"", self._reply
        for i, (choice, rest) in enumerate(zip(reply.calls, rests, strict=True)):
            out += self._chunk([_choice(reply, i, rest.text, choice, rest.logprobs)])
        if reply.request.include_usage:
            out += self._chunk([], usage=usage(reply))
        return out + DONE

    def _chunk(self, choices: list[JSON], **more: JSON) -> bytes:
        return event({**heading(self._reply, "text_completion"), "choices": choices, **more})


COMPLETIONS = Dialect(
    name="completions",
    path="/v1/completions",
    prefix="cmpl-",
    prompt_field="prompt",
    request=_Request,
    read=_read,
    write_reply=_write_reply,
    writer=_Chunks,
)
