"""Workers: their values, their file, the preset, and what kind of worker a tool needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tutelage.errors import ConfigError, DataError
from tutelage.orchestration.data.synthetic import builtin_graph
from tutelage.orchestration.execution.worker_files import (
    KINDS,
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
    check_workers,
)
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool

ROW: dict[str, Any] = {"name": "a", "price_in": 1, "price_out": 2, "latency": 0.5}


def test_a_worker_can_what_a_capability_fits() -> None:
    worker = Worker("a", ("text", "translate_*"))
    assert worker.can("text")
    assert worker.can("translate_fr", "audio")
    assert not worker.can("audio", "speech")
    assert Worker("b").can("anything")


def test_skill_is_looked_up_by_type_then_kind_then_star() -> None:
    worker = Worker("a", skills={"sum": 0.9, "text": 0.7, "*": 0.1})
    assert (worker.skill("sum", "text"), worker.skill("x", "text"), worker.skill("x", "y")) == (
        0.9,
        0.7,
        0.1,
    )
    assert Worker("b").skill("x") == 0.5


def test_cost_is_for_a_million_tokens() -> None:
    assert Worker("a", price_in=2.0, price_out=10.0).cost(500_000, 100_000) == 2.0


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"name": ""}, "a unique name"),
        ({"name": "a", "capabilities": ()}, r"capabilities \(\)"),
    ],
)
def test_values_that_cannot_be_are_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Worker(**fields)


def test_no_workers_and_equal_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="no workers"):
        check_workers([])
    with pytest.raises(ConfigError, match="two workers are named 'a'"):
        check_workers([Worker("a"), Worker("a")])


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


def test_the_preset_covers_every_tool_of_the_builtin_catalog() -> None:
    for tool in builtin_graph().catalog.tools:
        assert tool.kind in KINDS
        assert any(capable_workers(classic(), Subtask(0, tool.name, tool.kind)))


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


def test_numbers_written_as_text_are_numbers() -> None:
    worker = worker_from(ROW | {"price_in": "3e-5", "latency": {"seconds": "0.5"}})
    assert (worker.price_in, worker.latency.seconds) == (3e-5, 0.5)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"price_out": "cheap"}, "'price_out' is 'cheap'"),
        ({"price_in": True}, "'price_in' is True"),
        ({"price_in": -1.0}, "'price_in' is -1.0"),
        ({"price_out": ".nan"}, "'price_out' is '.nan'"),
        ({"skills": {"x": 1.5}}, "x.* is 1.5"),
        ({"concurrency": 0}, "'concurrency' is 0"),
        ({"latency": -0.1}, "seconds.* is -0.1"),
        ({"latency": None}, "'latency' is None"),
        ({"latency": {"spread": 1}}, "no 'seconds'"),
        ({"latency": {"seconds": 1, "sigma": 1}}, "unknown field 'sigma'"),
        ({"prize_in": 1}, "unknown field 'prize_in'"),
        ({"name": 3}, "'name' is 3"),
        ({"concurrency": 1.5}, "whole number"),
        ({"capabilities": [1]}, r"capabilities\[0\] is 1; give a text"),
        ({"skills": []}, "JSON object"),
        ({"endpoint": 5}, "'endpoint' is 5"),
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


@pytest.mark.parametrize("missing", ["price_in", "price_out", "latency"])
def test_no_price_and_no_latency_is_made_up(missing: str) -> None:
    with pytest.raises(ConfigError, match=f"has no '{missing}'"):
        worker_from({key: value for key, value in ROW.items() if key != missing})


def test_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    path = tmp_path / "workers.json"
    with pytest.raises(DataError, match="cannot read"):
        read_workers(path)
    path.write_text('{"models": []}')
    with pytest.raises(DataError, match="must be a list of workers"):
        read_workers(path)
    path.write_text("[]")
    with pytest.raises(ConfigError, match="no workers"):
        read_workers(path)
