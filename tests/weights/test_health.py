"""Runs that are broken on purpose: each is told of while it runs, and where it ends."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from tutelage.cli import build_app
from tutelage.testing import tiny_policy

from .parrot import make_parrot, rows, write_rows

PARTS = '''
import itertools
from pathlib import Path

from tutelage import reward
from tutelage.agents.tool_calling import ToolCallingAgent
from tutelage.algorithms.rl import TokenLoss, loss
from tutelage.tools import tool


def _ids(trajectory):
    return [i for call in trajectory.calls for i in call.sampled.token_ids]


def vary(prediction, trajectory):
    """Differs within a group."""
    return (sum(_ids(trajectory)) % 3) / 2


def half(prediction):
    """Never differs."""
    return 0.5


def short(prediction, trajectory):
    """Less than 1, and less for more tokens."""
    return 0.9 - len(_ids(trajectory)) / 100


@tool
def calculator(expression: str) -> str:
    """Work something out.

    Args:
        expression: what to work out
    """
    raise RuntimeError("the service is gone")


@tool("calculator")
def silent(expression: str) -> str:
    """Work something out.

    Args:
        expression: what to work out
    """
    return ""


def against(prediction):
    """Pays for what is wrong."""
    right = prediction.strip() == "42"
    return {"reward": 1.0 - right, "right": right}


played = itertools.count(1)


@reward(isolation="none")
def rise_and_fall(prediction, trajectory):
    """Varies in the first step, is the most there is in five, and is nothing from then on."""
    number = next(played)
    return sum(_ids(trajectory)) % 3 / 2 if number <= 16 else float(number <= 96)


class Failing(ToolCallingAgent):
    number = itertools.count(1)

    async def play(self, task, session, resources):
        if next(self.number) % 4:
            raise RuntimeError("the agent is broken")
        return await super().play(task, session, resources)


@loss(clip=(0.2, 0.2))
def balanced(inputs):
    """Writes what the rollouts of an optimizer batch have together: nothing, where they were
    compared with each other."""
    first_B1 = inputs.index.mask_BT.float().argmax(1, keepdim=True)
    total = float(inputs.advantages_BT.gather(1, first_B1).sum())
    with Path(__file__).with_name("sums.txt").open("a") as file:
        file.write(f"{total:.4f}\\n")
    loss_BT = -inputs.advantages_BT * inputs.ratio_BT
    return TokenLoss(loss_BT, inputs.index.mask_BT.new_zeros(loss_BT.shape))
'''


class Told(NamedTuple):
    """What a run said of itself."""

    output: str
    result: dict[str, Any]
    steps: list[dict[str, Any]]
    report: str


Train = Callable[..., Told]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """`tutelage train math` on the parrot, whose answers and tool calls vary."""
    folder = tmp_path_factory.mktemp("health")
    write_rows(folder / "train.jsonl", rows(0, 8))
    write_rows(folder / "val.jsonl", rows(8, 2))
    (folder / "parts.py").write_text(PARTS)
    numbers = iter(range(100))

    def run(reward: str | None = None, steps: int = 20, **changed: object) -> Told:
        out = folder / f"run{next(numbers)}"
        if "model__path" not in changed and not (folder / "model").is_dir():
            make_parrot(folder / "model")
        keys: dict[str, object] = {
            "model.path": folder / "model",
            "data.train_files": folder / "train.jsonl",
            "data.val_files": folder / "val.jsonl",
            "data.train_batch_size": 4,
            "agent.num_chains": 4,
            "agent.tools": "[calculator]",
            "agent.max_tokens_per_turn": 40,
            "rollout.max_len": 256,
            "actor.optim.lr": 1e-4,
            "trainer.test_freq": -1,
            "trainer.save_freq": -1,
            "trainer.val_tasks": 2,
            "trainer.val_before_train": "false",
            "trainer.threads": 1,
            **({} if reward is None else {"agent.reward_name": f"{folder / 'parts.py'}:{reward}"}),
            **{name.replace("__", "."): value for name, value in changed.items()},
        }
        args = ["train", "math", "--output", str(out), "--steps", str(steps)]
        done = CliRunner().invoke(
            build_app(), [*args, *(f"{k}={v}" for k, v in keys.items())], env={"COLUMNS": "300"}
        )
        assert done.exit_code == 0, done.output
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        return Told(
            done.output,
            json.loads((out / "result.json").read_text()),
            [line for line in lines if line["phase"] == "rl"],
            html.unescape((out / "report.html").read_text()),
        )

    run.__dict__["parts"] = folder / "parts.py"
    return run


def names(told: Told) -> list[str]:
    """The findings of a run."""
    return [entry["name"] for entry in told.result.get("health", [])]


def check_said(told: Told, name: str, *words: str) -> dict[str, Any]:
    """That the finding was said in time: while it ran, and in the result and the report."""
    assert name in names(told), told.output
    (entry,) = [e for e in told.result["health"] if e["name"] == name]
    assert entry["step"] <= 20
    for word in words:
        assert word in entry["text"] + entry["remedy"], word
    assert told.output.count(f"Warning: {entry['text']}. Try: ") == 1
    (kept,) = [w for w in told.result["warnings"] if entry["text"] in w]
    assert "Try: " in kept
    assert entry["text"].split(",")[0] in told.report
    assert "finished, with" in told.output
    return entry


@pytest.mark.full
def test_a_constant_reward_ends_with_a_warning(train: Train) -> None:
    told = train("half", steps=5)
    entry = check_said(told, "constant_reward", "all 64 rollouts so far have earned 0.5", "reward")
    assert entry["until"] is None
    assert names(told) == ["constant_reward"]
    assert "finished, with 1 warning" in told.output


@pytest.mark.full
@pytest.mark.parametrize(
    ("key", "changed"),
    [
        ("actor.kl_loss_coef", {"actor__use_kl_loss": "true", "actor__kl_loss_coef": 100}),
        (
            "algorithm.kl_ctrl.kl_coef",
            {"algorithm__use_kl_in_reward": "true", "algorithm__kl_ctrl__kl_coef": 10},
        ),
    ],
)
def test_a_kl_penalty_that_outweighs_the_reward_is_told_of(
    train: Train, key: str, changed: dict[str, object]
) -> None:
    told = train("short", steps=10, actor__optim__lr=1e-3, **changed)
    check_said(told, "kl_too_large", "times as much as the reward", f"a smaller {key}")


@pytest.mark.full
def test_a_kl_penalty_under_which_a_policy_learns_is_not_told_of(train: Train) -> None:
    keys = {"actor__use_kl_loss": "true", "actor__kl_loss_coef": 0.1}
    told = train("short", steps=12, actor__optim__lr=1e-3, **keys)
    assert "kl_too_large" not in names(told)
    assert 0 < max(step["kl/pull"] for step in told.steps) < 0.5


@pytest.mark.full
def test_a_tool_that_always_fails_is_told_of(train: Train) -> None:
    told = train(steps=5, agent__tools=f"[{train.__dict__['parts']}:calculator]")
    check_said(told, "broken_tool", "calls of the tool 'calculator' failed")


@pytest.mark.full  # three seconds of training
def test_a_reward_that_pays_for_failures_and_a_tool_that_says_nothing_are_told_of(
    train: Train,
) -> None:
    told = train(
        "against",
        steps=4,
        data__train_batch_size=8,
        agent__num_chains=8,
        reward__success="right",
        agent__tools=f"[{train.__dict__['parts']}:silent]",
    )
    entry = check_said(told, "reward_against_success", "correlation -1.00", "the sign")
    assert entry["step"] == 1
    check_said(told, "empty_tool", "calls of the tool 'calculator' returned nothing")


@pytest.mark.full  # three seconds of training
def test_a_solved_task_is_no_warning_and_a_reward_that_falls_after_it_is_one(train: Train) -> None:
    told = train("rise_and_fall", steps=10)
    assert sorted(names(told)) == ["flat_groups", "reward_collapse", "solved"]
    solved = told.result["health"][0]
    assert (solved["step"], solved["warning"]) == (5, False)
    said = [line for line in told.output.splitlines() if "solved: all rollouts of the" in line]
    assert len(said) == 2, "when it was found, and where the run ends"
    assert not [line for line in said if "Warning" in line]
    assert not [w for w in told.result["warnings"] if "solved" in w]
    entry = check_said(told, "reward_collapse", "has fallen from 1 to 0", "actor.optim.lr")
    assert entry["step"] == 10


def test_an_agent_that_fails_is_told_of(train: Train, tmp_path: Path) -> None:
    tiny_policy(max_positions=1024).save(tmp_path / "tiny")
    agent = f"{train.__dict__['parts']}:Failing"
    told = train("vary", steps=1, agent__agent_type=agent, model__path=tmp_path / "tiny")
    entry = check_said(told, "failed", "12 of 16 rollouts failed, mostly: agent error", "show")
    assert entry["step"] == 1


@pytest.mark.full
def test_an_optimizer_batch_keeps_the_rollouts_of_a_task_together(train: Train) -> None:
    parts = train.__dict__["parts"]
    train("vary", steps=2, actor__ppo_mini_batch_size=4, loss_mode=f"{parts}:balanced")
    sums = [float(line) for line in parts.with_name("sums.txt").read_text().split()]
    assert len(sums) >= 4
    assert sums == pytest.approx([0.0] * len(sums), abs=1e-3)


@pytest.mark.full
def test_a_run_that_learns_is_told_of_nothing(train: Train) -> None:
    """Its learning rate rises first, since the model is the user's."""
    told = train(steps=8, actor__optim__lr_scheduler_type="constant")
    assert (told.result["health"], told.result["warnings"]) == ([], [])
    assert "warning" not in told.output.lower()
    assert "status  finished\n" in told.output
    rates = [line["lr"] / 1e-4 for line in told.steps]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1])
