"""Verifiers: what passes, what does not, and what cannot be judged."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
from tests.marks import long

from tutelage.errors import ConfigError, RewardError
from tutelage.orchestration.execution.verifiers import Verifiers, make_verifier
from tutelage.orchestration.execution.workers import (
    Subtask,
    Verification,
    WorkerAnswer,
    WorkerError,
)

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


def test_present_passes_anything_and_says_that_it_checked_nothing() -> None:
    verdict = check(verifier_of("present"), "anything")
    assert verdict.passed
    assert not verdict.checked
    assert not check(verifier_of("present"), "  \n").passed


def test_exact_forgives_white_space_and_case_only() -> None:
    assert check(verifier_of("exact", expected="New York"), " new\n york ").passed
    assert not check(verifier_of("exact", expected="42"), "42.0").passed
    assert check(verifier_of("exact", expected=7), "7").passed
    with pytest.raises(ConfigError, match="has no 'expected'"):
        verifier_of("exact")


def test_regex() -> None:
    assert check(verifier_of("regex", pattern=r"\d+ EUR"), "about 12 EUR in all").passed
    assert not check(verifier_of("regex", pattern=r"^\d+$"), "12 EUR").passed
    with pytest.raises(ConfigError, match="invalid regular expression"):
        verifier_of("regex", pattern="(")


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
        ({"kind": "judge"}, r"a verifier \('judge'\) has no 'base_url'"),
        ({"kind": "regex", "pattern": "a", "patern": 1}, "unknown field 'patern'; remove it"),
        ({"kind": "regex", "pattern": 3}, "'pattern' is 3; give a text"),
    ],
)
def test_options_that_a_verifier_lacks_are_named(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_verifier(given)
