"""What clients send to a gateway: the requests of each attempt, without keys, hosts and machines.

A recorded conversation is a fixture: it is sent again by tests/gateway/test_client_bodies.py, where
no client is installed. Each request after the first is kept as what differs from the one before,
since a conversation repeats itself; `whole` puts it together again.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

KEPT = re.compile(
    r"accept|content-type|anthropic-(version|beta|dangerous.*)|idempotency-key"
    r"|x-stainless-(lang|package-version|retry-count|helper-method|stream-helper|helper)"
)
"""Headers that say what the client wants; others name machines, keys and hosts."""
ATTEMPT = re.compile(r"/rollout/[^/]+/attempt/([^/]+)")
GROWING = ("messages", "input")
JSONObject = dict[str, Any]


class _NotingApp:
    """An app in front of another, whose attributes are the other's."""

    def __init__(self, inner: Any, note: Callable[[Any, bytes, list[int]], None]) -> None:
        self._inner, self._note = inner, note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = bytearray()

        async def received() -> Any:
            message = await receive()
            if message["type"] == "http.request":
                body.extend(message.get("body", b""))
            return message

        statuses: list[int] = []

        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
            await send(message)

        try:
            await self._inner(scope, received, sent)
        finally:
            self._note(scope, bytes(body), statuses)


class RequestLog:
    """The requests that gateways were sent, by attempt."""

    def __init__(self) -> None:
        self._requests: dict[str, list[JSONObject]] = defaultdict(list)

    def served(self, app: Any) -> Any:
        """An ASGI app that does as `app` does, and notes what it is sent."""
        return _NotingApp(app, self._note)

    def of(self, attempt: str) -> list[JSONObject]:
        """The requests of an attempt, in order."""
        return self._requests[attempt]

    def _note(self, scope: Any, body: bytes, statuses: list[int]) -> None:
        named = ATTEMPT.match(scope["path"])
        if named is None:
            return
        headers = {k.decode().lower(): v.decode() for k, v in scope["headers"]}
        request: JSONObject = {
            "method": scope["method"],
            "path": scope["path"].removeprefix(named[0]),
            "status": statuses[0] if statuses else None,
            "key": "x-api-key" if "x-api-key" in headers else "authorization",
            "headers": {k: v for k, v in sorted(headers.items()) if KEPT.fullmatch(k)},
            "body": json.loads(body) if body else None,
        }
        self._requests[named[1]].append(request)


# ---------------------------------------------------------------- fixtures


def save(folder: Path, cells: Iterable[Any], log: RequestLog) -> None:
    """One file a client: its cells, each with what differs from the request before."""
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, JSONObject] = {}
    for cell in cells:
        if cell.error is not None or cell.model == "policy":
            continue  # what a policy samples differs between machines
        name = f"{cell.client}-{cell.version}"
        head = {"client": cell.client, "version": cell.version, "cells": {}}
        file = files.setdefault(name, head)
        file["cells"][cell.id] = {
            "model": cell.model,
            "rows": cell.rows,
            "requests": list(differences(log.of(cell.id))),
        }
    for name, file in files.items():
        (folder / f"{name}.json").write_text(_written(file), encoding="utf-8")


def differences(requests: Iterable[JSONObject]) -> Iterator[JSONObject]:
    """Each request as what differs from the one before."""
    before: JSONObject = {}
    for request in requests:
        yield _difference(before, request)
        before = request


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> JSONObject:
    """The fields that are new or other; of a list that grows, how much of it stays, and the rest;
    of an object, the same of its fields; the names of those that are gone."""
    out: JSONObject = {}
    for name, value in now.items():
        old = before.get(name)
        if name in before and old == value:
            continue
        if isinstance(old, dict) and isinstance(value, dict) and name in ("body", "headers"):
            out[name] = _difference(old, value)
        elif isinstance(old, list) and name in GROWING:
            same = _common(old, value)
            out[name] = {"keep": same, "then": value[same:]}
        else:
            out[name] = value
    gone = sorted(before.keys() - now.keys())
    return {**out, "gone": gone} if gone else out


def _common(old: list[Any], new: list[Any]) -> int:
    """How many leading items are equal."""
    pairs = zip(old, new, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(old), len(new)))


def whole(requests: Iterable[JSONObject]) -> list[JSONObject]:
    """The requests behind `differences`."""
    out: list[JSONObject] = []
    before: JSONObject = {}
    for difference in requests:
        before = _applied(before, difference)
        out.append(before)
    return out


def _applied(before: Mapping[str, Any], difference: Mapping[str, Any]) -> JSONObject:
    gone = difference.get("gone", ())
    out = {name: value for name, value in before.items() if name not in gone}
    for name, value in difference.items():
        old = before.get(name)
        if name == "gone":
            continue
        if isinstance(old, dict) and isinstance(value, dict) and name in ("body", "headers"):
            out[name] = _applied(old, value)
        elif isinstance(old, list) and name in GROWING:
            out[name] = old[: value["keep"]] + value["then"]
        else:
            out[name] = value
    return out


def _written(file: JSONObject) -> str:
    """JSON with a line a request, so that a difference of two recordings can be read."""
    lines = ["{", f'"client": {json.dumps(file["client"])},']
    lines += [f'"version": {json.dumps(file["version"])},', '"cells": {']
    cells = list(file["cells"].items())
    for i, (id, cell) in enumerate(cells):
        head = {name: value for name, value in cell.items() if name != "requests"}
        lines.append(f'{json.dumps(id)}: {json.dumps(head)[:-1]}, "requests": [')
        texts = [json.dumps(r, ensure_ascii=False) for r in cell["requests"]]
        lines.append(",\n".join(texts))
        lines.append("]}" + ("," if i < len(cells) - 1 else ""))
    return "\n".join([*lines, "}}"]) + "\n"
