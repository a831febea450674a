"""What every store must do, whatever database is under it.

A backend's test module subclasses `StoreConformance` and gives the fixture `opened`: a function
that opens the store of a name, the same data each time the name is the same.
"""

from __future__ import annotations

import dataclasses
import re
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from tutelage.errors import StoreError
from tutelage.store import (
    CheckpointRow,
    FailureCount,
    MetricsRow,
    ResourceRow,
    RolloutSummary,
    Store,
    Totals,
    TrainingRow,
)
from tutelage.tracing.records import SpanRecord
from tutelage.types import (
    Attempt,
    Failure,
    FailureCause,
    Mode,
    Reward,
    Rollout,
    RolloutStatus,
    Task,
)

from . import samples
from .samples import attempt, rollout, rollouts, span

Opened = Callable[[str], Store]
RUNNING, SUCCEEDED = RolloutStatus.RUNNING, RolloutStatus.SUCCEEDED
PENDING, FAILED = RolloutStatus.PENDING, RolloutStatus.FAILED


# Two databases run one suite, and a counterexample of one is worth a try on the other.
SUPPRESSED = [
    HealthCheck.function_scoped_fixture,
    HealthCheck.too_slow,
    HealthCheck.differing_executors,
]


def unsigned(text: str) -> str:
    """The text without the sign of zeros."""
    return re.sub(r"-0\.0\b", "0.0", text)


def training_row(position: int, *, policy: str = "main", rollout_id: str = "r0") -> TrainingRow:
    """One row of step 2 with two trained tokens."""
    return TrainingRow(
        step=2,
        policy=policy,
        position=position,
        rollout_id=rollout_id,
        tokens=2,
        advantage=0.1 + 0.2,
        advantages=struct.pack("<2f", 0.5, 0.25),
        logprobs=struct.pack("<2f", -0.25, -2.0),
        entropies=struct.pack("<2e", 0.5, 1.5),
        importance_weights=struct.pack("<2e", 1.0, 2.0),
    )


class StoreConformance:
    """The suite; subclasses add the fixture `opened`."""

    @pytest.fixture
    def store(self, opened: Opened) -> Iterator[Store]:
        with opened("main") as store:
            store.put_run("run_a", **samples.RUN)
            yield store

    # Exactness

    @settings(
        max_examples=60,
        deadline=None,
        suppress_health_check=SUPPRESSED,
    )
    @given(record=samples.strange_rollouts)
    def test_any_record_comes_back_equal(self, store: Store, record: Rollout) -> None:
        number = store.count("run_a")
        record = dataclasses.replace(record, id=f"{number}:{record.id}")
        assert store.put_rollouts([record]) == Counter(new=1)
        assert store.rollout(record.id) == record
        # Clock readings and the order of keys are no part of equality; zero loses its sign.
        assert unsigned(repr(store.rollout(record.id))) == unsigned(repr(record))
        assert store.put_rollouts([record]) == Counter(unchanged=1)

    def test_clock_readings_come_back_and_are_no_change(self, store: Store) -> None:
        timed = dataclasses.replace(samples.call(), started=1.7e9, seconds=0.25)
        result = dataclasses.replace(attempt().tool_results[0], started=1.7e9)
        whole = dataclasses.replace(attempt(), calls=(timed,), tool_results=(result,), started=9.5)
        store.put_rollouts([rollout("r", whole)])
        back = store.rollout("r").last
        assert (back.started, back.tool_results[0].started) == (9.5, 1.7e9)
        assert (back.calls[0].started, back.calls[0].seconds) == (1.7e9, 0.25)
        bare = dataclasses.replace(attempt(), calls=(samples.call(),), tool_results=(result,))
        assert store.put_rollouts([rollout("r", bare)]) == Counter(unchanged=1)

    # What cannot be stored exactly is refused, and the whole batch with it

    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            (Task("t", {"x": [1.0, float("nan")]}), r"fields of task 't' .*\['x'\]\[1\] is nan"),
            (Task("t", {"x": {1: 2}}), r"has the key 1"),
            (Task("t", {"x": b"raw"}), r"type bytes"),
        ],
    )
    def test_task_fields_that_json_cannot_hold(self, store: Store, bad: Task, message: str) -> None:
        with pytest.raises(StoreError, match=message):
            store.put_rollouts([rollout("good"), rollout("bad", task=bad)])
        assert store.count("run_a") == 0

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400])
    def test_rewards_that_are_not_finite(self, store: Store, value: float) -> None:
        for reward in (Reward(value), Reward(1.0, {"part": value})):
            bad = rollout("bad", dataclasses.replace(attempt(), reward=reward))
            with pytest.raises(StoreError, match="finite"):
                store.put_rollouts([rollout("good"), bad])
        assert store.count("run_a") == 0

    # Repeats, progress, late results

    def test_a_repeat_changes_nothing(self, store: Store) -> None:
        given = rollouts(5)
        assert store.put_rollouts(given) == Counter(new=5)
        assert store.put_rollouts(given[:3] + rollouts(1, first=5)) == Counter(new=1, unchanged=3)
        assert list(store.rollouts("run_a"))[:5] == given
        assert store.late_results("run_a", "roll_000000") == ()

    def test_progress_replaces_what_has_not_ended(self, store: Store) -> None:
        pending = attempt(0, PENDING, calls=0, reward=None)
        running = attempt(0, RUNNING, calls=1, reward=None)
        more = attempt(0, RUNNING, calls=2, reward=None)
        both = store.put_rollouts([rollout("r", pending), rollout("r", running)])
        assert both == Counter(new=1, updated=1)
        assert store.rollout("r") == rollout("r", running)
        assert store.put_rollouts([rollout("r", more)]) == Counter(updated=1)
        assert store.count("run_a", status=RUNNING) == 1
        assert store.put_rollouts([rollout("r", attempt(0))]) == Counter(updated=1)
        assert store.rollout("r") == rollout("r", attempt(0))
        assert store.count("run_a", status=RUNNING) == 0
        assert store.count("run_a", status=SUCCEEDED) == 1

    def test_a_retry_is_a_further_attempt(self, store: Store) -> None:
        failed, running = attempt(0, FAILED), attempt(1, RUNNING, reward=None)
        store.put_rollouts([rollout("r", failed, running)])
        whole = rollout("r", failed, attempt(1))
        assert store.put_rollouts([whole]) == Counter(updated=1)
        assert store.rollout("r") == whole

    def test_a_late_result_is_kept_and_ignored(self, store: Store) -> None:
        failed, late = attempt(0, FAILED), attempt(0)
        store.put_rollouts([rollout("r", failed)])
        assert store.put_rollouts([rollout("r", late)]) == Counter(unchanged=1, late=1)
        assert store.rollout("r") == rollout("r", failed)
        assert store.count("run_a", status=FAILED) == 1
        assert store.late_results("run_a", "r") == (late,)
        # The same late result again is a repeat, another one is filed behind it.
        assert store.put_rollouts([rollout("r", late)]) == Counter(unchanged=1)
        other = attempt(0, answer="later still")
        assert store.put_rollouts([rollout("r", other)]) == Counter(unchanged=1, late=1)
        assert store.late_results("run_a", "r") == (late, other)

    def test_a_status_never_goes_back(self, store: Store) -> None:
        running = rollout("r", attempt(0, RUNNING, reward=None))
        store.put_rollouts([running])
        back = rollout("r", attempt(0, PENDING, reward=None))
        with pytest.raises(StoreError, match="'running' and cannot become 'pending'"):
            store.put_rollouts([rollout("other"), back])
        assert list(store.rollouts("run_a")) == [running]

    @pytest.mark.parametrize(
        "other",
        [rollout(step=1), rollout(group="g1"), rollout(task=Task("t1", {"question": "?"}))],
        ids=["step", "group", "task"],
    )
    def test_an_id_keeps_its_place(self, store: Store, other: Rollout) -> None:
        store.put_rollouts([rollout()])
        with pytest.raises(StoreError, match="discard_after"):
            store.put_rollouts([other])
        assert list(store.rollouts("run_a")) == [rollout()]

    # Questions

    def test_filters_and_order(self, store: Store) -> None:
        given = [
            rollout("r0", step=0, group="a", index=0),
            rollout("r9", step=0, group="a", index=1),
            rollout("r1", attempt(0, FAILED), step=0, group="b"),
            rollout("r2", step=0, label="before/greedy", mode=Mode.TEST),
            rollout("r3", step=1, group="a"),
            rollout("r4", step=10, group="a"),
        ]
        store.put_rollouts(given[::-1])

        def ids(**chosen: object) -> list[str]:
            found = [r.id for r in store.rollouts("run_a", **chosen)]  # pyright: ignore
            assert store.count("run_a", **chosen) == len(found)  # pyright: ignore
            return found

        assert ids() == [r.id for r in given]
        assert ids(step=0, label="") == ["r0", "r9", "r1"]
        assert ids(label="before/greedy") == ["r2"]
        assert ids(mode=Mode.TRAIN, status=SUCCEEDED) == ["r0", "r9", "r3", "r4"]
        assert ids(status=FAILED) == ["r1"]
        assert ids(step=7) == []
        assert [r.id for r in store.rollouts("run_a", limit=2)] == ["r0", "r9"]

    def test_iteration_spans_pages_and_may_stop_half_way(self, store: Store) -> None:
        given = rollouts(150, calls=1)
        store.put_rollouts(given)
        assert list(store.rollouts("run_a")) == given
        half = store.rollouts("run_a")
        assert [next(half) for _ in range(70)] == given[:70]
        store.put_rollouts(rollouts(10, first=150, calls=1))  # an open iteration locks nothing out
        assert list(half) == given[70:]

    def test_a_rollout_is_found_by_the_beginning_of_its_id(self, store: Store) -> None:
        names = ("roll_5f2a", "roll_5f2b", "roll_77", "x", "x1")
        store.put_rollouts([rollout(name) for name in names])
        assert store.find_rollout("roll_7").id == "roll_77"
        assert store.find_rollout("x").id == "x", "the whole id wins over longer ones"
        with pytest.raises(StoreError, match="'roll_5f2a', 'roll_5f2b'"):
            store.find_rollout("roll_5f2")
        for prefix in ("roll_5f9", "roll%", "_"):  # wildcards are letters
            with pytest.raises(StoreError, match="closest"):
                store.find_rollout(prefix)
        with pytest.raises(StoreError, match="did you mean 'roll_77'"):
            store.rollout("roll_7")

    def test_two_runs_of_one_seed_share_a_store(self, store: Store) -> None:
        store.put_run("run_b", **samples.RUN)
        given = [rollout("r"), rollout("r", run_id="run_b", answer="other")]
        assert store.put_rollouts(given) == Counter(new=2)
        assert [store.rollout("r", run) for run in ("run_a", "run_b")] == given
        with pytest.raises(StoreError, match="'run_a', 'run_b'"):
            store.rollout("r")
        store.discard_after("run_b", -1)
        assert store.rollout("r") == given[0]

    def test_an_unknown_run_is_an_error_everywhere(self, store: Store) -> None:
        questions: list[Callable[[], object]] = [
            lambda: store.rollouts("run_x"),
            lambda: store.metrics("run_x"),
            lambda: store.put_metrics("run_x", 0, {}),
            lambda: store.discard_after("run_x", 0),
        ]
        for question in questions:
            with pytest.raises(StoreError, match=r"no run 'run_x' .* closest are 'run_a'"):
                question()

    # Runs

    def test_a_run_and_its_end(self, store: Store) -> None:
        store.set_run_status("run_a", "succeeded", {"reward": 0.5})
        row = store.run("run_a")
        assert (row.status, row.result) == (RolloutStatus.SUCCEEDED, {"reward": 0.5})
        assert (row.config, row.seed, row.name) == (samples.RUN["config"], 7, "sums")
        assert row.created <= row.updated
        assert store.runs() == [row]

    def test_a_run_put_again(self, store: Store) -> None:
        before = store.run("run_a")
        store.put_run("run_a", **samples.RUN)
        assert store.run("run_a") == before
        store.set_run_status("run_a", "failed")
        store.put_run("run_a", **samples.RUN | {"config": {"steps": 9}})
        after = store.run("run_a")
        assert after.config == {"steps": 9}
        assert (after.status, after.created) == (RolloutStatus.RUNNING, before.created)

    def test_a_new_run_has_a_name_of_its_own(self, store: Store) -> None:
        """Claimed before it begins; again by what was killed before that."""
        own = samples.RUN | {"config": {"claimed by": "here"}}
        others = ({"folder": "elsewhere/sums"}, {"config": {"claimed by": "there"}})
        for seed in (7, 8):
            store.put_run("new", **own | {"seed": seed}, claim=True)
        assert store.run("new").seed == 8
        words = (
            r"another run named 'new', in 'runs/sums'",
            r"a run named 'new' that was started in this folder, 'runs/sums', earlier or on",
        )
        for other, said in zip(others, words, strict=True):
            with pytest.raises(StoreError, match=said):
                store.put_run("new", **own | other, claim=True)
        store.put_run("new", **samples.RUN | {"seed": 8})
        for other in ({}, *others):
            with pytest.raises(StoreError, match="choose another --output"):
                store.put_run("new", **own | other, claim=True)
        assert store.run("new").config == samples.RUN["config"]

    @pytest.mark.parametrize("key", ["seed", "recipe", "algorithm"])
    def test_a_run_keeps_what_its_ids_come_from(self, store: Store, key: str) -> None:
        changed = samples.RUN | {key: 8 if key == "seed" else "other"}
        with pytest.raises(StoreError, match="start a new run"):
            store.put_run("run_a", **changed)

    # Spans

    @settings(
        max_examples=40,
        deadline=None,
        suppress_health_check=SUPPRESSED,
    )
    @given(record=samples.spans)
    def test_any_span_comes_back_equal(self, store: Store, record: SpanRecord) -> None:
        record = dataclasses.replace(record, trace_id=f"{samples.count_spans(store, 'run_a')}")
        before = len(store.spans("run_a", record.rollout_id or ""))
        store.put_rollouts((), {"run_a": [record]})
        after = store.spans("run_a", record.rollout_id or "")
        assert len(after) == before + 1
        assert unsigned(repr(record)) in [unsigned(repr(found)) for found in after]

    def test_a_span_that_comes_again_is_kept_once(self, store: Store) -> None:
        store.put_rollouts((), {"run_a": [span(0), span(0), span(1)]})
        store.put_rollouts((), {"run_a": [span(1), span(2)]})
        assert samples.count_spans(store, "run_a") == 3

    def test_spans_that_nothing_can_hold(self, store: Store) -> None:
        with pytest.raises(StoreError, match="does not belong to a rollout"):
            store.put_rollouts((), {"run_a": [span(0, rollout_id=None)]})  # pyright: ignore
        with pytest.raises(StoreError, match="run 'run_b' is not in the store"):
            store.put_rollouts((), {"run_b": [span(0)]})
        with pytest.raises(StoreError, match=r"attributes of span 'step 0' .* is nan"):
            store.put_rollouts([rollout("r")], {"run_a": [span(0, attributes={"x": float("nan")})]})
        assert store.count("run_a") == samples.count_spans(store, "run_a") == 0

    def test_discarded_steps_take_their_spans_along(self, store: Store) -> None:
        store.put_rollouts([rollout("keep", step=1), rollout("gone", step=2)])
        names = ("keep", "gone", "never stored")
        store.put_rollouts((), {"run_a": [span(i, name) for i, name in enumerate(names)]})
        store.discard_after("run_a", 1)
        assert [store.spans("run_a", name) for name in names] == [[span(0, "keep")], [], []]

    # Metrics, checkpoints, resources

    def test_metrics_of_a_step_add_up(self, store: Store) -> None:
        store.put_metrics("run_a", 2, {"loss": 0.1 + 0.2, "kl": 1})
        store.put_metrics("run_a", 1, {"loss": 5e-324})
        store.put_metrics("run_a", 2, {"kl": 2, "eval/reward": 0.5})
        assert store.metrics("run_a") == [
            MetricsRow(1, {"loss": 5e-324}),
            MetricsRow(2, {"loss": 0.1 + 0.2, "kl": 2, "eval/reward": 0.5}),
        ]

    def test_events_come_back_in_order_under_their_keys(self, store: Store) -> None:
        store.put_events("run_a", "x", [{"event": "plan", "n": 2**70}, {"f": 0.1 + 0.2}])
        store.put_events("run_a", "y", [{"other": None}])
        store.put_events("", "x", [{"of": "no run"}])
        store.put_events("run_a", "x", [{"text": "\ud83d \u00e9\x00"}])
        told = store.events("run_a", "x")
        assert told == [
            {"event": "plan", "n": 2**70},
            {"f": 0.1 + 0.2},
            {"text": "\ud83d \u00e9\x00"},
        ]
        assert store.events("", "x") == [{"of": "no run"}]
        assert store.events("run_a", "z") == []
        with pytest.raises(StoreError, match="an event of 'x'"):
            store.put_events("run_a", "x", [{"good": 1}, {"bad": float("nan")}])
        assert store.events("run_a", "x") == told

    def test_checkpoints(self, store: Store) -> None:
        store.put_checkpoint("run_a", 10, "ten")
        store.put_checkpoint("run_a", 5, "five")
        store.put_checkpoint("run_a", 10, "ten again")
        assert store.checkpoints("run_a") == [
            CheckpointRow(5, "five"),
            CheckpointRow(10, "ten again"),
        ]

    def test_a_resource_version_keeps_its_content(self, store: Store) -> None:
        store.put_resource("run_a", "prompt", 1, step=0, kind="prompt", data={"text": "Think."})
        store.put_resource("run_a", "prompt", 1, step=0, kind="prompt", data={"text": "Think."})
        with pytest.raises(StoreError, match="next version"):
            store.put_resource("run_a", "prompt", 1, step=0, kind="prompt", data={"text": "No."})
        expected = [ResourceRow("prompt", 1, 0, "prompt", {"text": "Think."})]
        assert store.resources("run_a") == expected

    def test_discard_after(self, store: Store) -> None:
        keep = [rollout("r0", step=0), rollout("r1", step=1), rollout("e0", step=0, label="before")]
        gone = [rollout("r2", step=2), rollout("e1", step=1, label="after"), rollout("r3", step=3)]
        store.put_rollouts(keep + gone)
        store.put_rollouts([rollout("r2", step=2, answer="late")])
        for step in range(4):
            store.put_metrics("run_a", step, {"reward": step})
        store.put_checkpoint("run_a", 1, "one")
        store.put_checkpoint("run_a", 3, "three")
        store.put_resource("run_a", "prompt", 1, step=0, kind="prompt", data={})
        store.put_resource("run_a", "prompt", 2, step=3, kind="prompt", data={})
        removed = store.discard_after("run_a", 1, labels=["after"])
        assert removed == Counter(rollouts=3, metrics=2, checkpoints=1, resources=1)
        assert sorted(r.id for r in store.rollouts("run_a")) == ["e0", "r0", "r1"]
        assert [m.step for m in store.metrics("run_a")] == [0, 1]
        assert [c.step for c in store.checkpoints("run_a")] == [1]
        assert [r.version for r in store.resources("run_a")] == [1]
        assert store.late_results("run_a", "r2") == ()
        # The steps are done again under the same ids, with other wall-clock times.
        again = [dataclasses.replace(r, attempts=(attempt(answer="again"),)) for r in gone]
        assert store.put_rollouts(again) == Counter(new=3)
        assert store.rollout("r2").last.answer == "again"

    # Sums

    def test_totals_are_those_of_the_whole_records(self, store: Store) -> None:
        given = [
            rollout("a", attempt(0, FAILED, calls=1), attempt(1, calls=2)),
            rollout("b", calls=3, mode=Mode.TEST, label="after/greedy"),
            rollout("c", calls=0, mode=Mode.TEST, label="after/greedy"),
        ]
        store.put_rollouts(given)
        calls = [call for r in given for a in r.attempts for call in a.calls]
        found = store.totals("run_a")
        assert (found.rollouts, found.tests, found.calls) == (3, 2, len(calls))
        assert found.prompt_tokens == sum(len(c.prompt_ids) for c in calls)
        assert found.sampled_tokens == sum(len(c.sampled.token_ids) for c in calls)
        store.put_run("empty", **samples.RUN)
        assert store.totals("empty") == Totals(0, 0, 0, 0, 0)
        with pytest.raises(StoreError, match="no run"):
            store.totals("nobody")

    def test_grades_are_those_of_the_attempt_that_counts(self, store: Store) -> None:
        task = Task("t9", {"question": "1 + 1", "answer": "2"})
        right = dataclasses.replace(attempt(1), reward=Reward(0.75, {"exact": 0.0, "b": 1.0}))
        after = {"mode": Mode.TEST, "label": "after"}
        store.put_rollouts(
            [
                rollout("a", attempt(0, FAILED), right, task=task, **after),
                rollout("b", attempt(0, FAILED), mode=Mode.TEST, label="before"),
                rollout("c", mode=Mode.TEST, label="after", group="g1"),
                rollout("d", label="after"),
                rollout("e", mode=Mode.TEST, label="other"),
            ]
        )
        found = store.grades("run_a", "before", "after")
        assert [(g.label, g.task, g.reward, g.part, g.failure) for g in found] == [
            ("after", "t9", 0.75, 0.0, None),
            ("after", "t0", 1.0, None, None),
            ("before", "t0", None, None, "timeout"),
        ]
        assert found[0].fields == task.fields
        assert store.grades("run_a", "after", part="b")[0].part == 1.0
        assert store.grades("run_a", "nothing") == []

    # Summaries

    def test_summaries_tell_what_the_whole_records_do(self, store: Store) -> None:
        trained = dataclasses.replace(samples.call(2, tokens=5), policy="main")
        judged = dataclasses.replace(samples.call(0, tokens=3), policy=None)
        calls = (trained, dataclasses.replace(samples.call(1, tokens=4)), judged)
        given = [
            rollout("a", attempt(0, FAILED), attempt(1, calls=1, reward=0.5)),
            rollout("b", dataclasses.replace(attempt(reward=0.25), calls=calls), index=1),
            rollout("c", attempt(0, FAILED, calls=0), mode=Mode.TEST, label="after"),
            rollout("d", attempt(0, PENDING, calls=0, reward=None), step=2),
        ]
        store.put_rollouts(given)
        counts = [
            store.count("run_a", min_reward=0.25),
            store.count("run_a", min_reward=0.5),
            store.count("run_a", status=PENDING),
            store.count("run_a", cause=FailureCause.TIMEOUT),
        ]
        assert counts == [2, 1, 1, 1]
        assert [RolloutSummary.from_rollout(r) for r in given] == [
            RolloutSummary(SUCCEEDED, 0.5, 1, 8, None, 0),
            RolloutSummary(SUCCEEDED, 0.25, 3, 12, None, 1),
            RolloutSummary(FAILED, None, 0, 0, FailureCause.TIMEOUT, None),
            RolloutSummary(PENDING, None, 0, 0, None, None),
        ]

    def test_failures_are_counted_by_cause(self, store: Store) -> None:
        def failed(cause: FailureCause, said: str) -> Attempt:
            return dataclasses.replace(attempt(0, FAILED), failure=Failure(cause, said))

        cancelled = dataclasses.replace(attempt(0, reward=None), status=RolloutStatus.CANCELLED)
        overflow = FailureCause.CONTEXT_OVERFLOW
        store.put_rollouts(
            [
                rollout("z", failed(FailureCause.TIMEOUT, "first"), step=1),
                rollout("a", failed(FailureCause.TIMEOUT, "second"), step=2),
                rollout("b", failed(overflow, "full"), step=1),
                rollout("c", failed(overflow, "once"), dataclasses.replace(attempt(1)), step=1),
                rollout("d", cancelled, step=3),
                rollout("e", failed(overflow, "other"), mode=Mode.TEST),
            ]
        )
        assert store.failures("run_a", mode=Mode.TRAIN) == [
            FailureCount(FailureCause.TIMEOUT, 2, "first"),
            FailureCount(None, 1, ""),
            FailureCount(overflow, 1, "full"),
        ]
        assert [f.number for f in store.failures("run_a", status=FAILED)] == [2, 2]

    # What training made of rollouts

    def test_training_rows_come_back_equal(self, store: Store) -> None:
        given = [training_row(0), training_row(1, rollout_id="r1"), training_row(0, policy="b")]
        bare = TrainingRow(3, "main", 0, "r0", tokens=2, advantage=-0.5)
        store.put_rollouts([], None, {"run_a": [*given, bare]})
        assert store.training_rows("run_a") == [given[2], *given[:2], bare]
        assert store.training_rows("run_a", rollout_id="r1") == [given[1]]
        assert store.training_rows("run_a", step=3) == [bare]
        assert given[0].values("logprobs") == (-0.25, -2.0)
        assert given[0].values("entropies") == (0.5, 1.5)
        assert bare.values("logprobs") is None

    def test_training_rows_go_with_the_steps_that_are_done_again(self, store: Store) -> None:
        rows = [dataclasses.replace(training_row(0), step=step) for step in range(5)]
        store.put_rollouts([rollout("r0", step=4)], None, {"run_a": rows})
        store.discard_training("run_a", 3)
        assert [row.step for row in store.training_rows("run_a")] == [0, 1, 2, 3]
        assert store.count("run_a") == 1
        assert store.discard_after("run_a", 1)["training_rows"] == 2
        store.discard_rollout("run_a", "r0")
        assert store.training_rows("run_a") == []

    # Threads

    def test_threads_write_and_read_at_once(self, store: Store) -> None:
        errors: list[BaseException] = []

        def write(first: int) -> None:
            try:
                for i in range(first, first + 10):
                    store.put_rollouts([rollout(f"r{i}", index=i)])
                    store.put_metrics("run_a", i, {"i": i})
                    assert store.rollout(f"r{i}").index == i
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=write, args=(100 * k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert store.count("run_a") == len(store.metrics("run_a")) == 40

    def test_a_closed_store_says_so(self, store: Store) -> None:
        store.close()
        store.close()
        with pytest.raises(StoreError, match="closed"):
            store.runs()
        with pytest.raises(StoreError, match="closed"):
            store.put_rollouts([rollout()])
