"""What the chunks of a stream add up to."""

from __future__ import annotations

from typing import Any

from tutelage.engine.remote import add_chunk, add_delta


def test_texts_lists_and_objects_grow() -> None:
    deltas: list[dict[str, Any]] = [
        {"content": None, "reasoning": "R", "id": "x"},
        {"content": "", "reasoning": "S", "extra": {"note": "n", "list": [1]}, "id": "x"},
        {"content": "It ", "extra": {"note": "m", "list": [2]}},
        {"content": "is.", "refusal": None},
    ]
    whole: dict[str, Any] = {}
    for delta in deltas:
        add_delta(whole, delta)
    assert whole == {
        "content": "It is.",
        "reasoning": "RS",
        "id": "x",
        "extra": {"note": "nm", "list": [1, 2]},
    }
    assert deltas[1]["extra"] == {"note": "n", "list": [1]}, "others have the deltas too"


def test_entries_of_one_index_and_type_are_one() -> None:
    def detail(kind: str, at: int, **more: str) -> dict[str, Any]:
        return {"details": [{"type": kind, "index": at, **more}]}

    whole: dict[str, Any] = {}
    for delta in (
        detail("text", 0, text="Hm", format="f"), detail("text", 0, text=", so.", format="f"),
        detail("text", 0, signature="s"), detail("secret", 0, data="x"),
        detail("text", 1, text="?"),
    ):  # fmt: skip
        add_delta(whole, delta)
    assert whole["details"] == [
        {"type": "text", "index": 0, "text": "Hm, so.", "format": "f", "signature": "s"},
        {"type": "secret", "index": 0, "data": "x"},
        {"type": "text", "index": 1, "text": "?"},
    ]


def test_chunks_add_up_to_a_completion_with_its_token_ids() -> None:
    completion: dict[str, Any] = {"choices": [{"message": {"content": None}}]}
    first = {"function": {"name": "f", "arguments": ""}, "id": "c", "type": "function", "index": 0}
    rest = {"function": {"arguments": '{"a": 1}'}, "index": 0}
    entry = {"token": "a", "logprob": -0.5}
    for choice in (
        {"delta": {"role": "assistant", "content": "a"}, "logprobs": {"content": [entry]},
         "token_ids": [5]},
        {"delta": {"tool_calls": [first]}, "token_ids": [6, 7]},
        {"delta": {"tool_calls": [rest]}},
        {"delta": {"content": "another choice"}, "index": 1, "finish_reason": "length"},
        {"delta": {}, "finish_reason": "stop"},
    ):  # fmt: skip
        delta = add_chunk(completion, {"id": "x", "choices": [{"index": 0, **choice}]})
        assert delta == (choice["delta"] if choice.get("index", 0) == 0 else {})
    assert add_chunk(completion, {"choices": [], "usage": {"prompt_tokens": 3}}) == {}
    (choice,) = completion["choices"]
    assert completion["usage"] == {"prompt_tokens": 3}
    assert (choice["finish_reason"], choice["token_ids"]) == ("stop", [5, 6, 7])
    assert choice["logprobs"]["content"] == [entry]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert choice["message"]["content"] == "a"
