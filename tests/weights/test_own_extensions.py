"""An estimator, a loss and an agent type of a user's: found in a file, refused with a reason, used,
and continued, all by the public command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tutelage.cli import build_app
from tutelage.config import Resolved
from tutelage.runs.folder import RunFolder, create
from tutelage.store import open_store
from tutelage.weights import jobs
from tutelage.weights.config import resolve

from .samples import LAPTOP
from .tiny_job import KillAt, Killed, material, overrides

ESTIMATOR, LOSS, AGENT = (
    "algorithm.adv_estimator", "actor.policy_loss.loss_mode", "agent.agent_type",
)  # fmt: skip

OWN = """
from tutelage.agents.tool_calling import ToolCallingAgent
from tutelage.algorithms.rl import Estimate, Packed, TokenLoss, estimator, loss


@estimator(groups=True, chains=3, settings=("algorithm.gamma",))
def halved(batch: Packed) -> Estimate:
    rewards_NL = batch.final_N.unsqueeze(1).expand_as(batch.rewards_NL)
    return Estimate(rewards_NL / 2, rewards_NL)


@loss(clip=(0.1, 0.3))
def unbounded(inputs, *, tau_pos=9.0):
    loss_BT = -tau_pos * inputs.advantages_BT * inputs.ratio_BT
    return TokenLoss(loss_BT, inputs.index.mask_BT.new_zeros(loss_BT.shape))


class Terse(ToolCallingAgent):
    own_tools = ("sum_1_to_n",)

    def observe(self, call, turn, results):
        seen.append(turn)
        return super().observe(call, turn, results)


seen = []
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = material(tmp_path_factory.mktemp("own"))
    (folder / "loading.py").write_text(OWN)
    return folder


Train = Callable[..., Result]


@pytest.fixture
def train(source: Path, tmp_path: Path, one_thread: None) -> Train:
    """`tutelage train math` in a folder of the test's, with keys written with `__` for dots."""

    def run(*more: str, **changed: object) -> Result:
        keys = {"agent__num_chains": None, "agent__tools": None, **changed}
        words = ["train", "math", "--output", str(tmp_path / "run"), *overrides(source, **keys)]
        return CliRunner().invoke(build_app(), [*words, *more], prog_name="tutelage")

    return run


def refusal(done: Result) -> str:
    """What a command that was refused said, in one line."""
    assert done.exit_code == 2, done.output
    return " ".join(done.output.split())


def ended(folder: Path) -> tuple[Resolved, bytes]:
    """Configuration and policy of a run that has ended."""
    run = RunFolder(folder)
    assert (run.read_result() or {})["status"] == "finished"
    return Resolved.from_json(run.config.read_text()), (
        run.policy / "model.safetensors"
    ).read_bytes()


def test_an_estimator_of_a_file_trains(train: Train, source: Path, tmp_path: Path) -> None:
    done = train(
        f"estimator={source / 'loading.py'}:halved", algorithm__gamma=0.9, algorithm__lam=0.9
    )
    assert done.exit_code == 0, done.output
    resolved, _ = ended(tmp_path / "run")
    assert resolved.config.agent.num_chains == 3
    assert resolved.origin["agent.num_chains"] == f"derived from {ESTIMATOR}"
    assert [*resolved.unused] == ["algorithm.lam", "critic.optim.lr"], "it reads gamma"
    assert "reinforcement learning (HALVED)" in RunFolder(tmp_path / "run").report.read_text()


def test_a_loss_of_a_file_reads_the_clip_range(train: Train, tmp_path: Path) -> None:
    """That of PPO where it declares none; one that is configured is not told as unused."""
    (tmp_path / "mine.py").write_text(
        "from tutelage.algorithms.rl import TokenLoss\n"
        "def mine(inputs):\n"
        "    raise ValueError((inputs.low, inputs.high, inputs.dual))\n"
    )
    own = f"loss_mode={tmp_path / 'mine.py'}:mine"
    assert "(0.2, 0.2, 3.0)" in refusal(train(own))
    said = refusal(train(own, actor__clip_ratio=0.1))
    assert "(0.1, 0.1, 3.0)" in said
    assert "clip_ratio has no effect" not in said


@pytest.mark.full
def test_a_loss_of_a_file_trains_with_what_it_declares(
    train: Train, source: Path, tmp_path: Path
) -> None:
    own = f"loss_mode={source / 'loading.py'}:unbounded"
    done = train(own, actor__policy_loss__tau_pos=2.0, actor__policy_loss__tau_neg=2.0)
    assert done.exit_code == 0, done.output
    resolved, trained = ended(tmp_path / "run")
    actor = resolved.config.actor
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.1, 0.3)
    assert actor.loss_agg_mode == "token-mean"
    assert "actor.policy_loss.tau_neg" in resolved.unused
    assert "actor.policy_loss.tau_pos" not in resolved.unused
    assert trained != (source / "model" / "model.safetensors").read_bytes()


def test_an_agent_type_of_a_file_plays_with_its_own_tools(
    train: Train, source: Path, tmp_path: Path
) -> None:
    done = train(f"agent_type={source / 'loading.py'}:Terse", trainer__total_training_steps=1)
    assert done.exit_code == 0, done.output
    ended(tmp_path / "run")
    with open_store(RunFolder(tmp_path / "run").store) as store:
        rollouts = list(store.rollouts("run"))
    told = {tool.name for rollout in rollouts for call in rollout.last.calls for tool in call.tools}
    assert told == {"sum_1_to_n"}


@pytest.mark.full  # three seconds
def test_a_run_with_all_three_is_gone_on_with(train: Train, source: Path, tmp_path: Path) -> None:
    """Cut off and resumed it equals one that was not."""
    file = source / "loading.py"
    all_three = (
        f"estimator={file}:halved",
        f"loss_mode={file}:unbounded",
        f"agent_type={file}:Terse",
    )
    assert train(*all_three).exit_code == 0
    whole = ended(tmp_path / "run")[1]
    cut = create(tmp_path / "cut")
    keys = overrides(source, agent__num_chains=None, agent__tools=None)
    resolved = resolve("math", [*keys, *all_three], machine=LAPTOP)
    with pytest.raises(Killed):
        jobs.train(resolved, cut, KillAt(3))
    cut.result.unlink()
    done = CliRunner().invoke(build_app(), ["resume", str(cut.path)], prog_name="tutelage")
    assert done.exit_code == 0, done.output
    assert ended(cut.path)[1] == whole


WRONG = {
    "broken": ("\nx = unknown_name\n", ", line 2: NameError"),
    "missing": ("def other(batch): ...\n", "does not define 'own'"),
    "no function": ("own = 3\n", "must be a function, not a int"),
    "wrong signature": ("def own(batch, more): ...\n", "missing a required argument: 'more'"),
    "unknown need": (
        "from tutelage.algorithms.rl import estimator\n@estimator(group=True)\ndef own(b): ...\n",
        "@estimator has no option 'group'; did you mean 'groups'?",
    ),
    "no parentheses": (
        "from tutelage.algorithms.rl import loss\n@loss\ndef own(b): ...\n",
        "use @loss() with parentheses",
    ),
    "raises": ("def own(batch):\n    return 1 / 0\n", "line 2: ZeroDivisionError"),
    "misspelt": (
        "import torch\ndef owned(inputs): ...\n",
        "does not define 'own'; did you mean 'owned'?",
    ),
}
OF_LOSSES = {
    "float": (
        "from tutelage.algorithms.rl import loss\n@loss(clip=0.2)\ndef own(inputs): ...\n",
        "must be (low, high), such as (0.2, 0.2)",
    ),
    "scalar": (
        "from tutelage.algorithms.rl import TokenLoss\n"
        "def own(i):\n    return TokenLoss(i.logp_BT.sum(), i.logp_BT > 0)\n",
        "returned a TokenLoss of the shapes [(), (",
    ),
}


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        *((key, wrong) for key in (ESTIMATOR, LOSS) for wrong in WRONG),
        *((LOSS, w) for w in OF_LOSSES),
    ],
)
def test_what_is_wrong_with_a_file_is_said_before_a_model_loads(
    key: str, wrong: str, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, words = {**WRONG, **OF_LOSSES}[wrong]
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.setattr(
        "tutelage.weights.inputs.load_policy", lambda *_, **__: pytest.fail("a model")
    )
    done = train(f"{key}={tmp_path / 'mine.py'}:own")
    said = refusal(done)
    assert words in said
    assert key in said
    assert not (tmp_path / "run").exists()


AGENTS: dict[str, tuple[str, str]] = {
    "no agent": ("class Own: ...\n", "inherits from tutelage.agents.loop.LoopAgent"),
    "half": (
        "from tutelage.agents.loop import LoopAgent\nclass Own(LoopAgent):\n"
        "    def read(self, call): ...\n",
        "must define def observe(self, call, turn, results)",
    ),
    "other signature": (
        "from tutelage.agents.react import ReactAgent\nclass Own(ReactAgent):\n"
        "    def read(self): ...\n",
        "must define def read(self, call)",
    ),
    "other settings": (
        "from tutelage.agents.react import ReactAgent\nclass Own(ReactAgent):\n"
        "    def __init__(self, tools): ...\n",
        "cannot be created with the settings of the loop",
    ),
}


@pytest.mark.parametrize("wrong", AGENTS)
def test_what_is_wrong_with_an_agent_type(wrong: str, train: Train, tmp_path: Path) -> None:
    text, words = AGENTS[wrong]
    (tmp_path / "mine.py").write_text(text)
    assert words in refusal(train(f"{AGENT}={tmp_path / 'mine.py'}:Own"))


@pytest.mark.parametrize(("key", "name"), [(ESTIMATOR, "grpo"), (LOSS, "gspo"), (AGENT, "react")])
def test_a_registered_name_is_taken(key: str, name: str, train: Train, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"def {name}(batch): ...\n")
    said = refusal(train(f"{key}={tmp_path / 'mine.py'}:{name}"))
    assert f"the name {name!r} is already registered" in said


def test_what_returns_no_estimate_and_no_loss_is_told(train: Train, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from tutelage.algorithms.rl import Estimate\n"
        "def flat(batch):\n    return Estimate(batch.final_N, batch.final_N)\n"
        "def single(inputs):\n    return inputs.logp_BT\n"
    )
    said = refusal(train(f"estimator={tmp_path / 'mine.py'}:flat"))
    assert "return Estimate(advantages_NL, returns_NL)" in said
    said = refusal(
        train(f"loss_mode={tmp_path / 'mine.py'}:single", "--output", str(tmp_path / "b"))
    )
    assert "return TokenLoss(loss_BT, clipped_BT)" in said


@pytest.mark.full
@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ("inputs.advantages_BT * inputs.ratio_BT.detach()", "a loss without a gradient"),
        ("inputs.logp_BT / 0", "not finite for some tokens"),
    ],
)
def test_a_loss_that_cannot_train_is_told_at_once_and_mended_it_trains(
    loss: str, words: str, train: Train, tmp_path: Path
) -> None:
    text = (
        "from tutelage.algorithms.rl import TokenLoss\n"
        "def mine(inputs):\n    return TokenLoss({}, inputs.logp_BT > 0)\n"
    )
    (tmp_path / "mine.py").write_text(text.format(loss))
    own = f"loss_mode={tmp_path / 'mine.py'}:mine"
    assert words in refusal(train(own, trainer__total_training_steps=1))
    (tmp_path / "mine.py").write_text(text.format("-inputs.advantages_BT * inputs.ratio_BT"))
    done = train(own, trainer__total_training_steps=1)
    assert done.exit_code == 0, done.output


@pytest.mark.full
def test_a_foreign_run_does_not_run_them(train: Train, source: Path, tmp_path: Path) -> None:
    """The file is part of what a run is remembered by, as that of a reward is."""
    from tutelage.runs.trust import find_code

    (tmp_path / "loading.py").write_text(OWN)
    done = train(f"estimator={tmp_path / 'loading.py'}:halved", trainer__total_training_steps=1)
    assert done.exit_code == 0, done.output
    folder = RunFolder(tmp_path / "run")
    assert f"{tmp_path / 'loading.py'}:halved" in find_code(folder)
    told: dict[str, Any] = json.loads(folder.config.read_text())
    told["config"]["agent"]["agent_type"] = f"{tmp_path / 'loading.py'}:Terse"
    told["config"]["agent"]["reward_name"] = "math"
    folder.config.write_text(json.dumps(told))
    for verb in (["resume", str(folder.path)], ["ask", str(folder.path), "1+1?"]):
        said = refusal(CliRunner().invoke(build_app(), verb, prog_name="tutelage"))
        assert "loading.py:Terse" in said
        assert "--trust" in said
