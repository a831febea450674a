"""What the tests of prompt searches share: the labelled simulator over HTTP, and small searches."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tutelage.prompts.config import PromptConfig, resolve_prompt
from tutelage.prompts.run import PromptSearch
from tutelage.prompts.setup import SearchSetup, build_setup
from tutelage.runs import lifecycle
from tutelage.runs.folder import RunFolder, create
from tutelage.runs.progress import Progress
from tutelage.runs.rounds import Observer, Round, Spend
from tutelage.types import JSON

ROOT = Path(__file__).parents[2]
KEY = "sk-secret-0123456789"
WORDS = "Incorrect API key provided"
"""What `refusing_server` says."""
MODELS = {
    "OPENAI_MODEL": "simulator-task",
    "TUTELAGE_GRADIENT_MODEL": "simulator-optimiser",
    "TUTELAGE_EDIT_MODEL": "simulator-optimiser",
}
SMALL: Mapping[str, Any] = {"train_size": 6, "val_size": 8, "test_size": 50, "iterations": 2}


@contextmanager
def served(world: str = "math", **options: Any) -> Iterator[tuple[dict[str, str], Any]]:
    """The environment of a run at the simulator, and the server."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from benchmarks.prompt import server
    from benchmarks.prompt.worlds import world as named

    if "faults" in options:
        options["faults"] = server.Faults(*options["faults"])
    made = server.Server(named(world), **options)
    with server.serving(made) as url:
        yield {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": KEY, **MODELS}, made


def configured(**keys: Any) -> PromptConfig:
    """A small search of the embedded task."""
    return resolve_prompt("math", (), {**SMALL, **keys})


def set_up(env: Mapping[str, str], **keys: Any) -> SearchSetup:
    """The same, ready to run."""
    return build_setup(configured(**keys), env)


class Watched(Observer):
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.rounds: list[Round] = []
        self.stages: list[str] = []

    def on_progress(self, stage: str, done: int, total: int, spent: Spend) -> None:
        self.stages.append(stage)

    def on_round(self, found: Round) -> None:
        self.rounds.append(found)


def searched(setup: SearchSetup, place: Path, observer: Watched | None = None) -> JSON:
    """Run a search in a folder, new or not."""
    folder = RunFolder(place) if (place / "config.json").is_file() else create(place)
    return lifecycle.start(PromptSearch(setup, observer or Watched()), folder, Progress())


def without_endpoint() -> dict[str, str]:
    """This process's environment with no endpoint in it."""
    gone = ("OPENAI_", "TUTELAGE_")
    return {k: v for k, v in os.environ.items() if not k.startswith(gone)}


def files_with(place: Path, secret: str) -> Sequence[Path]:
    """Files of a folder that hold a secret."""
    found = [p for p in place.rglob("*") if p.is_file()]
    return [p for p in found if secret.encode() in p.read_bytes()]


class _Refusing(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps({"error": {"message": WORDS, "code": "invalid_api_key"}}).encode()
        self.send_response(401)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def refusing_server() -> Iterator[str]:
    """The base URL of a server that refuses every request, with words of its own."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
