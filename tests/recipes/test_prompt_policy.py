"""The embedded policy of prompt search: built once, kept, shared, never half there."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch

from tutelage.errors import ConfigError
from tutelage.recipes import prompt_policy as module
from tutelage.recipes.prompt_policy import (
    RECORD,
    PolicyRecipe,
    built_policy,
    fingerprint,
    train_policy,
    training_rows,
)
from tutelage.recipes.prompted import prompted_tasks
from tutelage.runs.progress import Progress
from tutelage.seeds import SeedTree
from tutelage.types import Message, Task

TINY = PolicyRecipe(steps=2, cooldown=1, prompts=2, tasks=2, size="test", vocabulary=400)


class Told(Progress):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.notes: list[str] = []
        self.losses: list[float] = []

    def phase(self, name: str, *, steps: int | None = None, seconds: float | None = None) -> None:
        self.phases.append(name)

    def step(self, done: int, values: object) -> None:
        assert isinstance(values, dict)
        self.losses.append(values["loss/sft"])

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_it_is_built_once_and_then_loaded(tmp_path: Path) -> None:
    told = Told()
    first = built_policy(tmp_path, recipe=TINY, progress=told)
    assert first.fresh
    assert first.seconds > 0
    assert len(told.phases) == 1
    assert len(told.losses) == TINY.steps
    again = built_policy(tmp_path, recipe=TINY, progress=told)
    assert not again.fresh
    assert (again.seconds, again.folder) == (first.seconds, first.folder)
    assert len(told.phases) == 1
    for (name, a), (other, b) in zip(first.policy.named(), again.policy.named(), strict=True):
        assert name == other
        assert torch.equal(a, b)


def test_the_same_recipe_gives_the_same_weights() -> None:
    first, second = (dict(train_policy(TINY, Progress()).named()) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.full
def test_it_learns() -> None:
    told = Told()
    train_policy(PolicyRecipe(40, 10, prompts=4, tasks=4, size="test", vocabulary=400), told)
    assert sum(told.losses[-4:]) / 4 < 0.7 * told.losses[0]


def test_another_recipe_is_kept_apart(tmp_path: Path) -> None:
    other = PolicyRecipe(
        steps=2, cooldown=1, prompts=2, tasks=2, size="test", vocabulary=400, seed=1
    )
    folders = {built_policy(tmp_path, recipe=recipe).folder for recipe in (TINY, other)}
    assert len(folders) == 2
    assert fingerprint(TINY) != fingerprint(other)


def test_other_lessons_are_another_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(TINY)
    assert fingerprint(TINY) == before

    def other(task: Task, rules: frozenset[str]) -> list[Message]:
        return [Message("assistant", "42")]

    monkeypatch.setattr(module, "target_turns", other)
    assert fingerprint(TINY) != before


@pytest.mark.parametrize(
    "lost",
    [
        "built.json",
        pytest.param("config.json", marks=pytest.mark.full),
        pytest.param("model.safetensors", marks=pytest.mark.full),
    ],
)
def test_a_broken_policy_is_built_again(tmp_path: Path, lost: str) -> None:
    folder = built_policy(tmp_path, recipe=TINY).folder
    (folder / lost).unlink()
    told = Told()
    assert built_policy(tmp_path, recipe=TINY, progress=told).fresh
    assert "broken" in told.notes[0]
    assert not built_policy(tmp_path, recipe=TINY).fresh


def test_a_build_that_is_stopped_leaves_no_policy_behind(tmp_path: Path) -> None:
    class Stopping(Progress):
        def step(self, done: int, values: object) -> None:
            raise KeyboardInterrupt

    before = torch.get_num_threads()
    with pytest.raises(KeyboardInterrupt):
        built_policy(tmp_path, recipe=TINY, progress=Stopping())
    assert not [*tmp_path.iterdir()], "not even its lock"
    assert torch.get_num_threads() == before
    assert built_policy(tmp_path, recipe=TINY).fresh


def test_what_a_killed_build_left_is_cleared(tmp_path: Path) -> None:
    left = tmp_path / f"{fingerprint(TINY)}.half" / "policy"
    left.mkdir(parents=True)
    folder = built_policy(tmp_path, recipe=TINY).folder
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [folder]


def test_only_the_policies_that_were_used_last_are_kept(tmp_path: Path) -> None:
    for age, name in enumerate(["older", "old", "recent", "used"]):
        (tmp_path / name).mkdir()
        (tmp_path / name / RECORD).write_text("{}")
        os.utime(tmp_path / name / RECORD, (age, age))
    (tmp_path / "mine").mkdir()  # no policy of the cache
    folder = built_policy(tmp_path, recipe=TINY).folder
    left = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert left == {folder.name, "recent", "used", "mine"}
    os.utime(folder / RECORD, (0, 0))
    assert not built_policy(tmp_path, recipe=TINY).fresh
    assert (folder / RECORD).stat().st_mtime > 0


def test_who_comes_while_it_is_built_waits_for_it(tmp_path: Path) -> None:
    waiting = threading.Event()
    found: list[bool] = []

    class Second(Told):
        def note(self, text: str) -> None:
            super().note(text)
            waiting.set()

    second = Second()

    def come() -> None:
        found.append(built_policy(tmp_path, recipe=TINY, progress=second).fresh)

    class First(Progress):
        def __init__(self) -> None:
            self.other: threading.Thread | None = None

        def step(self, done: int, values: object) -> None:
            if self.other is None:
                self.other = threading.Thread(target=come)
                self.other.start()
                assert waiting.wait(600)

    first = First()
    assert built_policy(tmp_path, recipe=TINY, progress=first).fresh
    assert first.other is not None
    first.other.join(600)
    assert found == [False]
    assert "waiting" in second.notes[0]


def test_a_cache_that_cannot_be_written_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"):
        built_policy(tmp_path / "file" / "cache", recipe=TINY)


def test_only_what_the_agent_writes_is_trained() -> None:
    policy = train_policy(TINY, Progress())
    rows = training_rows(policy, prompted_tasks("train", 20, 0), TINY, SeedTree(0))
    assert len(rows) == TINY.prompts * TINY.tasks
    for row in rows:
        trained = policy.codec.decode([i for i, m in zip(row.ids, row.mask, strict=True) if m])
        rest = policy.codec.decode([i for i, m in zip(row.ids, row.mask, strict=True) if not m])
        assert trained.endswith("<|im_end|>")
        assert "Tools:" not in trained
        assert "Tools: calculator(expression) sum_1_to_n(n)" in rest
