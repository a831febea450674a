"""Workers from files, the preset `classic`, and the kind of worker that a tool needs.

A file is a JSON list of workers, or an object with the list under `workers`. The fields are those
of `workers.Worker`; a latency is a number of seconds or an object. Numeric strings are converted,
because YAML 1.1 reads `3e-5` as text. Unknown fields are rejected, and so are workers without
prices, because prices have no defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter

from tutelage.errors import ConfigError, DataError, pluralize
from tutelage.orchestration.data.rows import read_as, read_json
from tutelage.orchestration.execution.workers import Worker, WorkerPool, check_workers
from tutelage.orchestration.plan.catalog import Catalog

WORKERS = "workers.json"
"""File next to a router's checkpoint with the workers that it was trained on."""
KINDS = ("text", "code", "vision", "audio", "document", "data")
"""Kinds of the workers in the preset."""

_BY_WORD: Mapping[str, tuple[str, ...]] = {
    "audio": ("audio", "speech", "voice", "sound", "music", "transcribe", "whisper", "podcast"),
    "vision": ("image", "video", "picture", "photo", "visual", "vision", "ocr", "clip", "screen"),
    "code": ("code", "program", "python", "sql", "compile", "debug", "regex"),
    "data": ("data", "table", "csv", "chart", "plot", "statistic", "spreadsheet", "forecast"),
    "document": ("document", "pdf", "report", "invoice", "contract", "docx", "page"),
}


def tool_kind(name: str, description: str = "", catalog: Catalog | None = None) -> str:
    """Return the kind of worker required by a tool: from the catalog, else from its input and
    output types, else from words in its name and description.

    The default is `text`.
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
    """Return the eight default workers of `classic.json`, in a fixed order.

    Prices and latencies of gpt-4, gpt-3.5-turbo and llama-3-8b are published values (USD 0.03,
    0.002 and 0.001 per 1,000 tokens; 0.5, 0.2 and 0.3 s). The values of the other five, and all
    spreads and skills, are our estimates for models of their size, without measurements. The
    published prices are the same for input and output tokens.
    """
    return read_workers(Path(__file__).with_name("classic.json"))


def read_workers(path: str | Path) -> tuple[Worker, ...]:
    """Read workers from a JSON or YAML file. Raises `DataError` if the file is invalid and
    `ConfigError` if a worker is invalid."""
    data: Any = read_json(path)
    rows: Any = data.get("workers") if isinstance(data, dict) else data
    if not isinstance(rows, list):
        raise DataError(f"{str(path)!r} must contain a list of workers, or a list under 'workers'")
    named = enumerate(cast("list[Any]", rows))
    return check_workers([parse_worker(row, f"{str(path)!r}, worker {i}") for i, row in named])


_WORKER = TypeAdapter(Worker)


def parse_worker(row: object, location: str = "a worker") -> Worker:
    """Create a worker from a JSON object. Raises `ConfigError` with the location and the fix."""
    for key in ("name", "price_in", "price_out", "latency"):  # required: prices have no defaults
        if isinstance(row, dict) and key not in row:
            raise ConfigError(
                f"{location} has no {key!r}; set name, price_in and price_out (USD per million "
                "tokens) and latency (median seconds)"
            )
    return read_as(_WORKER, row, location, error=ConfigError)


def worker_to_json(worker: Worker) -> dict[str, Any]:
    """Convert a worker to a JSON object."""
    return _WORKER.dump_python(worker, mode="json", exclude_none=True)


def describe_pool(pool: WorkerPool) -> str:
    """Return a description of the pool: the number of workers, and whether they are simulated."""
    if any(worker.tool for worker in pool.workers):
        return f"{pluralize(len(pool.workers), 'tool')} that run here"
    where = "SIMULATED: no model is asked; real ones with --pool openai --workers FILE"
    return f"{pluralize(len(pool.workers), 'worker')}, {where if pool.mock else 'real, over HTTP'}"
