"""Workers: their values, their file, the preset; verifiers: what passes and what does not."""

from __future__ import annotations

import asyncio
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from tests.marks import long

from tutelage.errors import ConfigError, RewardError
from tutelage.orchestration.execution.verifiers import Verifiers, make_verifier
from tutelage.orchestration.execution.worker_files import (
    classic,
    parse_worker,
    read_workers,
    tool_kind,
    worker_to_json,
)
from tutelage.orchestration.execution.workers import (
    Latency,
    Subtask,
    Verification,
    Worker,
    WorkerAnswer,
    WorkerError,
    capable_workers,
)
from tutelage.orchestration.plan.catalog import Catalog, CatalogTool

ROW: dict[str, Any] = {"name": "a", "price_in": 1, "price_out": 2, "latency": 0.5}


def test_a_worker_can_what_a_capability_fits() -> None:
    worker = Worker("a", ("text", "translate_*"))
    assert worker.supports("text")
    assert worker.supports("translate_fr", "audio")
    assert not worker.supports("audio", "speech")
    assert Worker("b").supports("anything")


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
    assert found["whisper-base"].supports("audio")
    assert not found["whisper-base"].supports("text")


@pytest.mark.parametrize(
    ("name", "types", "kind"),
    [
        ("translate", (), "text"),
        ("transcribe_audio", ("audio", "text"), "audio"),
        ("run_sql", (), "code"),
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
    assert parse_worker(json.loads(json.dumps(worker_to_json(worker)))) == worker


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


# ------------------------------------------------------------ verifiers


WORK = Subtask(0, "sum", "text")


def check(verifier: Any, output: str, work: Subtask = WORK, **answer: Any) -> Verification:
    async def judged() -> Verification:
        verdict = verifier.check(work, WorkerAnswer(output, **answer))
        return await verdict if inspect.isawaitable(verdict) else verdict

    return asyncio.run(judged())


def verifier_of(kind: str, **fields: Any) -> Any:
    return make_verifier({"kind": kind, **fields})


def test_known_reads_the_truth_and_refuses_to_guess() -> None:
    assert check(verifier_of("known"), "x", correct=True).passed
    assert not check(verifier_of("known"), "x", correct=False).passed
    with pytest.raises(ConfigError, match="no ground truth for node 0"):
        check(verifier_of("known"), "x")


@pytest.mark.parametrize(
    ("kind", "fields", "output", "passes"),
    [
        ("present", {}, "anything", True),
        ("present", {}, "  \n", False),
        ("exact", {"expected": "New York"}, " new\n york ", True),
        ("exact", {"expected": "42"}, "42.0", False),
        ("exact", {"expected": 7}, "7", True),
        ("regex", {"pattern": r"\d+ EUR"}, "about 12 EUR in all", True),
        ("regex", {"pattern": r"^\d+$"}, "12 EUR", False),
    ],
)
def test_what_passes(kind: str, fields: dict[str, Any], output: str, passes: bool) -> None:
    verdict = check(verifier_of(kind, **fields), output)
    assert verdict.passed is passes
    assert verdict.checked is (kind != "present") or not passes


_ENDLESS = r"^(a+)+$"


@pytest.mark.parametrize("mock", [False, *long(True)])
def test_a_pattern_that_backtracks_for_hours_is_no_verdict(
    mock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tutelage.rewards.pattern.SECONDS", 0.05)
    told = r"the pattern '\^\(a\+\)\+\$' took more than 0.05 s in 55 characters"
    with pytest.raises(RewardError, match=told):
        check(verifier_of("regex", pattern=_ENDLESS), "a" * 54 + "!", mock=mock)
    assert check(verifier_of("regex", pattern=_ENDLESS), "aaa", mock=mock).passed


def test_schema() -> None:
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
    verifier = verifier_of("schema", schema=schema)
    assert check(verifier, '{"n": 1}').passed
    assert check(verifier, '```json\n{"n": 1}\n```').passed
    for text in ('{"n": "1"}', "{}", "no", "[" * 5000):
        assert not check(verifier, text).passed
    with pytest.raises(ConfigError, match="invalid schema of the verifier: 'three' is not"):
        verifier_of("schema", schema={"type": "number", "minimum": "three"})


def test_an_error_never_passes_and_asks_nobody() -> None:
    class Never:
        async def check(self, work: Subtask, answer: WorkerAnswer) -> Verification:
            raise AssertionError

    verdict = check(Verifiers(Never()), "x", error=WorkerError("truncated", "cut"))
    assert not verdict.passed
    assert verdict.reason == "truncated: cut"


def test_a_type_then_its_kind_then_the_default() -> None:
    found = Verifiers(
        verifier_of("exact", expected="d"),
        {"sum": verifier_of("exact", expected="s"), "text": verifier_of("exact", expected="t")},
    )
    assert check(found, "s", Subtask(0, "sum", "text")).passed
    assert check(found, "t", Subtask(0, "other", "text")).passed
    assert check(found, "d", Subtask(0, "other", "audio")).passed


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kind": "regexp"}, "unknown kind 'regexp'"),
        ({"kind": "exact"}, "has no 'expected'"),
        ({"kind": "regex", "pattern": "("}, "invalid regular expression"),
        ({"kind": "judge"}, r"a verifier \('judge'\) has no 'base_url'"),
        ({"kind": "regex", "pattern": "a", "patern": 1}, "unknown field 'patern'; remove it"),
        ({"kind": "regex", "pattern": 3}, "'pattern' is 3; give a text"),
    ],
)
def test_options_that_a_verifier_lacks_are_named(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_verifier(given)
