"""Comparing runs: what is paired, what is said, and what is refused to be ranked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tutelage.evaluate.compare import (
    Comparison,
    Measure,
    ResourceUsage,
    RunFacts,
    TaskScore,
    TaskScores,
    compare,
)
from tutelage.runs.stored_evaluation import StoredEvaluation
from tutelage.statistics.intervals import Verdict

Tested = tuple[TaskScores, TaskScores]


def scores(values: list[float], first: int = 0) -> dict[str, TaskScore]:
    """Scores of tasks numbered from `first`."""
    return {f"t{first + i}": TaskScore(v, float(v == 1.0)) for i, v in enumerate(values)}


def sides(before: list[float], after: list[float], first: int = 0) -> Tested:
    """The tests before and after a training."""
    return TaskScores(scores(before, first)), TaskScores(scores(after, first))


def run(name: str, before: list[float], after: list[float], **more: Any) -> RunFacts:
    """A run that was tested greedily."""
    given: dict[str, Any] = {
        "folder": f"runs/{name}",
        "trained": "weights",
        "algorithm": "grpo",
        "status": "finished",
        "base": "small",
        "base_mark": "small",
        "grader": "math",
        "measured": {"greedy": sides(before, after)},
        "spent": ResourceUsage(),
    }
    return RunFacts(name=name, **(given | more))


def pair(found: Comparison) -> Any:
    (only,) = found.pairs
    return only


def test_a_gain_is_paired_by_task_and_counted() -> None:
    before, after = [0.0] * 60, [1.0] * 40 + [0.5] * 10 + [0.0] * 10
    (row,) = compare([run("a", before, after)]).rows
    assert (row.means["reward_before"], row.means["reward_after"]) == (0.0, 0.75)
    assert (row.means["exact_before"], row.means["exact_after"]) == (0.0, pytest.approx(40 / 60))
    assert row.reward is not None
    assert (row.reward.wins, row.reward.losses, row.reward.ties) == (50, 0, 10)
    assert row.reward.low < 0.75 < row.reward.high
    assert row.exact is not None
    assert row.exact.wins == 40
    assert row.verdict is Verdict.IMPROVED


def test_the_verdict_is_the_intervals_or_for_few_tasks_the_sign_tests() -> None:
    def verdict(before: list[float], after: list[float]) -> Verdict | None:
        return compare([run("a", before, after)]).rows[0].verdict

    assert verdict([1.0] * 60, [0.0] * 60) is Verdict.REGRESSED
    assert verdict([0.0, 1.0] * 30, [1.0, 0.0] * 30) is Verdict.NO_EVIDENCE
    # Of five tasks five wins are p = 0.06; a bootstrap would be sure.
    assert verdict([0.0] * 5, [1.0] * 5) is Verdict.NO_EVIDENCE
    assert verdict([0.0] * 6, [1.0] * 6) is Verdict.IMPROVED


def test_two_runs_are_compared_after_training_on_the_same_tasks() -> None:
    found = compare([run("a", [0.0] * 60, [0.5] * 60), run("b", [0.0] * 60, [1.0] * 60)])
    assert found.same_tasks
    assert found.shared_tasks == 60
    assert pair(found).reward.mean == 0.5
    assert pair(found).verdict is Verdict.IMPROVED
    assert pair(found).caveats == ()
    assert found.remarks == ()
    assert found.conclusion == (
        "b has the highest reward, 1.000; its lead over a is more than chance."
    )


def test_equal_scores_have_one_interval_wherever_they_stand() -> None:
    """The gain of a run, and its difference to an evaluation of what it began with."""
    start = [float(i % 3 == 0) for i in range(61)]
    end = [float(i % 5 != 0) for i in range(61)]
    found = compare([run("start", start, start), run("trained", start, end)])
    gain = found.rows[1].reward
    assert gain is not None
    assert gain.low < gain.mean < gain.high
    assert gain == found.rows[1].exact == pair(found).reward == pair(found).exact


def test_exact_answers_have_a_verdict_of_their_own() -> None:
    # Partial credit makes up for what is right less often.
    first = [1.0] * 60 + [0.0] * 60
    second = [1.0] * 40 + [0.9] * 20 + [0.5] * 60
    found = compare([run("a", first, first), run("b", second, second)])
    assert pair(found).verdict is Verdict.IMPROVED
    assert pair(found).exact_verdict is Verdict.REGRESSED


def test_other_tasks_are_never_ranked() -> None:
    other = {"greedy": sides([0.0] * 60, [1.0] * 60, 100)}
    found = compare([run("a", [0.0] * 60, [0.5] * 60), run("b", [], [], measured=other)])
    assert found.conclusion is None
    assert pair(found).reward is None
    assert pair(found).verdict is None
    assert pair(found).caveats == ("no test task in common",)
    # The gain of each stays what it is.
    assert [row.verdict for row in found.rows] == [Verdict.IMPROVED, Verdict.IMPROVED]


def test_tasks_that_overlap_are_compared_on_what_is_shared() -> None:
    other = {"greedy": (TaskScores(), TaskScores(scores([1.0] * 60, 30)))}
    found = compare([run("a", [0.0] * 60, [0.0] * 60), run("b", [], [], measured=other)])
    assert found.shared_tasks == 30
    assert not found.same_tasks
    assert pair(found).tasks == 30
    assert pair(found).caveats == ("other test tasks: 30 of 90 shared",)
    assert found.rows[1].reward is None


def test_what_else_differs_is_said() -> None:
    changes: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({"grader": "f1"}, ("other grader: math and f1",)),
        ({"base_mark": "big", "base": "big"}, ("other model: small and big",)),
        ({"base_mark": None}, ("model not known for certain",)),
        ({"grader": "exact_number"}, ()),  # another name of the same
        (
            {"agent": "a.py", "agent_mark": "2"},
            ("other agent, or other code of it: a.py and a.py",),
        ),
        ({"agent": "b.py", "agent_mark": "1"}, ()),
    ]
    for change, caveats in changes:
        first = run("a", [0.0], [1.0], agent="a.py", agent_mark="1")
        found = compare([first, run("b", [0.0], [1.0], **change)])
        assert pair(found).caveats == caveats
    found = compare([run("a", [0.0], [1.0]), run("b", [0.0], [1.0], status="stopped")])
    assert any("b is stopped" in text for text in found.remarks)


def test_the_measure_is_one_that_every_run_has() -> None:
    both: dict[Measure, Tested] = {
        "greedy": sides([0.0], [1.0]),
        "sampled": sides([0.0], [0.5]),
    }
    sampled: dict[Measure, Tested] = {"sampled": both["sampled"]}
    a, b = run("a", [], [], measured=both), run("b", [], [], measured=sampled)
    assert [row.measure for row in compare([a, b]).rows] == ["sampled", "sampled"]
    assert [row.measure for row in compare([a, a]).rows] == ["greedy", "greedy"]
    assert [row.measure for row in compare([a, b], "greedy").rows] == ["greedy", None]
    only = replace(a, measured={"greedy": both["greedy"]})
    mixed = compare([only, b])
    assert [row.measure for row in mixed.rows] == ["greedy", "sampled"]
    assert pair(mixed).caveats == ("other sampling: greedy and sampled",)


def test_a_run_of_which_too_many_rollouts_were_lost_has_no_rate() -> None:
    """Ten of sixty were judged, all right: that is no reward of 1, and no lead over anybody."""
    lost = StoredEvaluation(
        rollouts=60, judged=10, lost={"grader_error": 50}, reason="the judge is down"
    )
    measured = (TaskScores(scores([0.0] * 60)), TaskScores({}, lost))
    cut = replace(run("cut", [0.0] * 60, [1.0] * 60), measured={"greedy": measured}, success="x")
    whole = replace(run("whole", [0.0] * 60, [0.5] * 60), success="x")
    found = compare([cut, whole])
    row = found.rows[0]
    assert (row.means["reward_after"], row.reward, row.verdict) == (None, None, None)
    assert found.pairs[0].reward is None
    assert found.conclusion is None
    told = " ".join(found.remarks)
    assert "cut, after: 10 of 60 judged; 50 lost: 50 grader error (the judge is down)." in told
    assert "cut has no rate there." in told


def test_runs_whose_success_is_not_the_same_thing_are_told_apart() -> None:
    graded = TaskScores({f"t{i}": TaskScore(0.5, None) for i in range(60)})
    bare = replace(run("bare", [], []), measured={"greedy": (graded, graded)})
    named = replace(run("named", [0.0] * 60, [1.0] * 60), success="right")
    found = compare([bare, named])
    assert (found.rows[0].exact, found.pairs[0].exact) == (None, None)
    assert found.rows[0].means["exact_after"] is None
    assert found.pairs[0].reward is not None
    assert any(
        "Success is not the same thing in all runs (none; right)" in r for r in found.remarks
    )
