"""The laws one by one: budget, cache, failures, edits, frontier, sign test, choice."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tutelage.errors import ConfigError, EngineError
from tutelage.prompts import (
    GEPA,
    Components,
    Episode,
    Limits,
    Play,
    SearchJournal,
    Splits,
    Usage,
    WorstCase,
)
from tutelage.prompts.budget import BudgetExceeded, SearchBudget
from tutelage.prompts.contract import RolloutSlot, Settings
from tutelage.prompts.edits import EditRules, RejectedEdit, parse_edit
from tutelage.prompts.evaluator import EvaluationItem, EvaluationJob, Evaluator, cache_key
from tutelage.prompts.gepa import frontier
from tutelage.prompts.holdout_test import Verdict, compare_scores
from tutelage.prompts.search import plan
from tutelage.prompts.setup import choose_algorithm
from tutelage.resources import PromptTemplate
from tutelage.runs.rounds import Spend
from tutelage.seeds import SeedTree
from tutelage.statistics.intervals import sign_test
from tutelage.types import FailureCause, Mode, Task

TASKS = [
    Task(f"t{i}", {"question": f"How many in row {i}?", "answer": f"x{i}yz"}) for i in range(10)
]
ITEMS = [EvaluationItem(Mode.VAL, task) for task in TASKS]


def evaluator(play: Play, budget: SearchBudget | None = None, runners: int = 8) -> Evaluator:
    ceiling = budget or SearchBudget(Limits())
    return Evaluator(play, ceiling, SearchJournal(), Settings("f", runners=runners))


# ------------------------------------------------------------ budget


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 40), st.lists(st.integers(1, 10), max_size=8), st.integers(1, 8))
def test_a_budget_is_never_overshot_whatever_runs_at_once(
    limit: int, batches: list[int], runners: int
) -> None:
    played = 0

    async def play(components: Components, task: Task, slot: RolloutSlot) -> Episode:
        nonlocal played
        played += 1
        await asyncio.sleep(0)
        return Episode(1.0, usage=Usage(2, 7))

    async def main() -> Spend:
        budget = SearchBudget(Limits(rollouts=limit), WorstCase(rollout=Usage(2, 9)))
        shared = evaluator(play, budget, runners=runners)
        jobs = [EvaluationJob("c", {"p": str(i)}, ITEMS[:n]) for i, n in enumerate(batches)]
        await asyncio.gather(*(shared.evaluate([j]) for j in jobs), return_exceptions=True)
        return budget.spent

    spent = asyncio.run(main())
    assert spent.rollouts == played <= limit
    assert spent.tokens == 7 * played


def test_a_ceiling_on_tokens_needs_the_worst_case_and_then_holds() -> None:
    with pytest.raises(ConfigError, match="worst case"):
        plan(GEPA(), Splits(TASKS[:4], TASKS[4:6], TASKS[6:]), Settings("f", Limits(tokens=100)))
    budget = SearchBudget(Limits(tokens=100), WorstCase(rollout=Usage(1, 40)))
    need = budget.worst.rollout_cost()
    budget.reserve(need * 2)
    with pytest.raises(BudgetExceeded, match="tokens"):
        budget.reserve(need)
    budget.settle(need * 2, Spend(rollouts=2, tokens=30))
    budget.reserve(need)


# ------------------------------------------------------------ evaluator


def test_the_cache_key_tells_apart_all_that_matters_and_no_positions() -> None:
    task = TASKS[0]
    base = cache_key({"a": "1", "b": "2"}, EvaluationItem(Mode.VAL, task), "f")
    assert base == cache_key(
        {"b": "2", "a": "1"}, EvaluationItem(Mode.VAL, Task(task.id, task.fields)), "f"
    )
    others = [
        cache_key({"a": "1", "b": "3"}, EvaluationItem(Mode.VAL, task), "f"),
        cache_key({"a": "1", "b": "2"}, EvaluationItem(Mode.TRAIN, task), "f"),
        cache_key({"a": "1", "b": "2"}, EvaluationItem(Mode.VAL, task, 1), "f"),
        cache_key({"a": "1", "b": "2"}, EvaluationItem(Mode.VAL, TASKS[1]), "f"),
        cache_key({"a": "1", "b": "2"}, EvaluationItem(Mode.VAL, task), "g"),
    ]
    assert len({base, *others}) == 6


async def test_failures_count_zero_and_their_text_is_evidence() -> None:
    async def play(components: Components, task: Task, slot: RolloutSlot) -> Episode:
        if task.id == "t0":
            raise KeyError("no such tool")
        if task.id == "t1":
            raise TimeoutError("too slow")
        return Episode(None if task.id == "t2" else float("nan") if task.id == "t3" else 1.0)

    (score,) = await evaluator(play).evaluate([EvaluationJob("c", {}, ITEMS)])
    assert [e.value for e in score.episodes] == [0, 0, 0, 0, 1, 1, 1, 1, 1, 1]
    causes = [e.failure for e in score.episodes[:4]]
    assert causes == [FailureCause.AGENT_ERROR] * 2 + [FailureCause.REWARD_ERROR] * 2
    assert "no such tool" in score.episodes[0].feedback
    assert not score.has_infra_error


async def test_more_than_a_fifth_of_infrastructure_errors_is_no_score() -> None:
    async def play(components: Components, task: Task, slot: RolloutSlot) -> Episode:
        if int(task.id[1:]) < int(components["lost"]):
            raise EngineError("away")
        return Episode(1.0)

    two, three = await evaluator(play).evaluate(
        [EvaluationJob("a", {"lost": "2"}, ITEMS), EvaluationJob("b", {"lost": "3"}, ITEMS)]
    )
    assert (two.has_infra_error, three.has_infra_error) == (False, True)


# ------------------------------------------------------------ edits


@pytest.mark.parametrize("text", ["Answer.", "{question", "{{question}}", "{other} only"])
def test_an_edit_that_loses_a_placeholder_is_rejected(text: str) -> None:
    rules = EditRules({"p": "Answer {question}"}, [])
    with pytest.raises(RejectedEdit, match="placeholders"):
        rules.check_edit("p", text)


@given(st.text(alphabet="{}abq question\n\"':", max_size=60))
def test_whatever_braces_an_edit_has_it_can_be_filled_and_keeps_its_text(noise: str) -> None:
    rules = EditRules({"p": "{question}"}, [])
    try:
        safe = rules.check_edit("p", f"{noise} | {{question}}")
    except RejectedEdit:
        return
    assert PromptTemplate(safe).placeholders == ("question",)
    assert PromptTemplate(safe).format(question="Q").endswith(" | Q")


def test_leaks_and_length_are_rejected_but_not_what_the_seed_already_said() -> None:
    question = "one two three four five six seven eight nine"
    tasks = [Task("a", {"question": question, "answer": "4711"})]
    rules = EditRules({"p": "Help.", "q": f"Known: {question} 4711"}, tasks)
    for text in (f"Say: {question}", "It is 4711."):
        with pytest.raises(RejectedEdit, match="leak"):
            rules.check_edit("p", text)
    assert rules.check_edit("q", f"Known: {question} 4711 more").endswith("more")
    with pytest.raises(RejectedEdit, match="length"):
        rules.check_edit("p", "word " * 801)
    assert (
        rules.check_edit("p", "one two three four five six seven")
        == "one two three four five six seven"
    )


def test_a_reply_is_read_between_its_tags_or_rejected() -> None:
    assert parse_edit("Here:\n<prompt>\nBe good.\n</prompt> done") == "Be good."
    for bad in ("", "Be good.", "<prompt> </prompt>", "<prompt>cut off"):
        with pytest.raises(RejectedEdit, match="malformed"):
            parse_edit(bad)


# ------------------------------------------------------------ decisions


def test_the_frontier_prunes_the_covered_and_counts_wins() -> None:
    assert frontier({"a": [1, 0, 0], "b": [1, 1, 0], "c": [0, 0, 1]}) == {"b": 2, "c": 1}
    assert frontier({}) == {}


def test_the_sign_test_is_exact() -> None:
    assert sign_test(0, 0) == 1.0
    assert sign_test(6, 0) == pytest.approx(2 / 64)
    assert sign_test(1, 5) == pytest.approx(14 / 64)


async def test_verdicts_go_both_ways_and_few_tasks_use_the_sign_test() -> None:
    async def play(components: Components, task: Task, slot: RolloutSlot) -> Episode:
        return Episode(float(components["p"] == "good" or task.id > components["p"]))

    jobs = [EvaluationJob(p, {"p": p}, ITEMS) for p in ("good", "t9", "t3")]
    good, bad, fair = await evaluator(play).evaluate(jobs)
    verdicts = [
        compare_scores(a, b, 1, SeedTree(0)).verdict
        for a, b in [(bad, good), (good, bad), (fair, good), (good, good)]
    ]
    assert verdicts == [
        Verdict.IMPROVED, Verdict.REGRESSED, Verdict.NO_EVIDENCE, Verdict.NO_EVIDENCE,
    ]  # fmt: skip
    assert [v.exit_code for v in Verdict] == [0, 3, 4]


def test_auto_follows_the_endpoint_and_says_why() -> None:
    assert choose_algorithm("auto", has_optimiser=False)[0] == "screen"
    name, reason = choose_algorithm("auto", has_optimiser=True)
    assert name == "reflect"
    assert "few optimiser calls" in reason
    with pytest.raises(ConfigError, match="screen"):
        choose_algorithm("apo", has_optimiser=False)
