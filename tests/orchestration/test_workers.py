"""Workers: their values, their file, the preset, and what kind of worker a tool needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tutelage.errors import ConfigError
from tutelage.orchestration.execution.worker_files import (
    classic,
    read_workers,
    tool_kind,
    worker_from,
    worker_to,
)
from tutelage.orchestration.execution.workers import (
    Latency,
    Subtask,
    Worker,
    capable_workers,
)
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool

ROW: dict[str, Any] = {"name": "a", "price_in": 1, "price_out": 2, "latency": 0.5}


def test_a_worker_can_what_a_capability_fits() -> None:
    worker = Worker("a", ("text", "translate_*"))
    assert worker.can("text")
    assert worker.can("translate_fr", "audio")
    assert not worker.can("audio", "speech")
    assert Worker("b").can("anything")


def test_a_work_that_nobody_can_do_names_it_and_what_is_known() -> None:
    work = Subtask(3, "sing", "audio")
    with pytest.raises(ConfigError, match=r"node 3 .*'sing'.*\['code', 'text'\]"):
        capable_workers([Worker("a", ("text",)), Worker("b", ("code",))], work)
    assert capable_workers([Worker("a", ("text",)), Worker("b")], work) == (False, True)


def test_the_preset_has_the_published_prices_and_latencies() -> None:
    found = {worker.name: worker for worker in classic()}
    assert list(found) == [
        "gpt-4",
        "gpt-3.5-turbo",
        "llama-3-8b",
        "code-llama-7b",
        "clip-vit-base",
        "whisper-base",
        "document-processor",
        "data-analyzer",
    ]
    # Published for 1,000 tokens.
    for name, price, seconds in (
        ("gpt-4", 0.03, 0.5),
        ("gpt-3.5-turbo", 0.002, 0.2),
        ("llama-3-8b", 0.001, 0.3),
    ):
        worker = found[name]
        assert worker.cost(1000, 0) == worker.cost(0, 1000) == pytest.approx(price)
        assert worker.latency.seconds == seconds
    assert found["whisper-base"].can("audio")
    assert not found["whisper-base"].can("text")


@pytest.mark.parametrize(
    ("name", "types", "kind"),
    [
        ("translate", (), "text"),
        ("Image Classification", (), "vision"),
        ("transcribe_audio", ("audio", "text"), "audio"),
        ("run_sql", (), "code"),
        ("read_pdf", (), "document"),
        ("plot", ("table",), "data"),
    ],
)
def test_kinds_of_tools(name: str, types: tuple[str, ...], kind: str) -> None:
    assert tool_kind(name, catalog=Catalog((CatalogTool(name, inputs=types),))) == kind


# ------------------------------------------------------------ files


def test_a_file_is_a_list_or_an_object_with_one(tmp_path: Path) -> None:
    path = tmp_path / "workers.json"
    for data in ([ROW], {"workers": [ROW]}):
        path.write_text(json.dumps(data))
        assert read_workers(path) == (Worker("a", ("*",), 1.0, 2.0, Latency(0.5)),)


def test_all_fields_come_back_as_they_were_written() -> None:
    worker = Worker(
        "a", ("text",), 1.0, 2.0, Latency(0.1, 0.2, 0.3), {"*": 0.5}, "http://h/v1", "m", "KEY", 3
    )
    assert worker_from(json.loads(json.dumps(worker_to(worker)))) == worker


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"price_out": "cheap"}, "'price_out' is 'cheap'"),
        ({"price_in": -1.0}, "'price_in' is -1.0"),
        ({"latency": {"seconds": 1, "sigma": 1}}, "unknown field 'sigma'"),
        ({"name": 3}, "'name' is 3"),
    ],
)
def test_a_bad_worker_is_told_with_its_place(
    change: dict[str, Any], told: str, tmp_path: Path
) -> None:
    path = tmp_path / "workers.json"
    path.write_text(json.dumps([ROW | change]))
    with pytest.raises(ConfigError, match=told) as caught:
        read_workers(path)
    assert "worker 0" in str(caught.value)
