"""`eval`, `ask`, `config` and `doctor`."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.collector import Collector

from tutelage.store import open_store

from .conftest import Fake, Tutelage

REPLIES = '''
from tutelage import reward, rollout
from tutelage.errors import GraderError
from tutelage.tracing import emit_evaluation, span


@rollout
def replies(task):
    """Says what its task holds, without a model."""
    with span("plan"):
        emit_evaluation("clear", 0.9)
    if task["reply"] == "broken":
        raise ValueError("no idea")
    return task["reply"]


@rollout
def forgets(task):
    "2"


@rollout
def reads(task):
    return len(task["word"]) / 99


@rollout
def asks(task, llm):
    return 0.0


@reward(isolation="none")
def digits(prediction, answer):
    if prediction == "lost":
        raise GraderError("the judge is down")
    return {"reward": len(prediction) / len(answer), "digits": len(prediction) / len(answer)}


def right(prediction, answer):
    return float(prediction == answer)


def always(trajectory, prediction):
    return 1.0


def misspelled(task):
    return task["anwser"]
'''


def row(reply: str, family: str = "sum", **more: Any) -> dict[str, Any]:
    return {"question": f"{reply}?", "answer": "396", "reply": reply, "family": family, **more}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with agents, rewards and tasks of two families."""
    (tmp_path / "agent.py").write_text(REPLIES)
    write(tmp_path, row("396"), row("3\x1b"), row("broken", "shopping"), row("broken", "shopping"))
    return tmp_path


def write(place: Path, *rows: dict[str, Any]) -> None:
    (place / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def words(*more: str, agent: str = "replies", reward: str = "digits") -> tuple[str, ...]:
    return (
        "eval", f"agent.py:{agent}", "--test", "t.jsonl", "--reward", f"agent.py:{reward}", *more,
    )  # fmt: skip


def test_eval_shows_the_result_and_what_was_wrong(tutelage: Tutelage, place: Path) -> None:
    result = tutelage(*words())
    assert result.exit_code == 0, result.output
    shown = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert any(line.startswith("reward 0.4167 (95 % interval 0 to ") for line in shown)
    assert "rollouts 4 of 4 judged; failed, and counted so: 2 agent error" in shown
    assert "repeated 1 of 4 tasks repeat another one" in shown
    assert "sum 2 0.8333" in shown
    assert "shopping 2 0" in shown
    assert not any(line.startswith("success") for line in shown), "a graded reward has none"
    assert any("ValueError: no idea, wanted 396 reward 0" in line for line in shown), shown
    assert "\x1b" not in result.output
    plain = tutelage(*words(reward="right")).stdout
    assert "success   25.0 % (95 % interval" in plain
    assert "family    rollouts  success  reward" in plain


def test_eval_as_json_is_nothing_but_json(tutelage: Tutelage, place: Path) -> None:
    result = tutelage(*words("--json"))
    told = json.loads(result.stdout)
    families = told.pop("by_family")
    low, high = told.pop("reward_interval")
    assert low < told["mean_reward"] < high
    assert told | {"cost": None} == {
        "target": "agent.py:replies",
        "samples": 1,
        "temperature": 0.0,
        "seed": 0,
        "tasks": 4,
        "test_in_train": None,
        "test_repeated": 1,
        "rollouts": 4,
        "judged": 4,
        "lost": {},
        "failed": {"agent_error": 2},
        "reason": "",
        "no_calls": 2,
        "graded": True,
        "success": None,
        "interval": None,
        "mean_reward": pytest.approx(1.25 / 3),
        "failures": {"agent_error": 2},
        "cost": None,
    }
    assert {n: f["mean_reward"] for n, f in families.items()} == {
        "sum": pytest.approx(5 / 6),
        "shopping": 0.0,
    }
    assert "measuring eval: 4 of 4" in result.stderr


def test_no_rate_is_told_where_rollouts_were_lost(tutelage: Tutelage, place: Path) -> None:
    """One task of four was judged, and was right: that is no success of 100 %."""
    write(place, row("396"), *(row("lost", note=i) for i in range(3)))
    shown = " ".join(tutelage(*words()).stdout.split())
    assert "rollouts 1 of 4 judged; 3 lost: 3 grader error (" in shown
    assert "%" not in shown.replace("more than 1 % of the rollouts", "")
    told = json.loads(tutelage(*words("--json")).stdout)
    assert (told["success"], told["mean_reward"], told["judged"]) == (None, None, 1)


def test_spans_reach_the_store_and_the_collector(tutelage: Tutelage, place: Path) -> None:
    with Collector() as collector:
        done = tutelage(*words("--output", "run", "--otlp", collector.url))
        assert done.exit_code == 0, done.stderr
        assert tutelage(*words("--otlp", collector.url)).exit_code == 0
    names = [span.name for span in collector.spans]
    assert names.count("plan") == 8
    with open_store(place / "run" / "store.db") as store:
        (run,) = store.runs()
        rollouts = store.rollouts(run.id)
        spans = [span for rollout in rollouts for span in store.spans(run.id, rollout.id)]
        assert [span.name for span in spans].count("plan") == 4
    done = tutelage(*words("--otlp", collector.url))  # which is gone
    assert (done.exit_code, done.stderr.count(collector.url)) == (0, 1)


def test_what_nothing_grades_ends_with_its_cause(tutelage: Tutelage, place: Path) -> None:
    for agent, reward, said in (
        ("forgets", "right", "agent 'forgets' returned None on task "),
        ("replies", "", "returned no reward on task "),
        ("replies", "misspelled", "KeyError: 'anwser'; the task has: question, answer, reply"),
        ("forgets", "always", ""),
    ):
        write(place, *(row(f"{i}") for i in range(3)))
        given = words(agent=agent, reward=reward)[: 6 if reward else 4]
        done = tutelage(*given)
        assert done.exit_code == (1 if said else 0)
        assert said in done.stderr
        assert ("success" in done.stdout) == (not said)


def test_a_grader_that_is_mended_goes_on(tutelage: Tutelage, place: Path) -> None:
    write(place, row("396"), row("39"))
    done = tutelage(*words("--output", "runs/a", reward="misspelled"))
    assert done.exit_code == 1
    assert "no rollout could be graded: reward 'agent.py:misspelled' failed" in done.stderr
    (place / "agent.py").write_text(REPLIES.replace("anwser", "reply"))
    again = tutelage("resume", "runs/a")
    assert "changed" in again.stderr
    (place / "agent.py").write_text(REPLIES.replace('task["anwser"]', "1.0"))
    again = tutelage("resume", "runs/a", "--allow-changes")
    assert again.exit_code == 0, again.output
    other = tutelage(*words("--output", "runs/a", "--samples", "2"))
    assert "started with other settings: samples (1, now 2)" in " ".join(other.stderr.split())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("eval", "agnet.py", "--test", "t.jsonl"), "agent file not found: 'agnet.py'; did you"),
        (("eval", "agent.py:reads", "--test", "tt.jsonl"), "did you mean 't.jsonl'?"),
        (("eval", "agent.py:asks", "--test", "t.jsonl", "--model", "modle"), "did you mean 'model"),
        (("eval", "some/model", "--test", "bad.jsonl", "--reward", "math"), "bad.jsonl:2: invalid"),
        (("ask", "agent.py:reads", " "), "the question is empty: ' '"),
        (("ask", "what is it?", "agent.py:reads"), "the run must come before the question"),
        (("ask", "agent.py:reads", "?", "prices=5", "prices.lamp=2"), "invalid task field 'prices"),
    ],
)
def test_a_mistake_is_answered_in_one_line(
    tutelage: Tutelage, place: Path, given: tuple[str, ...], said: str
) -> None:
    (place / "model").mkdir()
    (place / "bad.jsonl").write_text('{"question": "?"}\n{\n')
    done = tutelage(*given)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.output


def test_a_question_brings_the_other_fields_of_its_task(tutelage: Tutelage, place: Path) -> None:
    done = tutelage("ask", "agent.py:replies", "What?", "reply=hello")
    assert done.exit_code == 0, done.output
    assert "answer  hello" in done.stdout
    failed = tutelage("ask", "agent.py:replies", "What?", "reply=broken")
    assert failed.exit_code == 1
    assert "failed, agent error: agent.py:13: ValueError: no idea" in failed.stdout


def test_config_lists_every_key(tutelage: Tutelage) -> None:
    from tutelage.config.reference import reference_markdown, reference_rows
    from tutelage.weights.config.extensions import registered_names

    shown, names = tutelage("config").stdout, registered_names()
    for row in reference_rows(names):
        assert f"{row.key}={row.default}   {row.type}" in shown
    assert tutelage("config", "--markdown").stdout == reference_markdown(names)
    shown = tutelage("config", "--", "--learning-rate").stdout
    assert shown.startswith("actor.optim.lr=1e-06   a number, above 0\n    Learning rate")
    result = tutelage("config", "lerning_rate")
    assert result.exit_code == 2
    assert "Did you mean 'learning_rate'?" in result.stderr


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
