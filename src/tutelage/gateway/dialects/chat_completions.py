"""The Chat Completions API, `POST /v1/chat/completions`: its object and stream chunks.

A stream starts with the first text that is final; tool calls and the finish reason follow when
sampling has ended. `responses.py` is the other API of OpenAI.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import AliasPath, BaseModel, Field, StrictBool, StrictInt, StrictStr

from tutelage.gateway.completions import AnswerCache, Delta, PendingCompletion
from tutelage.gateway.dialects.dialect import Dialect
from tutelage.gateway.dialects.field_errors import missing_field
from tutelage.gateway.dialects.reading import (
    MAX_MESSAGES,
    MAX_TOOLS,
    UNSUPPORTED,
    Arguments,
    ChoicesReader,
    Content,
    FunctionTool,
    Items,
    MessageObject,
    ReplyFormat,
    TopLogprobs,
    call_fields,
    read_parts,
    reply_schema,
    validate,
)
from tutelage.gateway.errors import bad_request
from tutelage.gateway.reply import (
    DONE,
    Writer,
    event,
    finish_reason,
    stop_sequence,
    visible_content,
)
from tutelage.gateway.request import ChatRequest
from tutelage.types import JSON, Call, Message, Sampling, ToolCall

_NO_ITEMS: Callable[[], list[Any]] = list


class _Tool(BaseModel):
    type: Literal["function"]
    function: FunctionTool


class _ToolCall(MessageObject):
    type: Literal["function"] | None = None
    id: StrictStr
    name: StrictStr = Field(validation_alias=AliasPath("function", "name"))
    arguments: Arguments = Field(validation_alias=AliasPath("function", "arguments"))


class _Message(MessageObject):
    refused: ClassVar[Mapping[str, Sequence[Any]]] = {
        "prefix": (False,),
        "partial": (False,),
        "audio": (),
        "function_call": (),
    }
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: StrictStr | None = None
    refusal: StrictStr | None = None
    tool_calls: Items[_ToolCall] = Field(default_factory=_NO_ITEMS)
    tool_call_id: StrictStr | None = None


class _Request(ChoicesReader):
    refused: ClassVar[Mapping[str, Sequence[Any]]] = {
        **UNSUPPORTED,
        "add_generation_prompt": (True,),
        "continue_final_message": (False,),
        "modalities": (["text"],),
        "audio": (),
        "functions": ([],),
        "function_call": ("auto", "none"),
    }
    messages: Items[_Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    tools: Items[_Tool] = Field(default_factory=_NO_ITEMS, max_length=MAX_TOOLS)
    response_format: ReplyFormat | None = None
    max_tokens: StrictInt | None = Field(None, ge=1)
    max_completion_tokens: StrictInt | None = Field(None, ge=1)
    logprobs: StrictBool = False
    top_logprobs: TopLogprobs = 0


def _parse(body: JSON, defaults: Sampling, cache: AnswerCache) -> ChatRequest:
    """Parse a chat completion request. Raises `ApiError`."""
    request = validate(_Request, body)
    if request.top_logprobs and not request.logprobs:
        raise bad_request("`top_logprobs` requires `logprobs`: true", "top_logprobs")
    pairs = zip(request.messages, body["messages"], strict=True)
    return request.make_request(
        tuple(_to_message(each, raw, f"messages[{i}]") for i, (each, raw) in enumerate(pairs)),
        [tool.function for tool in request.tools],
        request.sampling(defaults, request.max_completion_tokens or request.max_tokens),
        reply_schema(request.response_format, "response_format.json_schema"),
        logprobs=request.logprobs,
        top_logprobs=request.top_logprobs,
        **request.choice_fields(request.prompt_logprobs),
    )


def _to_message(message: _Message, raw: JSON, path: str) -> Message:
    # Chat templates have no developer role.
    role = "system" if message.role == "developer" else message.role
    text, extra = message.content, (message.model_extra or {}) | read_parts(raw, "content")
    if text is None and role in ("system", "user"):
        raise missing_field(f"{path}.content")
    if role == "tool" and message.tool_call_id is None:
        raise missing_field(f"{path}.tool_call_id")
    if role != "assistant":
        call_id = message.tool_call_id if role == "tool" else None
        return Message(role, text or "", tool_call_id=call_id, name=message.name, extra=extra)
    uses = message.tool_calls
    calls = tuple(ToolCall(each.id, each.name, each.arguments) for each in uses)
    extra |= call_fields([(each.id, each.model_extra) for each in uses])
    text = message.refusal if text is None else text
    # Some SDKs return an empty string for the null content beside calls.
    return Message(role, (text or None) if calls else text or "", calls, None, message.name, extra)


# ---------------------------------------------------------------- writing


def _write_reply(reply: PendingCompletion) -> JSON:
    """Return the reply as a `chat.completion` object."""
    with_ids = reply.request.token_ids
    choices: list[JSON] = []
    for i, choice in enumerate(reply.calls):
        fields = choice.reply.to_dict(extra=True)
        # A refusal has no other content.
        content = None if fields.get("refusal") else visible_content(reply, choice)
        ids = {"token_ids": choice.sampled.token_ids} if with_ids else {}
        message = {"refusal": None, **fields, "content": content}
        ending = _final_fields(reply, choice, reply.logprobs(choice))
        choices.append({"index": i, "message": message, **ending, **ids})
    out: JSON = {**base_fields(reply, "chat.completion"), "choices": choices, "usage": usage(reply)}
    if with_ids:
        out["prompt_token_ids"] = reply.calls[0].prompt_ids
    if reply.request.scored is not None:
        out["prompt_logprobs"] = prompt_logprobs(reply, 0)
    return out


def prompt_logprobs(reply: PendingCompletion, index: int) -> list[JSON | None]:
    """Return the prompt log-probabilities of a choice in vLLM's format."""
    decoder, out = reply.model.decoder, list[JSON | None]()
    assert decoder is not None
    for token, (value, top) in zip(reply.calls[index].prompt_ids, reply.scored[index], strict=True):
        tokens = {
            str(id): {"logprob": logprob, "decoded_token": decoder.decode([id])}
            for id, logprob in {**dict(top), token: value}.items()
        }
        out.append(None if value is None else tokens)
    return out


def base_fields(reply: PendingCompletion, kind: str) -> JSON:
    """Return the fields common to a response object and its stream chunks."""
    return {
        "id": reply.id,
        "object": kind,
        "created": reply.created,
        "model": reply.request.model,
    }


def usage(reply: PendingCompletion) -> JSON:
    """Return the token usage of a reply in OpenAI's format."""
    prompt, sampled = reply.usage
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }


def _final_fields(reply: PendingCompletion, choice: Call, entries: Sequence[JSON] | None) -> JSON:
    """Return the final fields of a choice. `stop_reason` is vLLM's field for the matched stop
    string."""
    reason = finish_reason(choice)
    stop = stop_sequence(reply, choice) if reason == "stop" else None
    stopped = {} if stop is None else {"stop_reason": stop}
    return {"logprobs": _format_logprobs(entries), "finish_reason": reason, **stopped}


def _format_logprobs(entries: Sequence[JSON] | None) -> JSON | None:
    return None if entries is None else {"content": entries, "refusal": None}


class _ChunkWriter(Writer):
    """Writer of the stream chunks of a chat completion."""

    def __init__(self, reply: PendingCompletion) -> None:
        super().__init__(reply)
        self._head = base_fields(reply, "chat.completion.chunk")
        self._include_usage = reply.request.include_usage
        self._begun = [False] * reply.request.n
        self._sent: list[set[str]] = [set() for _ in self._begun]
        """Fields of each choice that were sent before its end."""

    def write(self, index: int, delta: Delta) -> bytes:
        """Return the chunk for a text or thinking delta of a choice."""
        fields = {"logprobs": _format_logprobs(delta.logprobs), "finish_reason": None}
        self._sent[index].add(name := delta.thought)
        return self._begin(index) + self._chunk(index, {name or "content": delta.text}, fields)

    def write_end(self, deltas: Sequence[Delta]) -> bytes:
        """Return the final chunks: the unsent text, tool calls and end of each choice, then the
        usage."""
        out, reply = b"", self._reply
        for i, (choice, rest) in enumerate(zip(reply.calls, deltas, strict=True)):
            out += self.write(i, rest) if rest.text else self._begin(i)
            if more := {k: v for k, v in choice.reply.extra.items() if k not in self._sent[i]}:
                out += self._chunk(i, more)
            for at, call in enumerate(choice.reply.to_dict().get("tool_calls", ())):
                out += self._chunk(i, {"tool_calls": [{**call, "index": at}]})
            # Without remaining text, entries of tokens without text go with the end.
            ending = _final_fields(reply, choice, None if rest.text else rest.logprobs or None)
            if reply.request.token_ids:
                ending["token_ids"] = choice.sampled.token_ids
                out += self._chunk(i, {}, ending, prompt_token_ids=choice.prompt_ids)
            else:
                out += self._chunk(i, {}, ending)
        if self._include_usage:
            out += event({**self._head, "choices": [], "usage": usage(reply)})
        return out + DONE

    def _begin(self, index: int) -> bytes:
        if self._begun[index]:
            return b""
        self._begun[index] = True
        return self._chunk(index, {"role": "assistant", "content": ""})

    def _chunk(
        self, index: int, delta: JSON, ending: JSON | None = None, **further: object
    ) -> bytes:
        rest = ending or {"logprobs": None, "finish_reason": None}
        usage = {"usage": None} if self._include_usage else {}
        choice = {"index": index, "delta": delta, **rest}
        return event({**self._head, "choices": [choice], **further, **usage})


CHAT_COMPLETIONS = Dialect(
    name="chat.completions",
    path="/v1/chat/completions",
    prefix="chatcmpl-",
    prompt_field="messages",
    request=_Request,
    read=_parse,
    write_reply=_write_reply,
    writer=_ChunkWriter,
)
