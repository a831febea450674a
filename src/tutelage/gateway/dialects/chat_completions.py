"""Chat completions: `POST /v1/chat/completions`, its object and the chunks of its stream.

A stream begins with the first text that can no longer change; tool calls, log-probs and the finish
reason follow when sampling has ended. `responses.py` is the other API of OpenAI.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tutelage.gateway.dialects.dialect import Stored
from tutelage.gateway.dialects.reading import (
    SEEDS,
    check_conversation,
    read_format,
    read_sampling,
    read_tool_choice,
    read_tools,
)
from tutelage.gateway.fields import Fields, unsupported
from tutelage.gateway.http import DONE, event
from tutelage.gateway.problems import invalid
from tutelage.gateway.reply import ChatReply, Choice
from tutelage.gateway.request import ChatRequest, constraint_of
from tutelage.types import JSON, Message, Sampling, ToolCall

MAX_CHOICES = 128

_KNOWN = frozenset(
    {
        "model", "messages", "tools", "tool_choice", "parallel_tool_calls", "response_format",
        "stop", "seed", "temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens",
        "n", "logprobs", "top_logprobs", "stream", "stream_options", "return_token_ids",
    }
)  # fmt: skip
_HARMLESS = frozenset(
    {
        "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "prediction",
    }
)  # fmt: skip
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    "reasoning_effort": ("none",),
    "audio": (),
    "web_search_options": (),
    "functions": ([],),
    "function_call": ("auto", "none"),
}
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
"""Roles and how templates know them: a developer's message is a system message."""
_MESSAGE_FIELDS = (
    "role", "content", "name", "tool_calls", "tool_call_id", "refusal", "annotations",
    "reasoning", "reasoning_content", "reasoning_details",
)  # fmt: skip


class ChatCompletions:
    """The dialect; see `Dialect`."""

    name = "chat.completions"
    path = "/v1/chat/completions"
    prefix = "chatcmpl-"

    def read(self, body: Fields, defaults: Sampling, stored: Stored) -> ChatRequest:
        """The request. Raises `ApiError`."""
        body.check_known(_KNOWN, _HARMLESS, _NEUTRAL)
        tools = read_tools(body, "function")
        schema = read_format(body.optional("response_format"), "json_schema")
        choice = read_tool_choice(body, "function", tools)
        stream = body.flag("stream")
        include_usage = _include_usage(body.optional("stream_options"), stream)
        if body.integer("top_logprobs", 0, 20):
            raise invalid(
                "`top_logprobs` above 0 cannot be honoured: only the sampled token's "
                "log-probability is recorded; send `logprobs`: true without it",
                "top_logprobs",
                "unsupported_parameter",
            )
        body.require("messages")
        messages = tuple(_message(each) for each in body.objects("messages"))
        check_conversation(messages, "messages")
        body.require("model")
        return ChatRequest(
            model=body.text("model"),
            messages=messages,
            sampling=read_sampling(body, defaults, "max_completion_tokens", "max_tokens"),
            tools=tools,
            constraint=constraint_of(choice, body.flag("parallel_tool_calls", True), schema, tools),
            seed=body.integer("seed", *SEEDS),
            n=body.integer("n", 1, MAX_CHOICES) or 1,
            stream=stream,
            include_usage=include_usage,
            logprobs=body.flag("logprobs"),
            token_ids=body.flag("return_token_ids"),
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
                    **_ending(reply, choice),
                    **({"token_ids": choice.call.sampled.token_ids} if with_ids else {}),
                }
                for i, choice in enumerate(reply.choices)
            ],
            "usage": _usage(reply),
        }
        if with_ids:
            out["prompt_token_ids"] = reply.choices[0].call.prompt_ids
        return out

    def writer(self, reply: ChatReply) -> Chunks:
        """The stream of a reply."""
        return Chunks(reply)


# ---------------------------------------------------------------- reading


def _include_usage(options: Fields | None, stream: bool) -> bool:
    if options is None:
        return False
    options.only("include_usage", "include_obfuscation")
    wanted = options.flag("include_usage")
    if not stream:
        raise invalid("`stream_options` needs `stream`: true", "stream_options")
    return wanted


def _message(data: Fields) -> Message:
    data.only(*_MESSAGE_FIELDS)
    role = data.choice("role", _ROLES)
    said = data.content("content")
    name = data.optional_text("name")
    if role == "tool":
        return Message(role, said or "", tool_call_id=data.text("tool_call_id"), name=name)
    if role != "assistant":
        return Message(role, said or "", name=name)
    if said is None:
        said = data.optional_text("refusal")
    calls = tuple(_tool_call(each) for each in data.objects("tool_calls"))
    # An empty string beside calls is what some SDKs make of the null that they were sent.
    return Message(role, (said or None) if calls else said or "", calls, name=name)


def _tool_call(data: Fields) -> ToolCall:
    if data.data.get("type", "function") != "function":
        where = data.at("type")
        raise unsupported(where, f"`{where}` must be 'function'")
    function = data.inner("function")
    return ToolCall(data.text("id"), function.text("name"), function.arguments("arguments"))


# ---------------------------------------------------------------- writing


def _head(reply: ChatReply, of: str) -> JSON:
    return {
        "id": reply.id,
        "object": of,
        "created": reply.created,
        "model": reply.request.model,
    }


def _usage(reply: ChatReply) -> JSON:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.total_tokens,
    }


def _written_message(choice: Choice) -> JSON:
    out: JSON = {"role": "assistant", "content": choice.content, "refusal": None}
    if choice.tool_calls:
        out["tool_calls"] = [_written_call(call) for call in choice.tool_calls]
    return out


def _written_call(call: ToolCall) -> JSON:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _ending(reply: ChatReply, choice: Choice) -> JSON:
    entries = reply.logprobs(choice, ends=reply.request.token_ids)
    return {
        "logprobs": None if entries is None else {"content": entries, "refusal": None},
        "finish_reason": choice.finish_reason,
    }


class Chunks:
    """The chunks of a stream; see `Writer`."""

    def __init__(self, reply: ChatReply) -> None:
        self._head = _head(reply, "chat.completion.chunk")
        self._include_usage = reply.request.include_usage
        self._begun = [False] * reply.request.n

    def text(self, index: int, new: str) -> bytes:
        """More text of a choice."""
        return self._begin(index) + self._chunk(index, {"content": new})

    def finish(self, reply: ChatReply, rests: Sequence[str]) -> bytes:
        """What is left of each choice, its tool calls and its end; then what was used."""
        out = b""
        for i, (choice, rest) in enumerate(zip(reply.choices, rests, strict=True)):
            out += self.text(i, rest) if rest else self._begin(i)
            for at, call in enumerate(choice.tool_calls):
                head = {**_written_call(replace(call, arguments="")), "index": at}
                out += self._chunk(i, {"tool_calls": [head]})
                said = {"index": at, "function": {"arguments": call.arguments}}
                out += self._chunk(i, {"tool_calls": [said]})
            out += self._last(i, reply, choice)
        if self._include_usage:
            out += event({**self._head, "choices": [], "usage": _usage(reply)})
        return out + DONE

    def failed(self, error: JSON) -> bytes:
        """What a stream that breaks ends with."""
        return event(error)

    def _begin(self, index: int) -> bytes:
        if self._begun[index]:
            return b""
        self._begun[index] = True
        return self._chunk(index, {"role": "assistant", "content": ""})

    def _last(self, index: int, reply: ChatReply, choice: Choice) -> bytes:
        if not reply.request.token_ids:
            return self._chunk(index, {}, _ending(reply, choice))
        ending = {**_ending(reply, choice), "token_ids": choice.call.sampled.token_ids}
        return self._chunk(index, {}, ending, prompt_token_ids=choice.call.prompt_ids)

    def _chunk(
        self, index: int, delta: JSON, ending: JSON | None = None, **further: object
    ) -> bytes:
        more = ending or {"logprobs": None, "finish_reason": None}
        usage = {"usage": None} if self._include_usage else {}
        choice = {"index": index, "delta": delta, **more}
        return event({**self._head, "choices": [choice], **further, **usage})
