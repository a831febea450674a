"""Chat completions: `POST /v1/chat/completions`, its object and the chunks of its stream.

A stream begins with the first text that can no longer change; tool calls and the finish reason
follow when sampling has ended, but those of another server come as they do there. `responses.py` is
the other API of OpenAI.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal, cast

from pydantic import BaseModel, Field, StrictBool, StrictInt, StrictStr

from tutelage.gateway.dialects.dialect import Path
from tutelage.gateway.dialects.reading import (
    MAX_TOOLS,
    UNHONOURED,
    Arguments,
    Content,
    FunctionTool,
    Items,
    MessageObject,
    RequestObject,
    RequestReader,
    TopLogprobs,
    missing,
    read,
    reply_schema,
    tool_specs,
)
from tutelage.gateway.dialects.stored import StoredResponses
from tutelage.gateway.errors import ApiError, invalid
from tutelage.gateway.http import DONE, event
from tutelage.gateway.reply import ChatReply, Piece, finish_reason, shown_content
from tutelage.gateway.request import ChatRequest
from tutelage.types import JSON, Call, Message, Sampling, ToolCall

MAX_CHOICES = 128


class _Tool(BaseModel):
    type: Literal["function"]
    function: FunctionTool


class _CalledFunction(BaseModel):
    name: StrictStr
    arguments: Arguments


class _ToolCall(BaseModel):
    type: Literal["function"] | None = None
    id: StrictStr
    function: _CalledFunction


class _Message(MessageObject):
    neutral: ClassVar[Mapping[str, Sequence[Any]]] = {
        "prefix": (False,),
        "partial": (False,),
        "audio": (),
        "function_call": (),
    }
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: StrictStr | None = None
    refusal: StrictStr | None = None
    tool_calls: Items[_ToolCall] = Field(default_factory=lambda: [])
    tool_call_id: StrictStr | None = None


class _Schema(RequestObject):
    harmless = ("type", "name", "description", "strict")
    wanted: JSON = Field(alias="schema")


class _Format(BaseModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _Schema | None = None


class StreamOptions(RequestObject):
    """What a stream carries beside its choices."""

    harmless = ("include_obfuscation",)
    include_usage: StrictBool = False


class _Request(RequestReader):
    harmless = (
        "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "prediction", "verbosity",
    )  # fmt: skip
    neutral: ClassVar[Mapping[str, Sequence[Any]]] = {
        **UNHONOURED,
        "chat_template_kwargs": ({},),
        "add_generation_prompt": (True,),
        "continue_final_message": (False,),
        "modalities": (["text"],),
        "reasoning_effort": ("none",),
        "audio": (),
        "web_search_options": (),
        "functions": ([],),
        "function_call": ("auto", "none"),
    }
    messages: Items[_Message] = Field(min_length=1)
    tools: Items[_Tool] = Field(default_factory=lambda: [], max_length=MAX_TOOLS)
    response_format: _Format | None = None
    max_tokens: StrictInt | None = Field(None, ge=1)
    max_completion_tokens: StrictInt | None = Field(None, ge=1)
    n: StrictInt = Field(1, ge=1, le=MAX_CHOICES)
    logprobs: StrictBool = False
    top_logprobs: TopLogprobs = 0
    stream_options: StreamOptions | None = None
    return_token_ids: StrictBool = False


class ChatCompletions:
    """The dialect; see `Dialect`."""

    name = "chat.completions"
    path = "/v1/chat/completions"
    prefix = "chatcmpl-"
    prompt_field = "messages"
    request = _Request
    paths: Mapping[str, Mapping[str, Path]] = MappingProxyType({})

    def read(self, body: JSON, defaults: Sampling, stored: StoredResponses) -> ChatRequest:
        """The request. Raises `ApiError`."""
        request = read(_Request, body)
        if request.stream_options is not None and not request.stream:
            raise invalid("`stream_options` needs `stream`: true", "stream_options")
        if request.top_logprobs and not request.logprobs:
            raise invalid("`top_logprobs` needs `logprobs`: true", "top_logprobs")
        tools = tool_specs([tool.function for tool in request.tools])
        return ChatRequest(
            model=request.model,
            messages=tuple(_message(each, i) for i, each in enumerate(request.messages)),
            sampling=request.sampling(
                defaults, request.max_completion_tokens or request.max_tokens
            ),
            tools=tools,
            constraint=request.constraint(tools, _schema(request.response_format)),
            seed=request.seed,
            n=request.n,
            stream=request.stream,
            include_usage=request.stream_options is not None
            and request.stream_options.include_usage,
            logprobs=request.logprobs,
            top_logprobs=request.top_logprobs,
            token_ids=request.return_token_ids,
        )

    def written(self, reply: ChatReply) -> JSON:
        """The `chat.completion` object."""
        with_ids = reply.request.token_ids
        out: JSON = {
            **_head(reply, "chat.completion"),
            "choices": [
                {
                    "index": i,
                    "message": _written_message(choice),
                    **_ending(choice, reply.logprobs(choice)),
                    **({"token_ids": choice.sampled.token_ids} if with_ids else {}),
                }
                for i, choice in enumerate(reply.choices)
            ],
            "usage": _usage(reply),
            **_more(reply),
        }
        if with_ids:
            out["prompt_token_ids"] = reply.choices[0].prompt_ids
        return out

    def writer(self, reply: ChatReply) -> _Chunks:
        """The stream of a reply."""
        return _Chunks(reply)

    def error(self, error: ApiError) -> JSON:
        """OpenAI's error object."""
        return error.body()


# ---------------------------------------------------------------- reading


def _message(given: _Message, position: int) -> Message:
    # Templates know a developer's message as a system message.
    role = "system" if given.role == "developer" else given.role
    text = given.content
    if role == "tool" and given.tool_call_id is None:
        raise missing(f"messages[{position}].tool_call_id")
    if role != "assistant":
        answered = given.tool_call_id if role == "tool" else None
        return Message(
            role, text or "", tool_call_id=answered, name=given.name, extra=given.model_extra or {}
        )
    if text is None:
        text = given.refusal
    calls = tuple(
        ToolCall(each.id, each.function.name, each.function.arguments) for each in given.tool_calls
    )
    # An empty string beside calls is what some SDKs make of the null that they were sent.
    said = (text or None) if calls else text or ""
    return Message(role, said, calls, name=given.name, extra=given.model_extra or {})


def _schema(wanted: _Format | None) -> JSON | None:
    if wanted is None:
        return None
    named = wanted.json_schema
    schema = None if named is None else named.wanted
    return reply_schema(wanted.type, schema, "response_format.json_schema")


# ---------------------------------------------------------------- writing


def _head(reply: ChatReply, of: str) -> JSON:
    return {
        "id": reply.answer.id,
        "object": of,
        "created": reply.answer.created,
        "model": reply.request.model,
    }


def usage(reply: ChatReply) -> JSON:
    """The tokens that a reply used, in OpenAI's words."""
    prompt, sampled = reply.usage
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }


def _usage(reply: ChatReply) -> JSON:
    """Those, with what another server counted beside them."""
    out: JSON = {}
    for told in reply.answered():
        for name, value in told.usage.items():
            # A prompt is counted once, whatever its choices; the rest is their sum.
            out[name] = _sum(out.get(name), value) if name.startswith("completion") else value
    return out | usage(reply)


def _sum(one: Any, other: Any) -> Any:
    """Two counts, or two objects of counts."""
    if isinstance(one, dict) and isinstance(other, dict):
        known, new = cast("JSON", one), cast("JSON", other)
        return {name: _sum(known.get(name), new.get(name)) for name in known | new}
    return one + other if isinstance(one, int) and isinstance(other, int) else one or other


def _more(reply: ChatReply) -> JSON:
    """Further fields of another server's answer."""
    return dict(next((told.more for told in reply.answered()), {}))


def _written_message(choice: Call) -> JSON:
    told = choice.reply.to_dict(extra=True)
    # Who refuses says nothing else.
    content = told["content"] if "refusal" in choice.reply.extra else shown_content(choice)
    return {"refusal": None, **told, "content": content}


def _ending(choice: Call, entries: Sequence[JSON] | None) -> JSON:
    return {"logprobs": _logprobs(entries), "finish_reason": finish_reason(choice)}


def _logprobs(entries: Sequence[JSON] | None) -> JSON | None:
    return None if entries is None else {"content": entries, "refusal": None}


class _Chunks:
    """The chunks of a stream; see `Writer`."""

    tells_fields = True

    def __init__(self, reply: ChatReply) -> None:
        self._head = _head(reply, "chat.completion.chunk")
        self._include_usage = reply.request.include_usage
        self._begun = [False] * reply.request.n
        self._told: list[set[str]] = [set() for _ in self._begun]
        """Fields of each choice that went out before its end."""

    def text(self, index: int, new: Piece) -> bytes:
        """More text of a choice, or of its thought or tool calls."""
        said = {"logprobs": _logprobs(new.logprobs), "finish_reason": None}
        self._told[index].update(new.fields)
        return self._begin(index) + self._chunk(index, new.fields or {"content": new.text}, said)

    def finish(self, reply: ChatReply, rests: Sequence[Piece]) -> bytes:
        """What is left of each choice, its tool calls and its end; then what was used."""
        out = b""
        for i, (choice, rest) in enumerate(zip(reply.choices, rests, strict=True)):
            out += self.text(i, rest) if rest.text else self._begin(i)
            told = self._told[i]
            if more := {k: v for k, v in choice.reply.extra.items() if k not in told}:
                out += self._chunk(i, more)
            calls = () if "tool_calls" in told else choice.reply.to_dict().get("tool_calls", ())
            for at, call in enumerate(calls):
                head = {**call, "function": {**call["function"], "arguments": ""}, "index": at}
                out += self._chunk(i, {"tool_calls": [head]})
                fields = {"index": at, "function": {"arguments": call["function"]["arguments"]}}
                out += self._chunk(i, {"tool_calls": [fields]})
            # Where no text is left, the tokens that are none are told with the end.
            out += self._last(i, reply, choice, None if rest.text else rest.logprobs or None)
        if self._include_usage:
            out += event({**self._head, "choices": [], "usage": _usage(reply)})
        return out + DONE

    def failed(self, error: ApiError) -> bytes:
        """What a stream that breaks ends with."""
        return event(error.body())

    def _begin(self, index: int) -> bytes:
        if self._begun[index]:
            return b""
        self._begun[index] = True
        return self._chunk(index, {"role": "assistant", "content": ""})

    def _last(
        self, index: int, reply: ChatReply, choice: Call, entries: Sequence[JSON] | None
    ) -> bytes:
        more = _more(reply)
        if not reply.request.token_ids:
            return self._chunk(index, {}, _ending(choice, entries), **more)
        ending = {**_ending(choice, entries), "token_ids": choice.sampled.token_ids}
        return self._chunk(index, {}, ending, prompt_token_ids=choice.prompt_ids, **more)

    def _chunk(
        self, index: int, delta: JSON, ending: JSON | None = None, **further: object
    ) -> bytes:
        more = ending or {"logprobs": None, "finish_reason": None}
        usage = {"usage": None} if self._include_usage else {}
        choice = {"index": index, "delta": delta, **more}
        return event({**self._head, "choices": [choice], **further, **usage})
