"""The splits of a prompt search, its plan, and what is refused before anything is spent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.prompts.prompt_parts import configured, set_up

from tutelage.errors import ConfigError
from tutelage.prompts import Splits
from tutelage.prompts.config import PromptConfig, resolve_prompt
from tutelage.prompts.tasks import draw_fresh_tasks, make_splits, split_dataset
from tutelage.runs.folder import RunFolder, write_json
from tutelage.runs.kinds import load_settings
from tutelage.types import Task

ENV = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "OPENAI_API_KEY": "k"}


def tasks(count: int) -> list[Task]:
    return [Task(f"t{i}", {"question": f"q{i}"}) for i in range(count)]


@pytest.mark.parametrize(("count", "sizes"), [(100, (40, 20, 40)), (5, (2, 1, 2)), (7, (3, 1, 3))])
def test_one_dataset_is_cut_in_three_by_the_seed_alone(
    count: int, sizes: tuple[int, int, int]
) -> None:
    found = split_dataset(tasks(count), 0)
    parts = [{t.id for t in part} for part in (found.train, found.val, found.test)]
    assert tuple(map(len, parts)) == sizes
    assert len(set.union(*parts)) == count
    assert split_dataset(tasks(count), 0) == found
    assert split_dataset(tasks(100), 1) != split_dataset(tasks(100), 0)
    with pytest.raises(ConfigError, match="at least 5"):
        split_dataset(tasks(4), 0)


def test_generated_tasks_are_200_sealed_ones_that_no_other_split_has() -> None:
    config = resolve_prompt("math", (), {})
    found = make_splits(config)
    assert [len(p) for p in (found.train, found.val, found.test)] == [20, 20, 200]
    asked = [{str(t.fields["question"]) for t in p} for p in (found.train, found.val, found.test)]
    assert not asked[2] & (asked[0] | asked[1])
    again = draw_fresh_tasks(config, 200)
    assert len(again) == 200
    assert not {t.id for t in again} & {t.id for t in found.test}
    with pytest.raises(ConfigError, match="use 1 to 1000"):
        draw_fresh_tasks(config, 900)


def test_sizes_cut_files(tmp_path: Path) -> None:
    for name, begin in (("train", 0), ("val", 50), ("test", 100)):
        rows = [f'{{"id": "{name}{i}", "question": "q{begin + i}"}}' for i in range(20)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    files = {n: str(tmp_path / f"{n}.jsonl") for n in ("train", "val", "test")}
    found = make_splits(resolve_prompt("math", (), {**files, "train_size": 5, "test_size": 7}))
    assert [len(p) for p in (found.train, found.val, found.test)] == [5, 20, 7]


def test_a_test_task_that_was_seen_is_refused() -> None:
    with pytest.raises(ConfigError, match="1 of 1 test tasks are also in train or val"):
        Splits(tasks(3), tasks(6)[3:], tasks(1))


def test_the_plan_bounds_what_a_search_spends() -> None:
    plan = set_up(ENV, algorithm="apo", rollouts=500, optimiser_calls=7).plan
    assert (plan.search.rollouts, plan.search.optimiser_calls) == (500, 7)
    assert plan.test.rollouts == 2 * 50
    assert plan.search.dollars > 0


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"prompt": "Answer {question}."}, "placeholders"),
        ({"components": "promt"}, "did you mean 'prompt'"),
        ({"agent": "x.py"}, "for custom agents"),
        ({"val": "x.jsonl"}, "--train"),
        ({"algorithm": "screen", "beam": 1}, "does not use it"),
        ({"optimiser_calls": -1}, "optimiser_calls"),
        ({"temperature": True}, "not true or false"),
        ({"rollouts": "many"}, "rollouts"),
        ({"iteration": 3}, "Did you mean iterations?"),
    ],
)
def test_what_cannot_work_is_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("?", r"\?")):
        set_up(ENV, **{"algorithm": "apo", **keys})


def test_overrides_win_over_flags_and_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text("seed = 1\nrollouts = 50\nbeam = 3\n")
    config = resolve_prompt("math", ["seed=3"], {"seed": "2", "algorithm": "apo"}, file=path)
    assert (config.seed, config.rollouts, config.beam) == (3, 50, 3)
    with pytest.raises(ConfigError, match="is not supported"):
        resolve_prompt("math", ["~seed"], {})


def test_a_configuration_comes_back_from_its_file(tmp_path: Path) -> None:
    config = configured(hints=["Be kind, always."], components="prompt", algorithm="apo")
    folder = RunFolder(tmp_path)
    write_json(folder.config, {"config": config.model_dump(mode="json")})
    assert load_settings(folder, PromptConfig) == config
    assert config.hints == ("Be kind, always.",)
    with pytest.raises(ConfigError, match="not a valid configuration"):
        load_settings(RunFolder(tmp_path / "none"), PromptConfig)
