"""What a run works with: held-out tasks that no training task equals, and files split fairly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tutelage.config import Machine
from tutelage.errors import ConfigError, ModelError, RewardError
from tutelage.runs.inputs import load_tasks, load_tools
from tutelage.testing import tiny_policy
from tutelage.types import Task
from tutelage.weights.cold_start import demonstration_rows
from tutelage.weights.config import resolve
from tutelage.weights.inputs import TrainingInputs, prepare_rl

from .parrot import rows, write_rows
from .samples import LAPTOP, config


def question(task: Task) -> str:
    """The question, spaces aside."""
    return "".join(str(task.input).split())


@pytest.mark.parametrize("level", ["default", pytest.param("hard", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in (1, 7))]
)
def test_held_out_questions_are_in_no_training_set(level: str, seed: int) -> None:
    """All tasks of a run, as the run makes them; and no held-out question occurs in any other
    seed's training tasks either, so a policy can be tested on another run's file."""
    keys = (f"data.level={level}", "trainer.val_tasks=400")
    parts = [load_tasks(config(f"seed={seed}", *keys)), load_tasks(config("seed=12345", *keys))]
    train = {question(t) for tasks in parts for t in tasks.train}
    val, test = ({question(t) for t in part} for part in (parts[0].val, parts[0].test))
    assert len(train) > 8000
    assert len(parts[0].val) == len(parts[0].test) == 400
    assert not val & test
    assert not train & (val | test)
    assert {t.id for t in parts[0].train}.isdisjoint(t.id for t in (*parts[0].val, *parts[0].test))

    def work(task: Task) -> str:  # what a task calls its tools with: another wording is no other
        return repr((task.fields["family"], task.fields["calls"]))

    held = {work(t) for t in (*parts[0].val, *parts[0].test)}
    assert not held & {work(t) for t in parts[0].train}


@pytest.mark.full
def test_tasks_repeat_with_the_seed_and_differ_without() -> None:
    """Fewer tasks are drawn anew, and are the first of the others."""
    first, again, other = (
        [question(t) for t in load_tasks(config(f"seed={seed}", f"data.train_tasks={n}")).train]
        for seed, n in ((3, 2000), (3, 1999), (4, 2000))
    )
    assert first[:1999] == again
    assert first != other


def test_files_are_one_set_of_which_some_are_held_out(tmp_path: Path) -> None:
    paths = [write_rows(tmp_path / f"{i}.jsonl", rows(20 * i, 20)) for i in range(2)]
    tasks = load_tasks(config(f"data.train_files=[{paths[0]},{paths[1]}]"))
    assert (len(tasks.val), len(tasks.train)) == (4, 36)
    assert not {t.id for t in tasks.train} & {t.id for t in tasks.val}
    assert not tasks.shown
    one = write_rows(tmp_path / "one.jsonl", rows(0, 1))
    for key, told in (("train", "pass --val"), ("val", "need --train")):
        with pytest.raises(ConfigError, match=told):
            load_tasks(config(f"data.{key}_files={one}"))


def test_the_reward_is_checked_on_every_part_before_a_model_loads(tmp_path: Path) -> None:
    train = write_rows(tmp_path / "t.jsonl", rows(0, 4))
    val = write_rows(tmp_path / "v.jsonl", [{"id": "odd", "question": "?"}])
    (tmp_path / "empty").mkdir()
    settings = config(
        f"data.train_files={train}", f"data.val_files={val}", f"model.path={tmp_path}/empty"
    )
    with pytest.raises(RewardError, match="task 'odd'"):
        prepare_rl(settings)


def test_the_context_is_the_models_own_as_far_as_memory_goes(
    one_thread: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the memory holds keys and values of all rollouts at once; never below 1024."""
    tiny_policy(max_positions=8192).save(tmp_path / "model")
    tasks = write_rows(tmp_path / "tasks.jsonl", rows(0, 20))
    keys = [f"model.path={tmp_path}/model", f"data.train_files={tasks}", "reward=math", "tools=[]"]

    def context(memory: int, *more: str) -> int:
        there = Machine(cuda_devices=0, cores=2, memory=memory)
        monkeypatch.setattr("tutelage.policy.model.detect_machine", lambda: there)
        return prepare_rl(resolve("rl", [*keys, *more], machine=LAPTOP).config).context

    token = 2 * 2 * 2 * 8 * 4  # keys and values, blocks, heads, channels, bytes
    assert context(1 << 40) == 8192
    groups = "num_chains=8"
    assert context(2 * 128 * token * 4100, groups) == 4096, "16 tasks x 8, a multiple of 64"
    assert context(2 * 128 * token * 4100) == 8192, "64 sequences of a measurement"
    assert context(1 << 20) == 1024
    assert context(1 << 20, "rollout.max_len=3000") == 3000
    with pytest.raises(ConfigError, match=r"response_length=2000 is too large: .* 1024"):
        context(1 << 20, "data.max_response_length=2000")


def test_an_agent_that_is_off_has_no_tools() -> None:
    assert list(load_tools(config())) == ["calculator", "sum_1_to_n", "lookup"]
    assert load_tools(config("agent.use_agent=false")) == {}
    assert list(load_tools(config("agent.tools=[lookup]"))) == ["lookup"]


def test_a_template_that_leaves_out_what_the_recipes_tasks_need_is_refused(
    one_thread: None, tmp_path: Path
) -> None:
    """Tools that nobody asked for, over tasks of one's own, are left out instead."""
    tiny_policy(max_positions=1024).save(tmp_path / "model")
    says_all = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>\n{% endfor %}"
    (tmp_path / "model" / "chat_template.jinja").write_text(says_all)
    few = ["data.train_tasks=8", "trainer.val_tasks=2"]
    model = f"model.path={tmp_path}/model"
    for recipe in ("math", "word-problems"):
        with pytest.raises(ModelError, match="ignores tools"):
            prepare_rl(resolve(recipe, [model, *few], machine=LAPTOP).config)
    assert prepare_rl(resolve("math", [model, *few, "tools=[]"], machine=LAPTOP).config).tools == {}
    tasks = write_rows(tmp_path / "tasks.jsonl", rows(0, 4))
    own = [model, f"data.train_files={tasks}", "reward=math"]
    assert prepare_rl(resolve("rl", own, machine=LAPTOP).config).tools == {}


FEW = ("data.train_tasks=8", "trainer.val_tasks=2", "trainer.test_tasks=2")


def test_the_embedded_policy_is_a_function_of_the_seed(one_thread: None) -> None:
    def weights(seed: int) -> dict[str, Any]:
        made: TrainingInputs = prepare_rl(
            resolve("math", [f"seed={seed}", "model.path=null", *FEW], machine=LAPTOP).config
        )
        return {name: tensor.clone() for name, tensor in made.policy.named_tensors()}

    first, again, other = weights(1), weights(1), weights(2)
    assert all(first[name].equal(again[name]) for name in first)
    assert not all(first[name].equal(other[name]) for name in first)


@pytest.mark.full
def test_demonstrations_are_of_training_tasks_and_guess_as_often_as_asked(
    one_thread: None,
) -> None:
    """The cold start shows no held-out question; the stated share answers without a tool."""
    setting = prepare_rl(config("model.size=xs"))
    known = {question(t) for t in setting.tasks.train}
    for share in (0.0, 0.7, 1.0):
        made = [
            setting.policy.codec.decode(row.ids)
            for step in range(10)
            for row in demonstration_rows(setting, setting.seeds.child("x", step), share)
        ]
        asked = (text.split("<|im_start|>user\n")[1].split("<|im_end|>")[0] for text in made)
        seen = {"".join(words.split()) for words in asked}
        assert len(seen) > 100
        assert seen <= known
        guesses = sum("<tool_call>" not in text for text in made) / len(made)
        assert guesses == pytest.approx(share, abs=0.1 if share == 0.7 else 0.0)
