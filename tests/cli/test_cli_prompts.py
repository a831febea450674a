"""Prompt searches on the command line: plan, rounds, verdict, exit codes, verbs, bad input."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.prompts.prompt_parts import KEY, WORDS, files_with, refusing_server, served
from typer.testing import CliRunner

from tutelage.cli import build_app
from tutelage.prompts.evaluator import EVENTS
from tutelage.store import open_store

from .sample_run import make_run

HINT = "'hints=\"Be kind.\"'"
SMALL = "--train-size 5 --val-size 8 --test-size 50"
AGENT = """
from tutelage import PromptTemplate, rollout

style = PromptTemplate("Answer {task}.")

@rollout
def solve(task, style):
    said = style.format(task=task["question"])
    return WORTH
"""


@pytest.fixture(scope="module")
def env() -> Iterator[dict[str, str]]:
    with served() as (found, _):
        yield found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in [n for n in os.environ if n.startswith(("OPENAI_", "TUTELAGE_"))]:
        monkeypatch.delenv(name)
    return tmp_path


@pytest.fixture
def dotenv(here: Path, env: dict[str, str]) -> Path:
    (here / ".env").write_text("".join(f"{k}={v}\n" for k, v in env.items()))
    return here


def run(line: str, code: int | None = 0) -> str:
    done = CliRunner().invoke(build_app(), shlex.split(line), prog_name="tutelage")
    if code is not None:
        assert done.exit_code == code, done.output
    return done.output


def own(here: Path, worth: str, tasks: int = 150) -> str:
    """The arguments for an agent of our own whose reward is `worth`."""
    (here / "agent.py").write_text(AGENT.replace("WORTH", worth))
    rows = [json.dumps({"id": f"t{i}", "question": f"number {i}"}) for i in range(tasks)]
    (here / "tasks.jsonl").write_text("\n".join(rows))
    return "agent.py --train tasks.jsonl --algorithm screen --iterations 2"


@pytest.mark.full
@pytest.mark.usefixtures("dotenv")
def test_the_documents_flow_from_env_file_to_verdict(here: Path) -> None:
    said = run(f"train math --algorithm apo --iterations 3 {SMALL} --output run")
    order = [
        "Plan",
        "at most",
        "Iteration 1",
        'Prompt: "You are a helpful assistant',
        "Tasks: 5 training tasks",
        "Rewards: [",
        "Average: ",
        "wins",
        "Spent: ",
        "held-out test, 50 tasks",
        "95 % interval",
        "Verdict: improved",
        "Improvement: ",
        "best_prompt.txt",
        "tutelage prompts tree run",
    ]
    at = [said.find(word) for word in order]
    plain = re.sub(r"\s+", " ", said)
    assert all(word in said for word in order), [w for w, a in zip(order, at, strict=True) if a < 0]
    # Progress goes to the error stream, which the runner mixes in; each stream keeps its order.
    assert at[0] < at[1] < at[2] < at[3] < at[8]
    assert at[9] < at[11] < at[12] < at[13]
    assert "Iteration 3" in plain
    assert KEY not in said
    assert files_with(here / "run", KEY) == []


@pytest.mark.full
@pytest.mark.usefixtures("dotenv")
def test_the_verbs_read_a_run(here: Path) -> None:
    run(f"train math --algorithm gepa --iterations 4 {SMALL} --output run", None)
    tree = run("prompts tree run --all")
    assert "winner" in tree
    assert "seed" in tree
    assert run("prompts diff run seed seed").strip() == "The two have the same texts."
    assert "+" in run("prompts diff run")
    best = (here / "run" / "best_prompt.txt").read_text()
    assert run("prompts export run").strip() == best.strip()
    assert "1 component written to out" in run("prompts export run --out out")
    exported = sorted(Path("out").glob("*.txt"))[0]
    run("prompts export run --out out")  # the same again is no loss
    exported.write_text("what a person made of it")
    assert "already exists" in run("prompts export run --out out", 2)
    assert exported.read_text() == "what a person made of it"
    exported.unlink()
    run("prompts export run --out out")
    assert json.loads((here / "out" / "components.json").read_text()) == {"prompt": best}
    assert "Verdict" in run("show run")
    assert "->" in run("runs --below .")
    looked = run("prompts confirm run", None)
    assert "look 2" in looked
    again = run("prompts confirm run", None)
    assert "look 3" in again
    rollout = re.search(r"roll_\w+", run("show run --rollouts 3"))
    assert rollout is not None
    assert "chat" in run(f"show {rollout[0]} --run run")


@pytest.mark.full
def test_confirm_of_own_tasks_needs_fresh_ones(here: Path) -> None:
    line = own(here, '1.0 if "kind" in said else 0.2')
    run(f"train prompt {line} --output run {HINT}")
    assert "must be passed too: --test FILE" in run("prompts confirm run", 2)
    rows = [json.dumps({"id": f"n{i}", "question": f"new {i}"}) for i in range(60)]
    (here / "fresh.jsonl").write_text("\n".join(rows))
    assert "look 2" in run("prompts confirm run --test fresh.jsonl")


@pytest.mark.full
@pytest.mark.parametrize(
    ("worth", "code", "verdict"),
    [
        ('1.0 if "kind" in said else 0.2', 0, "improved"),
        ("0.5", 3, "no evidence"),
        ("0.0", 3, "no evidence"),
        # Validation tasks are few, and on them what is worse looks better.
        ('0.6 if "kind" not in said else float(int(task["id"][1:]) in SEEN)', 4, "regressed"),
    ],
)
def test_exit_codes_follow_the_verdict(worth: str, code: int, verdict: str, here: Path) -> None:
    from tutelage.prompts.tasks import split_dataset
    from tutelage.tasks.dataset import Dataset

    line = own(here, "0.0")
    split = split_dataset(Dataset[Any].load("tasks.jsonl"), 0)
    seen = {int(t.id[1:]) for t in (*split.train, *split.val)}
    line = own(here, worth.replace("SEEN", str(seen)))
    said = run(f"train prompt {line} --output run {HINT} --rollouts 400", code)
    assert f"Verdict: {verdict}" in said
    for alike in ("0.5", "0.0"):
        text = f"rollouts so far have earned {float(alike):g}, so nothing has been learned"
        assert (text in " ".join(said.split())) == (worth == alike)
    assert run("resume run", code).count("Verdict: ") == 1, "a finished run says the same again"


@pytest.mark.usefixtures("dotenv")
def test_a_dry_run_shows_plan_and_task_and_writes_nothing(here: Path) -> None:
    said = run(f"train math --algorithm apo --iterations 3 {SMALL} --dry-run")
    assert "at most" in said
    assert "one task was played" in said
    assert [p.name for p in here.iterdir()] == [".env"]


def test_a_folder_of_another_run_is_refused_before_the_plan(here: Path) -> None:
    make_run(here / "runs" / "first")
    (here / "full").mkdir()
    (here / "full" / "notes").write_text("")
    for output, why in (("runs/first", "is of the kind 'weights'"), ("full", "is not empty")):
        said = run(f"train math --algorithm screen --output {output}", 2)
        assert why in said
        assert "Plan" not in said


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("train math --algorithm apo", "--algorithm screen"),
        ("train math --algorithm aop", "apo"),
        ("train math --algorithm screen --rollouts 10", "fewer than 3"),
        ("train math --algorithm screen rolouts=10", "Did you mean rollouts?"),
        ("train math --algorithm screen beam=3", "does not use it"),
        ("train math --algorithm screen --steps 3", "Did you mean iterations?"),
        ("train math --algorithm screen --otlp nowhere --dry-run", "not an OTLP/HTTP endpoint"),
        ("train prompt", "tutelage train prompt AGENT.py"),
        ("train prompt nothing.py --train x.jsonl", "agent file not found: 'nothing.py'"),
        ("prompts tree nothing", "nothing"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(line: str, words: str) -> None:
    said = run(line, 2)
    assert words.lower() in said.lower()
    assert "Traceback" not in said


def test_bad_tasks_of_an_own_agent_are_told(here: Path) -> None:
    line = own(here, "1.0", tasks=3)
    assert "cannot be split" in run(f"train prompt {line}", 2)
    (here / "tasks.jsonl").write_text("[1]\n")
    assert "tasks.jsonl" in run(f"train prompt {line}", 2)


@pytest.mark.full
def test_an_agent_that_fails_scores_nothing_and_says_why(here: Path) -> None:
    line = own(here, "1 / 0")
    said = run(f"train prompt {line} --output run", 3)
    assert "Verdict: no evidence" in said
    with open_store(here / "run" / "store.db") as store:
        assert "ZeroDivisionError" in json.dumps(store.events("run", EVENTS))
    plain = re.sub(r"\s+", " ", said)
    cause = r"rollouts failed, mostly: agent error \(the first: agent\.py:\d+: ZeroDivisionError: "
    assert re.search(rf"from iteration 1: \d+ of \d+ {cause}", plain)
    assert "Try: look at one: tutelage show run --failed" in plain
    result = json.loads((here / "run" / "result.json").read_text())
    assert [entry["name"] for entry in result["health"]] == ["failed", "constant_reward"]
    assert len(result["warnings"]) == 2


SWALLOWS = '''
from tutelage import LLM, PromptTemplate, rollout

prompt = PromptTemplate("Solve it.")

@rollout
async def solve(task, llm: LLM, prompt: PromptTemplate):
    """As Agno and others do, it makes an error of the model an answer."""
    try:
        said = (await llm.chat(prompt.format() + task["question"])).reply.content
    except Exception as error:
        said = str(error)
    return float(said == task["id"])
'''


def test_a_player_that_is_refused_stops_a_search_and_is_no_wrong_answer(here: Path) -> None:
    own(here, "0.0", tasks=30)
    (here / "agent.py").write_text(SWALLOWS)
    with refusing_server() as url:
        values = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "k", "OPENAI_MODEL": "m"}
        (here / ".env").write_text("".join(f"{k}={v}\n" for k, v in values.items()))
        said = run("train prompt agent.py --train tasks.jsonl --algorithm apo --output run", 2)
    assert WORDS in said
    assert "Traceback" not in said
    assert not (here / "run" / "result.json").exists()
