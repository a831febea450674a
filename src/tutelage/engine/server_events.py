"""Server-sent events, as they come in pieces of bytes.

The lines are read as the standard (https://html.spec.whatwg.org/multipage/server-sent-events.html)
says, and somewhat more liberally: servers leave out the empty line after an event, or the end of
the last line. `streamed.py` says what the events mean.
"""

from __future__ import annotations

from tutelage.bounded import LONGEST_REPLY, parse_json

DONE = b"[DONE]"
"""The data of the event that ends a stream of OpenAI's APIs."""
_MARK = "\ufeff".encode()
"""May stand before the first line of a stream."""
Event = tuple[bytes, bytes]
"""The kind of an event, empty where it says none, and its data."""


class EventReader:
    """Makes events of bytes. One ends with an empty line; one whose data is JSON also with the next
    data, and the last with the stream."""

    def __init__(self) -> None:
        self._kind = self._rest = b""
        self._data: list[bytes] = []
        self._cut = True
        """Whether it is at the beginning, or perhaps between a CR and its LF."""

    def feed(self, part: bytes) -> list[Event]:
        """The events that have ended with these bytes."""
        if self._cut or b"\r" in part:
            # The same bytes in lines that end with LF.
            if self._cut:
                part = part.removeprefix(_MARK).removeprefix(b"\n")
            self._cut = part.endswith(b"\r")
            part = part.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = (self._rest + part).split(b"\n")
        events: list[Event] = []
        for line in lines:
            if line.startswith(b"data:"):
                self._more(line[5:].strip(), events)
            elif line.startswith(b"event:"):
                self._kind = line[6:].strip()
            elif not line.strip():
                self._end(events)
        return events

    def end(self) -> list[Event]:
        """The events that have ended with the stream."""
        events = self.feed(b"\n")
        self._end(events)
        return events

    def _more(self, data: bytes, events: list[Event]) -> None:
        if len(self._data) == 1 and (data == DONE or _is_json(self._data[0])):
            self._end(events, self._kind)
        if data == DONE:
            events.append((self._kind, data))
        elif data:
            self._data.append(data)

    def _end(self, events: list[Event], next_kind: bytes = b"") -> None:
        if self._data:
            events.append((self._kind, b"\n".join(self._data)))
            self._data = []
        self._kind = next_kind


def _is_json(data: bytes) -> bool:
    try:
        parse_json(data, longest=LONGEST_REPLY)
    except ValueError:
        return False
    return True
