"""Writing of Responses: the object, and the events of a stream.

The events are the subset that every SDK needs, each with its `sequence_number`: created,
in_progress, output items and content parts added and done, deltas of text and arguments, and
completed, incomplete or failed. `chat_reply.py` is the other API, `responses_request.py` the other
direction.
"""

from __future__ import annotations

from tutelage.gateway.answers import Answer
from tutelage.gateway.chat_reply import DONE, shown_content, token_entries
from tutelage.gateway.door import Model, usage
from tutelage.gateway.http import event
from tutelage.gateway.responses_request import ResponseAsk
from tutelage.gateway.text import TextStream, can_stream
from tutelage.types import JSON, Call, StopReason


def response_object(
    answer: Answer, asked: ResponseAsk, model: Model, status: str | None = None
) -> JSON:
    """The `response` object; without `status` that of the answer, which has then ended."""
    out: JSON = {
        "id": answer.id,
        "object": "response",
        "created_at": answer.created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": asked.ask.model,
        "output": [],
        "reasoning": {"effort": None, "summary": None},
        "temperature": asked.ask.sampling.temperature,
        "top_p": asked.ask.sampling.top_p,
        "usage": None,
        **asked.echo,
    }
    if status is not None:
        return out
    (call,) = answer.calls
    prompt, sampled = usage(model.client, [call])
    out["status"] = "completed"
    if call.sampled.stop_reason is StopReason.LENGTH and not call.reply.tool_calls:
        out["status"] = "incomplete"
        out["incomplete_details"] = {"reason": "max_output_tokens"}
    out["output"] = output_items(answer, call, model)
    out["usage"] = {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + sampled,
    }
    return out


def output_items(answer: Answer, call: Call, model: Model) -> list[JSON]:
    """The turn as items: a message when it says something, then its function calls."""
    items: list[JSON] = []
    content = shown_content(call)
    if content is not None:
        status = "incomplete" if call.sampled.stop_reason is StopReason.LENGTH else "completed"
        part = _part(content)
        if answer.ask.logprobs and model.decoder is not None:
            part["logprobs"] = token_entries(call, model.decoder)
        items.append({**_message(answer), "status": status, "content": [part]})
    for i, tool in enumerate(call.reply.tool_calls):
        items.append(
            {
                "id": f"{answer.id.replace('resp_', 'fc_', 1)}-{i}",
                "type": "function_call",
                "status": "completed",
                "call_id": tool.id,
                "name": tool.name,
                "arguments": tool.arguments,
            }
        )
    return items


def _message(answer: Answer) -> JSON:
    return {
        "id": answer.id.replace("resp_", "msg_", 1),
        "type": "message",
        "status": "in_progress",
        "role": "assistant",
        "content": [],
    }


def _part(text: str) -> JSON:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class ResponseStream:
    """The events of one streamed answer, as bytes to send."""

    def __init__(self, answer: Answer, asked: ResponseAsk, model: Model) -> None:
        self._answer, self._asked, self._model = answer, asked, model
        self._number = 0
        self._begun = self._talking = False
        self._read = 0
        decoder = model.decoder
        self._text = (
            TextStream(decoder, answer.ask.sampling.stop)
            if decoder is not None and can_stream(decoder)
            else None
        )

    def feed(self) -> bytes:
        """What the tokens that came since the last call allow to be sent."""
        ids = self._answer.tokens[0]
        if self._text is None or len(ids) == self._read:
            return b""
        new = self._text.feed(ids[self._read :])
        self._read = len(ids)
        return self._begin() + self._talk() + self._delta(new) if new else b""

    def finish(self) -> bytes:
        """The rest, once sampling has ended. Raises what sampling raised."""
        final = response_object(self._answer, self._asked, self._model)
        (call,) = self._answer.calls
        out = self._begin()
        for index, item in enumerate(final["output"]):
            if item["type"] == "message":
                content = shown_content(call) or ""
                out += self._talk()
                rest = content if self._text is None else self._text.finish(content)
                out += (self._delta(rest) if rest else b"") + self._said(item)
            else:
                out += self._called(item, index)
        kind = "response.incomplete" if final["status"] == "incomplete" else "response.completed"
        return out + self._event(kind, response=final) + DONE

    def failed(self, error: JSON) -> bytes:
        """What a stream that breaks ends with."""
        told = {k: error["error"][k] for k in ("code", "message", "param")}
        final = response_object(self._answer, self._asked, self._model, "failed")
        final["error"] = {"code": told["code"] or "server_error", "message": told["message"]}
        return self._event("error", **told) + self._event("response.failed", response=final)

    def _begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        running = response_object(self._answer, self._asked, self._model, "in_progress")
        return self._event("response.created", response=running) + self._event(
            "response.in_progress", response=running
        )

    def _talk(self) -> bytes:
        """Open the message; it is always the first item."""
        if self._talking:
            return b""
        self._talking = True
        message = _message(self._answer)
        return self._event(
            "response.output_item.added", output_index=0, item=message
        ) + self._event(
            "response.content_part.added",
            item_id=message["id"],
            output_index=0,
            content_index=0,
            part=_part(""),
        )

    def _delta(self, text: str) -> bytes:
        return self._event(
            "response.output_text.delta",
            item_id=_message(self._answer)["id"],
            output_index=0,
            content_index=0,
            delta=text,
            logprobs=[],
        )

    def _said(self, item: JSON) -> bytes:
        part = item["content"][0]
        where: JSON = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        return (
            self._event(
                "response.output_text.done",
                **where,
                text=part["text"],
                logprobs=part["logprobs"],
            )
            + self._event("response.content_part.done", **where, part=part)
            + self._event("response.output_item.done", output_index=0, item=item)
        )

    def _called(self, item: JSON, index: int) -> bytes:
        where: JSON = {"item_id": item["id"], "output_index": index}
        begun = {**item, "arguments": "", "status": "in_progress"}
        said = item["arguments"]
        return (
            self._event("response.output_item.added", output_index=index, item=begun)
            + self._event("response.function_call_arguments.delta", **where, delta=said)
            + self._event(
                "response.function_call_arguments.done",
                **where,
                name=item["name"],
                arguments=said,
            )
            + self._event("response.output_item.done", output_index=index, item=item)
        )

    def _event(self, kind: str, **data: object) -> bytes:
        number, self._number = self._number, self._number + 1
        return event({"type": kind, "sequence_number": number, **data}, kind)
