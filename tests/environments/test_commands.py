"""Commands and `Trainer` in an environment: training, evaluation, search, resume, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tutelage import RL, Trainer
from tutelage.cli import build_app
from tutelage.environments import EnvironmentFactory, start
from tutelage.errors import ConfigError
from tutelage.runs.figures import folder_hash
from tutelage.store import open_store
from tutelage.types import Task

COINS = """
import random

from tutelage.environments import Observation, Step
from tutelage.types import Message, Task

SMALL = ("1", "2", "5", "10")


class Coins:
    def reset(self, task, seed):
        self.left = task["amount"]
        return self.show()

    def show(self):
        return Observation((Message("user", f"left: {self.left}"),), actions=SMALL)

    def step(self, action):
        self.left -= int(action.content) if (action.content or "").isdecimal() else 1000
        won = self.left == 0
        return Step(self.show(), won - 0.125, self.left <= 0, info={"success": won})

    def close(self):
        pass

    @staticmethod
    def tasks(split, n, seed):
        amounts = random.Random(seed).sample(range(1, 100), min(n, 99))
        return [Task(f"{split}-{a}", {"question": f"Pay {a}.", "amount": a}) for a in amounts]

    @staticmethod
    def expert(task, messages):
        left = int(messages[-1].content.split()[-1])
        return Message("assistant", max((c for c in SMALL if int(c) <= left), key=int))


class Random(Coins):
    expert = None


class Silent(Coins):
    expert = None

    def show(self):
        return Observation((Message("user", f"left: {self.left}"),))


class Untrue(Coins):
    def reset(self, task, seed):
        self.left = task["amount"] + random.SystemRandom().randrange(10**6)
        return self.show()


class Honest(Untrue):
    deterministic = False


class Taskless(Coins):
    tasks = None


class Short(Coins):
    @staticmethod
    def tasks(split, n, seed):
        return random.Random(seed).sample(range(1), n)
"""
AGENT = """
from tutelage import rollout


@rollout
async def payer(task, llm, environment):
    messages = [{"role": "user", "content": task["question"]}]
    while not environment.ended:
        messages += [m.to_dict() for m in environment.observation.messages]
        call = await llm.chat(messages, max_tokens=4)
        messages.append(call.reply.to_dict())
        if len(messages) > 8:
            break
        await environment.step(call.reply)
"""
KEYS = [
    *("steps=1", "data.train_batch_size=2", "num_chains=2", "data.train_tasks=8"),
    *("trainer.val_tasks=2", "trainer.test_tasks=4", "agent.max_turns=4", "trainer.test_freq=0"),
    *("sft.max_steps=2", "sft.cooldown_steps=1"),
]


@pytest.fixture(autouse=True)
def few_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("OBSERVATIONS", 40), ("EPISODES", 40), ("AT_ONCE", 8)):
        monkeypatch.setattr(start, name, value)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Path:
    monkeypatch.chdir(tmp_path)
    tmp_path.joinpath("coins.py").write_text(COINS)
    tmp_path.joinpath("agent.py").write_text(AGENT)
    return tmp_path


def tutelage(*words: str) -> Result:
    return CliRunner().invoke(build_app(), list(words), prog_name="tutelage")


def train(name: str, *words: str, agent: str = "") -> Result:
    first = ["train", *[agent] * bool(agent)]
    return tutelage(*first, "--environment", f"coins.py:{name}", *KEYS, *words)


def result(folder: str) -> dict[str, Any]:
    return json.loads(Path(folder, "result.json").read_text())


def test_a_run_trains_is_continued_evaluated_and_shown_as_a_story(place: Path) -> None:
    done = train("Coins", "--output", "run")
    assert done.exit_code == 0, done.output
    assert "of the expert of Coins" in done.output
    first = result("run")
    assert (first["status"], first["rl_steps"], first["level"]) == ("finished", 1, None)
    assert first["success_after_greedy"] is not None, "info['success'] says what succeeded"
    assert first["graded"]
    assert first["failures"] == {}

    shown = place.joinpath("run", "demonstrations.jsonl").read_text()
    rows = [json.loads(line)["messages"] for line in shown.splitlines()]
    assert all(row[-1]["role"] == "assistant" and row[1]["content"][:5] == "left:" for row in rows)

    assert train("Coins", "--output", "again").exit_code == 0
    assert folder_hash(place / "run" / "policy") == folder_hash(place / "again" / "policy")

    # It is continued on the same episodes, and not where the environment was edited.
    longer = [key for key in KEYS if key[:5] != "steps"]
    more = ("train", "--environment", "coins.py:Coins", *longer, "--steps", "2", "--output")
    done = tutelage(*more, "run")
    assert done.exit_code == 0, done.output
    assert result("run")["rl_steps"] == 2
    assert place.joinpath("run", "demonstrations.jsonl").read_text() == shown
    place.joinpath("coins.py").write_text(COINS.replace("0.125", "0.25"))
    changed = tutelage(*more, "again")
    assert changed.exit_code != 0
    assert "coins.py:Coins" in changed.output
    place.joinpath("coins.py").write_text(COINS)

    evaluated = tutelage("eval", "run", "--limit", "3", "--json")
    assert evaluated.exit_code == 0, evaluated.output
    record = json.loads(evaluated.stdout)
    assert record["rollouts"] == 3
    assert record["test_in_train"] == 0

    with open_store(place / "run" / "store.db", create=False) as store:
        (run,) = store.runs()
        played = next(r for r in store.rollouts(run.id) if r.label == "after/sampled")
    story = tutelage("show", played.id, "--run", "run").output
    for shown in ("observation", "reward -0.125", "left:", '"success"', "turn 1"):
        assert shown in story
    page = place.joinpath("run", "report.html").read_text()
    assert '<span class="who">sees</span>' in page
    assert '<span class="who">earns</span>' in page


def test_without_an_expert_the_best_of_random_actions_are_imitated(place: Path) -> None:
    done = train("Random", "--output", "run")
    assert done.exit_code == 0, done.output
    assert "the best 4 of 40 episodes of random actions in Random" in " ".join(done.output.split())
    assert len(place.joinpath("run", "demonstrations.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize(
    ("name", "words", "ways"),
    [
        ("Silent", (), ("--model smollm2", "--demonstrations FILE", "--endpoint URL", "expert(")),
        ("Untrue", (), ("deterministic = False", "seed of reset()")),
        ("Taskless", (), ("--train FILE", "tasks(split, n, seed)")),
        (
            "Short",
            (),
            (
                "tasks('test', 4, 1000000) of the environment 'Short' failed",
                "return fewer tasks",
            ),
        ),
        ("Coins", ("environment.kwargs=3",), ('{"size": 3}',)),
        ("Coins", ("agent.placement=ray",), ("agent.placement",)),
        ("Coin", (), ("coins.py",)),
    ],
)
def test_what_cannot_be_trained_is_refused_with_the_way_on(
    place: Path, name: str, words: tuple[str, ...], ways: tuple[str, ...]
) -> None:
    done = train(name, *words, "--output", "run")
    assert done.exit_code == 2, done.output
    said = " ".join(done.output.split())
    assert all(way in said for way in ways), said
    assert not place.joinpath("run", "config.json").exists()


def test_an_environment_that_does_not_repeat_runs_and_says_so(place: Path) -> None:
    done = train("Honest", "--output", "run")
    assert done.exit_code == 0, done.output
    assert "'Honest' is not deterministic" in " ".join(done.output.split())


def test_a_dry_run_plays_one_task_of_a_file(place: Path) -> None:
    place.joinpath("tasks.jsonl").write_text('{"amount": 7}\n{"amount": 8}\n{"amount": 9}\n')
    done = train("Taskless", "--train", "tasks.jsonl", "--dry-run")
    assert done.exit_code == 0, done.output
    assert 'environment.name="coins.py:Taskless"' in done.output
    assert "left: " in done.output
    assert "nothing was trained" in done.output
    assert tutelage("train").exit_code == 2
    assert tutelage("train", "math", "--environment", "coins.py:Coins").exit_code == 2


def test_an_own_agent_drives_the_environment(place: Path) -> None:
    done = train("Coins", "--output", "run", agent="agent.py")
    assert done.exit_code == 0, done.output
    assert result("run")["rl_steps"] == 1
    assert result("run")["failures"] == {}
    longer = [key for key in KEYS if key[:5] != "steps"]
    more = tutelage(
        *("train", "agent.py", "--environment", "coins.py:Coins", *longer, "--steps", "2"),
        *("--output", "run"),
    )
    assert more.exit_code == 0, more.output
    again = tutelage("resume", "run")
    assert again.exit_code == 0, again.output


def test_a_prompt_is_searched_for_in_an_environment(place: Path) -> None:
    assert train("Coins", "--output", "run").exit_code == 0
    sizes = ("--train-size", "4", "--val-size", "4", "--test-size", "6", "max_turns=2")
    search = ("train", "--environment", "coins.py:Coins", "--algorithm", "screen", *sizes)
    refused = tutelage(*search)
    assert refused.exit_code == 2
    assert "--model" in refused.output
    more = ("--model", "run/policy", "--rollouts", "40", "--output", "search")
    done = tutelage(*search, *more)
    assert done.exit_code in (0, 3, 4), done.output
    assert "environment" in done.output
    assert "Coins" in done.output
    assert result("search")["test"]["tasks"] == 6


def test_a_trainer_takes_a_class(place: Path) -> None:
    names: dict[str, Any] = {}
    exec(COINS + AGENT, names)
    keys = dict(key.split("=") for key in KEYS)
    keys = {key: int(value) for key, value in keys.items()}
    trainer = Trainer(algorithm=RL(keys), environment=names["Coins"], output_dir="run", n_runners=4)
    done = trainer.fit(names["payer"])
    assert done.status == "finished"
    assert Trainer(environment=names["Coins"], model="run/policy").evaluate(names["payer"]).tasks
    with pytest.raises(ConfigError, match="is not an environment"):
        Trainer(environment=3)  # pyright: ignore[reportArgumentType]


def test_splits_have_seeds_apart_and_no_question_twice() -> None:
    asked: dict[str, int] = {}

    def tasks(split: str, n: int, seed: int) -> list[Task]:
        asked[split] = seed
        # A question with its answer is the same whatever else the task says.
        return [Task(f"{split}{i}", {"question": i % 7, "answer": 1, "place": i}) for i in range(n)]

    def texts(split: str, n: int, seed: int) -> list[Task]:
        found = tasks(split, n, seed)
        low = {"train": 0, "val": 4, "test": 6}[split]
        return [Task(t.id, {**t.fields, "question": f"q{low + t['question']}"}) for t in found]

    factory = EnvironmentFactory("Made", object, tasks=texts)  # pyright: ignore
    splits = start.environment_tasks(factory, {"train": 14, "val": 3, "test": 2}, 5)
    assert asked == {"test": 1_000_005, "val": 2_000_005, "train": 5}
    said = {name: [task["question"] for task in found] for name, found in splits.items()}
    assert said == {"test": ["q6", "q7"], "val": ["q4", "q5"], "train": ["q0", "q1", "q2", "q3"]}


def test_an_expert_that_replies_what_is_no_action_is_refused(place: Path) -> None:
    (place / "wordy.py").write_text(
        COINS
        + """

class Wordy(Coins):
    @staticmethod
    def expert(task, messages):
        return Message("assistant", "I pay 1")
"""
    )
    done = tutelage("train", "--environment", "wordy.py:Wordy", "--dry-run", *KEYS)
    assert done.exit_code == 2
    said = " ".join(done.stderr.split())
    assert "the expert of the environment" in said
    assert "'I pay 1'" in said
