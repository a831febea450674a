"""Requests of the kit and of a planner's training: each has a grader, and right plans are paid."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks.orchestration.grading.grade import GRADERS
from benchmarks.orchestration.grading.requests import fill, read_requests
from benchmarks.orchestration.grading.state import change_fault, read_state
from benchmarks.orchestration.kit import make_folder
from benchmarks.orchestration.training import agent
from benchmarks.orchestration.training.agent import plan_and_run
from benchmarks.orchestration.training.tasks import TrainingRequest, requests
from tests.in_one_item import in_one_item

from tutelage.gateway import ScriptedClient

REQUESTS = {request.id: request for request in read_requests()}
FAMILIES = ("sort and save", "total of a page", "new order", "rename", "none")


def test_every_request_has_a_grader_and_says_the_same_each_time() -> None:
    assert len(REQUESTS) == 30
    assert sorted(GRADERS) == sorted(REQUESTS)
    for request in REQUESTS.values():
        sentence = fill(request, 1).sentence
        assert sentence == fill(request, 1).sentence
        assert sentence is not None
        assert "{" not in sentence


def test_a_state_sees_files_links_empty_folders_and_rows(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    make_folder(folder, 1)
    before = read_state(folder)
    assert change_fault(before, read_state(folder)) == ""
    (folder / "empty").mkdir()
    assert change_fault(before, read_state(folder)) == "empty/ is new"
    (folder / "empty").rmdir()
    (folder / "notes" / "link").symlink_to("todo.txt")
    assert change_fault(before, read_state(folder)) == "notes/link is new"
    (folder / "notes" / "link").unlink()
    (folder / "people.db").unlink()
    assert "rows" in change_fault(before, read_state(folder))


def paid(request: TrainingRequest, *replies: str) -> dict[str, float]:
    """What a model earns that replies these."""
    llm = SimpleNamespace(client=ScriptedClient(list(replies)))
    task = {"question": request.sentence, "seed": request.seed, "nodes": request.nodes}
    return asyncio.run(plan_and_run(task, llm, agent.instructions))


@in_one_item("request_", [r for r in requests(1, 37) if r.family in FAMILIES])
def test_the_plan_of_a_request_is_right_and_another_is_not(request_: TrainingRequest) -> None:
    nothing, other = (
        '{"nodes": []}',
        '{"nodes": [{"tool": "sort_lines", "arguments": {"text": "b"}}]}',
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent, "MAX_TOKENS", 1000)  # a script counts characters as tokens
        found, wrong = (
            paid(request_, request_.plan),
            paid(request_, nothing if request_.nodes else other),
        )
        if request_.family == "sort and save":
            part = paid(request_, json.dumps({"nodes": request_.nodes[:1]}))
            assert part == {"reward": pytest.approx(0.1 / 30), "right": 0.0}
    assert found["right"] == 1.0
    assert found["reward"] > 0.95
    assert wrong["right"] == 0.0
    assert wrong["reward"] <= 0.0
