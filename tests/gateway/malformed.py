"""Bodies that no client should send: those of real clients, changed at random."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
from benchmarks.gateway.recording import whole

JSON = dict[str, Any]
BODIES = Path(__file__).parent / "bodies"
GOOD: JSON = {"model": "scripted", "messages": [{"role": "user", "content": "What is 12 + 34?"}]}
DEEP: Any = json.loads("[" * 300 + "]" * 300)
JUNK: list[Any] = [
    None, True, False, -1, 0, 1e308, 1 << 70, "", "x" * 20_000, "\x00", "\ud800", [], {}, [None],
    [[[]]], {"type": "object", "$ref": "#"}, {"": {}}, "required", DEEP,
]  # fmt: skip


def real_requests() -> list[tuple[str, JSON]]:
    """Path and body of what real clients sent."""
    found: list[tuple[str, JSON]] = []
    for file in sorted(BODIES.glob("*.json")):
        for cell in json.loads(file.read_text("utf-8"))["cells"].values():
            found += [(r["path"], r["body"]) for r in whole(cell["requests"]) if r.get("body")]
    return found


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Each place in a body."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield (*path, name)
            yield from places(each, (*path, name))
    elif isinstance(value, list):
        for i, each in enumerate(value):
            yield (*path, i)
            yield from places(each, (*path, i))


def change(body: JSON, dice: random.Random) -> None:
    """Change one place of a body."""
    found = list(places(body))
    if not found:
        return
    *path, last = dice.choice(found)
    inside: Any = body
    for step in path:
        inside = inside[step]
    kind = dice.randrange(5)
    if kind == 0:
        del inside[last]
    elif kind == 1 and isinstance(inside, list):
        inside.insert(last, copy.deepcopy(inside[last]))
    elif kind == 2 and isinstance(inside, dict):
        inside[dice.choice(["nonsense", "type", "role", "content", "schema", "n"])] = inside[last]
    elif kind == 3:
        inside[last] = [inside[last]]
    else:
        inside[last] = copy.deepcopy(dice.choice(JUNK))


def broken(content: bytes, dice: random.Random) -> bytes:
    """Change the bytes of a body."""
    at = dice.randrange(len(content) + 1)
    return dice.choice([
        content[:at],
        content[:at] + dice.randbytes(4) + content[at:],
        content[:at] + dice.choice([b"NaN", b"1e999", b"{", b"]", b'"', b"\xff", b"\\u"])
        + content[at + 1 :],
        b"\xef\xbb\xbf" + content,
        content.decode("latin-1").encode("utf-16"),
        b"[" * 100_000,
        content + content,
        b"",
    ])  # fmt: skip


def malformed(count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Paths and bodies, the same for a seed; each dialect is as frequent as any other."""
    dice = random.Random(seed)
    by_path: dict[str, list[JSON]] = {}
    for path, body in real_requests():
        by_path.setdefault(path, []).append(body)
    for i in range(count):
        path = sorted(by_path)[i % len(by_path)]
        # Of several models none has another name: what can be read is to be answered.
        body = copy.deepcopy(dice.choice(by_path[path])) | {"model": "scripted"}
        for _ in range(dice.randint(1, 3)):
            change(body, dice)
        content = json.dumps(body).encode()
        yield path, broken(content, dice) if dice.random() < 0.3 else content


def told(answer: httpx2.Response) -> bool:
    """Whether an error says what is wrong."""
    try:
        return bool(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return False
