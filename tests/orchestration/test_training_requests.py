"""Requests that train a model that plans: their plans are right, and none is a measured one."""

from __future__ import annotations

import asyncio
import json
import re
from types import SimpleNamespace

import pytest
from benchmarks.orchestration.grading.requests import FILE
from benchmarks.orchestration.training import agent
from benchmarks.orchestration.training.agent import plan_and_run, succeeds
from benchmarks.orchestration.training.tasks import (
    TrainingRequest,
    families,
    requests,
    strangers,
)

from tutelage.gateway import ScriptedClient

EACH = list(requests(1, 37))
"""Those of `requests.json`."""
QUICK = ("sort and save", "total of a page", "new order", "rename", "none")
CASES = [
    pytest.param(r, id=r.family, marks=() if r.family in QUICK else pytest.mark.full) for r in EACH
]


@pytest.fixture(autouse=True)
def whole_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script counts characters as tokens."""
    monkeypatch.setattr(agent, "MAX_TOKENS", 1000)


def paid(request: TrainingRequest, *replies: str) -> dict[str, float]:
    """What a model earns that replies these."""
    llm = SimpleNamespace(client=ScriptedClient(list(replies)))
    task = {"question": request.sentence, "seed": request.seed, "nodes": request.nodes}
    return asyncio.run(plan_and_run(task, llm, agent.instructions))


@pytest.mark.parametrize("request_", CASES)
def test_the_plan_of_a_request_is_right_and_another_is_not(request_: TrainingRequest) -> None:
    found = paid(request_, request_.plan)
    assert found["right"] == 1.0
    assert found["reward"] > 0.95
    nothing, other = (
        '{"nodes": []}',
        '{"nodes": [{"tool": "sort_lines", "arguments": {"text": "b"}}]}',
    )
    wrong = paid(request_, nothing if request_.nodes else other)
    assert wrong["right"] == 0.0
    assert wrong["reward"] <= 0.0


def test_a_part_of_the_calls_earns_a_part_and_calls_beyond_them_cost() -> None:
    (request,) = (r for r in EACH if r.family == "sort and save")
    part = json.dumps({"nodes": request.nodes[:1]})
    more = json.dumps({"nodes": [*request.nodes, {"tool": "today", "arguments": {}}]})
    assert paid(request, part) == {"reward": pytest.approx(0.1 / 30), "right": 0.0}
    assert 0.9 < paid(request, more)["reward"] < paid(request, request.plan)["reward"]


@pytest.mark.full
def test_every_plan_runs_in_one_of_three_folders() -> None:
    """Where two people share a name, or a city has no page, some do not."""
    known, failed = len(families()), set[str]()
    assert known == len({family["family"] for family in families()}) > 800
    for first in (101, 2101, 4101):
        tried = [each for each in requests(first, known) if not failed or each.family in failed]
        failed = {each.family for each in tried if not succeeds(each.nodes, each.seed)}
        assert len(failed) < known / 50
        if not failed:
            break
    assert not failed


def test_the_strangers_requests_are_the_test() -> None:
    request = strangers()[1]
    assert paid(request, request.plan)["right"] == 1.0
    assert paid(request, '{"nodes": [{"tool": "today", "arguments": {}}]}')["right"] == 0.0
    assert len(strangers()) == 77


def test_no_five_words_in_a_row_are_those_of_a_measured_request() -> None:
    def rows(text: str) -> set[tuple[str, ...]]:
        words = re.findall(r"[\w{}']+", text.lower())
        return {tuple(words[i : i + 5]) for i in range(len(words) - 4)}

    measured: set[tuple[str, ...]] = set()
    for name in (FILE.name, "off_catalog.jsonl"):
        for line in FILE.with_name(name).read_text(encoding="utf-8").splitlines():
            measured |= rows(json.loads(line)["request"])
    measured |= {row for request in strangers() for row in rows(request.sentence)}
    assert len(measured) > 1000
    shown = {row for family in families() for s in family["sentences"] for row in rows(s)}
    shown |= {row for request in requests(10_000, 300) for row in rows(request.sentence)}
    assert len(shown) > 10_000
    assert not shown & measured
