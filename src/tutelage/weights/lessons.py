"""Demonstrations as token rows: what a supervised step is made of.

Each turn is encoded as it would have been sampled and observed, and only what the assistant wrote
is trained (`Codec.demonstration`). What does not fit the model is refused with its file and line
before any weight is read. `tasks/demonstrations.py` reads the files, `sft.py` trains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tutelage.errors import DataError, ModelError
from tutelage.policy.codec import Codec
from tutelage.policy.row import Row
from tutelage.tasks.demonstrations import Demonstration


@dataclass(frozen=True, slots=True)
class Lessons:
    """Token rows to train on, and others to measure the loss on."""

    train: Sequence[Row]
    val: Sequence[Row] = ()


def encode(codec: Codec, shown: Sequence[Demonstration], limit: int) -> list[Row]:
    """The rows of demonstrations, each of at most `limit` tokens.

    Raises `DataError` with file and line for one that is longer, or that the chat template refuses.
    """
    return [_row(codec, one, limit) for one in shown]


def texts(shown: Sequence[Demonstration]) -> Iterator[str]:
    """What demonstrations say, for a tokenizer of their own."""
    for one in shown:
        if one.tools:
            names = (
                f"{t.name}({', '.join(t.parameters.get('properties', {}))})" for t in one.tools
            )
            yield f"system\nTools: {' '.join(names)}\nuser\nassistant\ntool\n"
        for message in one.messages:
            if message.content:
                yield message.content
            for call in message.tool_calls:
                yield f'{{"name": "{call.name}", "arguments": {call.arguments}}}'


def _row(codec: Codec, one: Demonstration, limit: int) -> Row:
    try:
        row = Row(*codec.demonstration(one.messages, one.tools))
    except ModelError as error:
        raise DataError(f"{one.place}: field 'messages': {error}") from error
    if len(row.ids) > limit:
        raise DataError(
            f"{one.place}: field 'messages' has {len(row.ids)} tokens, more than {limit}; shorten "
            "it, or raise data.max_length as far as the model allows"
        )
    return row
