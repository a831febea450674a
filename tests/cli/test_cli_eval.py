"""`eval`, `ask`, `config` and `doctor`, with fakes below them."""

import importlib
import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.collector import Collector

from tutelage.engine.usage import Cost
from tutelage.evaluate.config import AskConfig, EvaluationConfig
from tutelage.runs.progress import Progress
from tutelage.statistics.outcome import Evaluation, summarise
from tutelage.store import open_store
from tutelage.types import Failure, FailureCause, Reward, Rollout, Task

from .conftest import Fake, Tutelage
from .sample_run import failure, rollout, success


def task(name: str, family: str) -> Task:
    return Task(name, {"question": "What is 17 * 23 + 5?", "answer": "396", "family": family})


@pytest.fixture
def seen(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A fake evaluation that keeps what it was given."""
    kept: dict[str, Any] = {}
    half = replace(success(), answer="39\x1b[2J", reward=Reward(0.25, {"digits": 0.25}))
    played = [
        rollout("a", success(), task=task("t1", "sum")),
        rollout("b", half, task=task("t2", "sum")),
        rollout("c", failure(), task=task("t3", "shopping")),
    ]

    async def play(progress: Progress) -> list[Rollout]:
        progress.start("x", {"device": "cpu"})
        progress.evaluation("test", 3, 3)
        return kept.pop("played", played)

    def add_up(some: list[Rollout], progress: Progress) -> Evaluation:
        return replace(summarise(some), in_training=2, repeated=1)

    def prepared(target: str, asked: EvaluationConfig, *, trust: bool) -> SimpleNamespace:
        kept.update(target=target, asked=asked, trust=trust)
        return SimpleNamespace(
            play=play,
            add_up=add_up,
            agent="built-in",
            facts=lambda name: {"target": name},
            evaluated_agent=SimpleNamespace(tools={}, model=str, tokens=str),
        )

    def ask(
        target: str,
        question: str,
        asked: AskConfig,
        fields: dict[str, Any],
        *,
        trust: bool,
        progress: Progress,
    ) -> Rollout:
        progress.start("ask", {"tokens": "at most 256 a reply"})
        kept.update(target=target, question=question, asked=asked, fields=fields, trust=trust)
        return played[2] if target == "broken" else played[0]

    importlib.import_module("tutelage.evaluate.kind")  # which keeps the real one
    monkeypatch.setattr("tutelage.evaluate.preparation.prepare_evaluation", prepared)
    fake("tutelage.evaluate.targets", ask=ask)
    return kept


def test_eval_sends_its_traces_to_a_collector(tutelage: Tutelage, seen: dict[str, Any]) -> None:
    with Collector() as collector:
        done = tutelage("eval", "runs/x", "--test", "a.jsonl", "--otlp", collector.url)
    assert (done.exit_code, seen["target"]) == (0, "runs/x")
    assert len({span.trace_id for span in collector.spans}) == 3
    assert {span.name.split()[0] for span in collector.spans} >= {"invoke_agent", "chat"}


def test_spans_of_an_agents_own_code_reach_the_store_and_the_collector(
    tutelage: Tutelage, tmp_path: Path
) -> None:
    agent = (
        "from tutelage.tracing import emit_evaluation, span\n"
        "@rollout\ndef answer(task):\n"
        "    with span('plan'):\n        emit_evaluation('clear', 0.9)\n"
        "    return '1'\n"
    )
    words = (*own(tmp_path, agent, "def always(task): return 1.0"), "--reward", "rewards.py:always")
    with Collector() as collector:
        done = tutelage(*words, "--output", str(tmp_path / "run"), "--otlp", collector.url)
    assert done.exit_code == 0, done.stderr
    assert "plan" in {span.name for span in collector.spans}
    with open_store(tmp_path / "run" / "store.db") as store:
        (run,) = store.runs()
        rollouts = store.rollouts(run.id)
        spans = [span for rollout in rollouts for span in store.spans(run.id, rollout.id)]
        assert [span.name for span in spans].count("plan") == 2


def test_eval_with_a_collector_that_is_down_warns_once(
    tutelage: Tutelage, seen: dict[str, Any]
) -> None:
    with Collector() as collector:
        gone = collector.url
    done = tutelage("eval", "runs/x", "--test", "a.jsonl", "--otlp", gone)
    assert done.exit_code == 0
    assert done.stderr.count(gone) == 1


def test_eval_passes_its_options_on(tutelage: Tutelage, seen: dict[str, Any]) -> None:
    args = "eval runs/x --test a.jsonl --test b.jsonl --samples 4 --temperature 0.5 --limit 9"
    more = "--tools calculator,lookup --reward math --seed 5"
    assert tutelage(*args.split(), *more.split()).exit_code == 0
    asked = EvaluationConfig(
        test=("a.jsonl", "b.jsonl"),
        samples=4,
        temperature=0.5,
        limit=9,
        tools=("calculator", "lookup"),
        reward="math",
        success=None,
        seed=5,
    )
    assert seen == {"target": "runs/x", "asked": asked, "trust": False}


@pytest.mark.parametrize(("samples", "temperature"), [("1", 0.0), ("2", 1.0)])
def test_one_sample_is_greedy_and_several_are_not(
    tutelage: Tutelage, seen: dict[str, Any], samples: str, temperature: float
) -> None:
    tutelage("eval", "x", "--test", "a.jsonl", "--samples", samples)
    assert seen["asked"].sampled_at == temperature
    assert seen["asked"].tools is None
    assert seen["asked"].limit is None


def test_eval_shows_success_and_what_was_wrong(tutelage: Tutelage, seen: dict[str, Any]) -> None:
    result = tutelage("eval", "x", "--test", "a.jsonl")
    shown = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "reward 0.4167 (95 % interval 0 to 1)" in shown, "and not -0.88 to 1.71"
    assert "rollouts 3 of 3 judged; failed, and counted so: 1 agent error" in shown
    assert "tasks 3" in shown
    assert "seen 2 of 3 test tasks are also training tasks" in shown
    assert "repeated 1 of 3 tasks repeat another one" in shown
    assert "sum 2 0.625" in shown
    assert "shopping 1 0" in shown
    assert not any(line.startswith("success") for line in shown), "a graded reward has none"
    assert "answered 39\\x1b[2J, wanted 396 reward 0.25 (digits 0.25)" in shown
    assert any(line.startswith("failed: ") and line.endswith("reward 0") for line in shown)
    assert "\x1b" not in result.stdout


def test_a_family_has_its_mean_reward_beside_its_success(
    tutelage: Tutelage, seen: dict[str, Any]
) -> None:
    wrong = replace(success(), reward=Reward(0.0))
    whole = replace(success(), reward=Reward(1.0))
    families = ("sum", "sum", "shopping")
    pairs = zip((wrong, whole, whole), families, strict=True)
    seen["played"] = [rollout(f"r{i}", a, task=task(f"t{i}", f)) for i, (a, f) in enumerate(pairs)]
    shown = tutelage("eval", "x", "--test", "a.jsonl").stdout
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "family rollouts success reward" in lines
    assert "sum 2 50.0 % 0.5" in lines


def test_eval_as_json_is_nothing_but_json(tutelage: Tutelage, seen: dict[str, Any]) -> None:
    result = tutelage("eval", "x", "--test", "a.jsonl", "--json")
    told = json.loads(result.stdout)
    families = told.pop("by_family")
    low, high = told.pop("reward_interval")
    assert low < told["mean_reward"] < high
    assert told == {
        "target": "x",
        "samples": 1,
        "temperature": 0.0,
        "seed": 0,
        "tasks": 3,
        "test_in_train": 2,
        "test_repeated": 1,
        "rollouts": 3,
        "judged": 3,
        "lost": {},
        "failed": {"agent_error": 1},
        "reason": "",
        "no_calls": 0,
        "graded": True,
        "success": None,
        "interval": None,
        "mean_reward": 1.25 / 3,
        "failures": {"agent_error": 1},
        "cost": asdict(Cost()),
    }
    assert {n: (f["rollouts"], f["mean_reward"]) for n, f in families.items()} == {
        "sum": (2, 0.625),
        "shopping": (1, 0.0),
    }
    assert "measuring test: 3 of 3" in result.stderr


def test_eval_tells_no_rate_where_rollouts_were_lost(
    tutelage: Tutelage, seen: dict[str, Any]
) -> None:
    """One task of four was judged, and was right: that is no success of 100 %."""
    gone = replace(
        failure(), reward=None, failure=Failure(FailureCause.REWARD_ERROR, "no answer to compare")
    )
    good = rollout("a", success(), task=task("t0", "sum"))
    lost = [rollout(f"x{i}", gone, task=task(f"t{i}", "sum")) for i in (1, 2, 3)]
    seen["played"] = [good, *lost]
    result = tutelage("eval", "x", "--test", "a.jsonl")
    shown = " ".join(result.stdout.split())
    assert "rollouts 1 of 4 judged; 3 lost: 3 no reward (no answer to compare)" in shown
    assert "%" not in shown.replace("more than 1 % of the rollouts", "")
    seen["played"] = [good, *lost]
    told = json.loads(tutelage("eval", "x", "--test", "a.jsonl", "--json").stdout)
    assert (told["success"], told["mean_reward"], told["judged"], told["rollouts"]) == (
        None, None, 1, 4,
    )  # fmt: skip


def own(folder: Path, agent: str, reward: str = "") -> tuple[str, ...]:
    """The command that evaluates an agent of this code, which asks no model, on two tasks."""
    (folder / "agent.py").write_text(f"from tutelage import rollout\n\n{agent}")
    (folder / "rewards.py").write_text(reward)
    rows = [{"question": f"What is {i} + 1?", "answer": i + 1} for i in (1, 2)]
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ("eval", "agent.py", "--test", "t.jsonl")


SAYS_TWO = "@rollout\ndef two(task):\n    return '2'\n"
FORGETS = "@rollout\ndef forgets(task):\n    '2'\n"


@pytest.mark.parametrize("name", ["math", "rewards.py:score"])
def test_an_agent_that_returns_nothing_is_not_graded(
    tutelage: Tutelage, tmp_path: Path, name: str
) -> None:
    words = own(tmp_path, FORGETS, "def score(prediction, answer): return 0.0")
    done = tutelage(*words, "--reward", name)
    assert done.exit_code == 1
    assert "agent 'forgets' returned None on task " in done.stderr
    assert f"so the reward {name!r} has no text to grade; return" in done.stderr
    assert "success" not in done.stdout


def test_a_reward_may_do_without_the_text(tutelage: Tutelage, tmp_path: Path) -> None:
    words = own(tmp_path, FORGETS, "def score(trajectory, prediction): return 1.0")
    assert "success   100.0 %" in tutelage(*words, "--reward", "rewards.py:score").stdout


@pytest.mark.parametrize("agent", [SAYS_TWO, FORGETS])
def test_an_agent_without_a_reward_is_told_the_option(
    tutelage: Tutelage, tmp_path: Path, agent: str
) -> None:
    counted = agent.replace("(task):", "(task):\n    open('played', 'a').write('x')")
    words = own(tmp_path, counted)
    (tmp_path / "t.jsonl").write_text("".join(f'{{"question": "{i}?"}}\n' for i in range(9)))
    done = tutelage(*words, "--runners", "1")
    assert done.exit_code == 1
    # The first text that nothing grades is enough.
    assert (len((tmp_path / "played").read_text()) < 9) == (agent is SAYS_TWO)
    assert "returned no reward on task " in done.stderr
    assert "--reward NAME or FILE.py:function" in done.stderr


def test_a_reward_that_raises_on_every_rollout_ends_with_its_line(
    tutelage: Tutelage, tmp_path: Path
) -> None:
    words = own(tmp_path, SAYS_TWO, "def score(task):\n    return task['anwser']\n")
    words = (*words, "--reward", "rewards.py:score", "--output", "runs/a")
    done = tutelage(*words)
    assert done.exit_code == 1
    assert "no rollout could be graded: reward 'rewards.py:score' failed on task " in done.stderr
    has = "KeyError: 'anwser'; the task has: question, answer"
    assert f" at rewards.py:2: {has}" in done.stderr
    shown = tutelage(*words[:-2])
    assert (shown.exit_code, "success" in shown.stdout) == (1, False)
    assert "2 of 2 judged; failed, and counted so: 2 reward raised" in shown.stdout
    (tmp_path / "rewards.py").write_text("def score(task):\n    return task['answer'] == 2\n")
    again = tutelage("resume", "runs/a", "--allow-changes")
    assert again.exit_code == 0, again.output
    assert "success   50.0 %" in again.stdout


def test_a_reward_that_raises_on_some_answers_calls_them_wrong(
    tutelage: Tutelage, tmp_path: Path
) -> None:
    code = "def score(answer):\n    return 1 / (answer - 2)\n"
    done = tutelage(*own(tmp_path, SAYS_TWO, code), "--reward", "rewards.py:score")
    assert done.exit_code == 0
    assert "2 of 2 judged; failed, and counted so: 1 reward raised" in done.stdout


def test_a_misspelled_field_of_a_task_is_told_by_place_and_by_those_there_are(
    tutelage: Tutelage, tmp_path: Path
) -> None:
    words = own(tmp_path, "@rollout\ndef reads(task):\n    return len(task['question']) / 99\n")
    with (tmp_path / "t.jsonl").open("a") as file:
        file.write('{"qestion": "What is 3 + 1?", "answer": 4}\n')
    told = "failed: agent.py:5: KeyError: 'question'; the task has: qestion, answer"
    assert told in tutelage(*words).stdout


def test_a_key_is_no_target_of_an_evaluation(tutelage: Tutelage) -> None:
    done = tutelage("eval", "some-run", "--test", "t.jsonl", "rollout.x=1")
    assert done.exit_code == 2
    told = "'rollout.x=1' is not a target: eval does not accept KEY=VALUE"
    assert told in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("agnet.py", "--test", "t.jsonl"), "agent file not found: 'agnet.py'; did you mean"),
        (
            ("agent.py:two", "--test", "tt.jsonl"),
            "'tt.jsonl' does not exist; did you mean 't.jsonl'?",
        ),
        (
            ("agent.py:two", "--test", "t.jsonl", "--reward", "reward.py:score"),
            "file not found: 'reward.py'; did you mean 'rewards.py'?",
        ),
        (
            ("agent.py:asks", "--test", "t.jsonl", "--model", "modle"),
            "folder not found: 'modle'; did you mean 'model'?",
        ),
    ],
)
def test_a_misspelled_file_is_answered_with_the_nearest(
    tutelage: Tutelage, tmp_path: Path, words: tuple[str, ...], near: str
) -> None:
    own(tmp_path, f"{SAYS_TWO}\n\n@rollout\ndef asks(task, llm):\n    return 0.0\n")
    (tmp_path / "model").mkdir()
    done = tutelage("eval", *words)
    assert done.exit_code == 2
    assert near in " ".join(done.stderr.split())


def test_a_folder_of_another_evaluation_is_told_by_what_differs(
    tutelage: Tutelage, tmp_path: Path
) -> None:
    words = (*own(tmp_path, SAYS_TWO), "--output", "runs/a", "--reward")
    assert tutelage(*words, "math").exit_code == 0
    other = tutelage(*words, "exact_text", "--samples", "2")
    assert other.exit_code == 2
    told = " ".join(other.stderr.split())
    changed = "started with other settings: samples (1, now 2), reward ('math', now 'exact_text');"
    assert changed in told


def test_a_broken_task_file_is_told(tutelage: Tutelage, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"question": "?"}\n{\n')
    result = tutelage("eval", "some/model", "--test", "a.jsonl", "--reward", "math")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: a.jsonl")
    assert "a.jsonl:2: invalid JSON" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("option", [("--samples", "0"), ("--limit", "0"), ("--temperature", "-1")])
def test_numbers_out_of_range_are_refused(
    tutelage: Tutelage, seen: dict[str, Any], option: tuple[str, str]
) -> None:
    result = tutelage("eval", "x", "--test", "a.jsonl", *option)
    assert result.exit_code == 2
    assert option[0] in result.stderr
    assert seen == {}


def test_ask_shows_the_turns(tutelage: Tutelage, seen: dict[str, Any]) -> None:
    result = tutelage("ask", "runs/x", "What is 17 * 23 + 5?", "--tools", "", "--seed", "4")
    assert result.exit_code == 0
    assert seen == {
        "target": "runs/x",
        "question": "What is 17 * 23 + 5?",
        "asked": AskConfig(tools=(), temperature=0.0, seed=4),
        "fields": {},
        "trust": False,
    }
    for part in ("calls calculator", "-> calculator gives 396", "answer  396"):
        assert part in result.stdout


def test_a_question_brings_the_other_fields_of_its_task(
    tutelage: Tutelage, seen: dict[str, Any]
) -> None:
    given = ("prices.lamp=23", "prices.scarf=2.5", "level=hard")
    assert tutelage("ask", "runs/x", "What do 12 lamps cost?", *given).exit_code == 0
    assert seen["fields"] == {"prices": {"lamp": 23, "scarf": 2.5}, "level": "hard"}
    tutelage("ask", "runs/x", "What do 12 clocks cost?", "prices={desk clock: 43}")
    assert seen["fields"] == {"prices": {"desk clock": 43}}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("lamp",), "has no '='. Use KEY=VALUE."),
        (("question=What?",), "invalid task field 'question'"),
        (("level=1", "level=2"), "invalid task field 'level'"),
        (("prices=5", "prices.lamp=23"), "invalid task field 'prices'"),
        (("prices.lamp=23", "prices=5"), "invalid task field 'prices'"),
        (("~prices",), "set each field once, as KEY=VALUE"),
    ],
)
def test_a_field_that_cannot_be_set_is_refused(
    tutelage: Tutelage, seen: dict[str, Any], given: tuple[str, ...], said: str
) -> None:
    result = tutelage("ask", "runs/x", "What?", *given)
    assert result.exit_code == 2
    assert said in result.stderr
    assert seen == {}


def test_an_answer_that_failed_has_an_exit_code(tutelage: Tutelage, seen: dict[str, Any]) -> None:
    result = tutelage("ask", "broken", "What?")
    assert result.exit_code == 1
    assert "failed, agent error: ValueError" in result.stdout


def test_an_empty_question_is_refused(tutelage: Tutelage, seen: dict[str, Any]) -> None:
    result = tutelage("ask", "runs/x", " ")
    assert result.exit_code == 2
    assert "the question is empty: ' '" in result.stderr
    assert seen == {}


def test_config_lists_every_key(tutelage: Tutelage) -> None:
    from tutelage.config.reference import reference_rows
    from tutelage.weights.config.extensions import registered_names

    shown = tutelage("config").stdout
    assert "'gae' or 'grpo' or" in shown
    for row in reference_rows(registered_names()):
        assert f"{row.key}={row.default}   {row.type}" in shown


def test_config_of_a_word(tutelage: Tutelage) -> None:
    shown = tutelage("config", "--", "--learning-rate").stdout
    assert shown.startswith("actor.optim.lr=1e-06   a number, above 0\n    Learning rate")
    assert shown.count("=") == 1
    result = tutelage("config", "lerning_rate")
    assert result.exit_code == 2
    assert "Did you mean 'learning_rate'?" in result.stderr


def test_config_as_markdown_is_the_reference_page(tutelage: Tutelage) -> None:
    from tutelage.config.reference import reference_markdown
    from tutelage.weights.config.extensions import registered_names

    names = registered_names()
    assert tutelage("config", "--markdown").stdout == reference_markdown(names)


def test_doctor_shows_what_is_missing_and_how_to_get_it(tutelage: Tutelage, fake: Fake) -> None:
    lines = [("device", "cpu", None), ("kernels", "missing", "pip install 'tutelage[train]'")]
    fake("tutelage.policy.machine", describe_machine=lambda: lines)
    result = tutelage("doctor")
    assert result.exit_code == 0
    told = result.stdout.splitlines()
    assert any(re.fullmatch(r"ok  python +3[.]\S+", line) for line in told)
    assert any(re.fullmatch(r"!   kernels +missing", line) for line in told)
    assert "pip install 'tutelage[train]'" in [line.strip() for line in told]
    assert told[-1].endswith("to look at, marked with '!'. Start with: tutelage train math")


def test_doctor_where_nothing_is_missing(tutelage: Tutelage, fake: Fake) -> None:
    fake("tutelage.policy.machine", describe_machine=lambda: [("device", "cpu", None)])
    assert "Nothing is missing." in tutelage("doctor").stdout
