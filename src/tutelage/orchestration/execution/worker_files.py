"""Workers from a file, the preset `classic`, and what kind of worker a tool needs.

A file is a JSON list of workers, or an object with that list under `workers`; fields are those of
`workers.Worker`, a latency is a number of seconds or an object. Numbers written as text are read as
numbers, since YAML 1.1 writes `3e-5` as text; a field that does not exist is refused. No price is
made up: a worker without one is refused too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter

from tutelage.errors import ConfigError, DataError, counted
from tutelage.orchestration.data.rows import read_as, read_json
from tutelage.orchestration.execution.workers import Worker, WorkerPool, check_workers
from tutelage.orchestration.plan.catalog import Catalog

WORKERS = "workers.json"
"""The workers that a router was trained on, as a file next to its checkpoint."""
KINDS = ("text", "code", "vision", "audio", "document", "data")
"""What workers of the preset differ in."""

_BY_WORD: Mapping[str, tuple[str, ...]] = {
    "audio": ("audio", "speech", "voice", "sound", "music", "transcribe", "whisper", "podcast"),
    "vision": ("image", "video", "picture", "photo", "visual", "vision", "ocr", "clip", "screen"),
    "code": ("code", "program", "python", "sql", "compile", "debug", "regex"),
    "data": ("data", "table", "csv", "chart", "plot", "statistic", "spreadsheet", "forecast"),
    "document": ("document", "pdf", "report", "invoice", "contract", "docx", "page"),
}


def tool_kind(name: str, description: str = "", catalog: Catalog | None = None) -> str:
    """The kind of worker that a tool needs: what its catalog says, else by the types that it takes
    and gives, else by the words of its name, then of its description.

    `text` when nothing says more.
    """
    types = ""
    if catalog is not None and name in catalog:
        tool = catalog[name]
        if tool.kind:
            return tool.kind
        types, description = " ".join((*tool.inputs, *tool.outputs)), tool.description
    for message in (types, name, description):
        words = message.lower().replace("_", " ").replace("-", " ").split()
        for kind, stems in _BY_WORD.items():
            if any(word.startswith(stem) for word in words for stem in stems):
                return kind
    return "text"


@cache
def classic() -> tuple[Worker, ...]:
    """The eight default workers of the document family, in its order: the file `classic.json`.

    Prices and latencies of gpt-4, gpt-3.5-turbo and llama-3-8b are published there (USD 0.03,
    0.002 and 0.001 per 1,000 tokens; 0.5, 0.2 and 0.3 s). Those of the other five, all spreads and
    all skills are ours: plausible for models of their size, measured nowhere. The published prices
    make no difference between prompt and answer.
    """
    return read_workers(Path(__file__).with_name("classic.json"))


def read_workers(path: str | Path) -> tuple[Worker, ...]:
    """Workers from a JSON or YAML file. Raises `DataError` for the file, `ConfigError` for one."""
    data: Any = read_json(path)
    rows: Any = data.get("workers") if isinstance(data, dict) else data
    if not isinstance(rows, list):
        raise DataError(f"{str(path)!r} needs a list of workers, or an object with one: 'workers'")
    named = enumerate(cast("list[Any]", rows))
    return check_workers([worker_from(row, f"{str(path)!r}, worker {i}") for i, row in named])


_WORKER = TypeAdapter(Worker)


def worker_from(row: object, where: str = "a worker") -> Worker:
    """One worker from its JSON object. Raises `ConfigError` that says where and what to fix."""
    for key in ("name", "price_in", "price_out", "latency"):  # no price is made up
        if isinstance(row, dict) and key not in row:
            raise ConfigError(
                f"{where} has no {key!r}; give its name, price_in and price_out (USD for a million "
                "tokens) and latency (median seconds)"
            )
    return read_as(_WORKER, row, where, error=ConfigError)


def worker_to(worker: Worker) -> dict[str, Any]:
    """The JSON object that `worker_from` reads."""
    return _WORKER.dump_python(worker, mode="json", exclude_none=True)


def describe_pool(pool: WorkerPool) -> str:
    """Return which workers there are, and whether they are real."""
    tools = sum(worker.tool for worker in pool.workers)
    where = "SIMULATED: no model is asked; real ones with --pool openai --workers FILE"
    models = f"{counted(len(pool.workers) - tools, 'worker')}, "
    models += where if pool.mock else "real, over HTTP"
    if not tools:
        return models
    beside = f"; {models}" if tools < len(pool.workers) else ""
    return f"{counted(tools, 'tool')} that run here{beside}"
