"""reasoning-gym, gymnasium and TextWorld: the packages themselves behind the protocol."""

from __future__ import annotations

import builtins
import warnings
from pathlib import Path
from typing import Any

import pytest

from tutelage.environments import load_environment
from tutelage.environments.episode import play_episode, random_act
from tutelage.errors import ConfigError, MissingExtraError
from tutelage.testing import check_environment
from tutelage.types import Message, Task

warnings.filterwarnings("ignore", category=SyntaxWarning)

SMALL = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def need(package: str) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed: tutelage[{package}]")


async def grade(name: str, reply: str, row: int = 0, **kwargs: Any) -> Any:
    factory = load_environment(name, kwargs)
    assert factory.tasks is not None
    task = factory.tasks("train", row + 1, 0)[row]
    text = reply.format(**task.fields)
    episode = await play_episode(factory, task, 0, lambda *_: Message("assistant", text))
    assert episode.terminated
    return episode.rewards[0], episode.infos[-1]


class TestReasoningGym:
    @pytest.fixture(autouse=True)
    def installed(self) -> None:
        need("reasoning_gym")

    def test_it_keeps_the_protocol(self) -> None:
        check_environment("reasoning_gym:chain_sum")

    async def test_only_the_whole_score_is_rewarded_unless_it_is_graded(self) -> None:
        name = "reasoning_gym:chain_sum"
        assert await grade(name, "{answer}") == (1.0, {"score": 1.0, "success": True})
        assert (await grade(name, "<answer>{answer}</answer>"))[0] == 1.0
        reward, info = await grade(name, "It is {answer}")
        assert (reward, info["success"]) == (0.0, False)
        assert 0 < info["score"] < 1
        assert (await grade(name, "It is {answer}", scoring="graded"))[0] == info["score"]

    def test_no_question_stands_in_two_splits_or_twice(self) -> None:
        factory = load_environment("reasoning_gym:chain_sum", SMALL)
        assert factory.tasks is not None
        parts = [
            factory.tasks(split, 500, seed) for split in ("train", "val", "test") for seed in (0, 1)
        ]
        questions = [{task["question"] for task in part} for part in parts]
        assert all(len(part) == len(seen) for part, seen in zip(parts, questions, strict=True))
        train, val, test = (questions[i] | questions[i + 1] for i in (0, 2, 4))
        assert not train & val
        assert not train & test
        assert not val & test
        assert len(train | val | test) == 200

    def test_what_cannot_be_used_is_refused_with_the_reason(self) -> None:
        for name, kwargs, words in (
            ("coin_flip", {}, "gives 1.0 for '0'"),
            ("chain_sums", {}, "did you mean 'chain_sum'"),
            ("chain_sum", {"terms": 2}, "its keys are min_terms, max_terms"),
        ):
            with pytest.raises(ConfigError, match=words.replace("+", r"\+")):
                load_environment(f"reasoning_gym:{name}", kwargs)


class TestGymnasium:
    @pytest.fixture(autouse=True)
    def installed(self) -> None:
        need("gymnasium")

    @pytest.mark.parametrize("name", ["FrozenLake-v1", "Taxi-v4", "Blackjack-v1"])
    def test_it_keeps_the_protocol(self, name: str) -> None:
        check_environment(f"gym:{name}")

    async def test_a_lake_is_drawn_with_words_for_colours_and_crossed(self) -> None:
        factory = load_environment("gym:FrozenLake-v1", {"is_slippery": False})
        path = iter(["down", "down", "right", "right", "down", "right"])
        episode = await play_episode(
            factory, Task("t", {}), 0, lambda *_: Message("assistant", next(path).upper())
        )
        first = episode.messages[0].content
        assert first == ("[red:S]FFF\nFHFH\nFFFH\nHFFG\nReply with one of: left, down, right, up.")
        assert episode.messages[-1].content == "  (Right)\nSFFF\nFHFH\nFFFH\nHFF[red:G]"
        assert episode.rewards == (0, 0, 0, 0, 0, 1)
        assert episode.terminated

    def test_what_is_no_text_is_refused_by_name(self) -> None:
        for name, kwargs, words in (
            ("CartPole-v1", {}, r"observations of Box\(.*cannot be text"),
            ("Taxi-v3", {}, "use `Taxi-v4` instead"),
            ("FrozenLake-v1", {"maps": 2}, "unexpected keyword argument 'maps'"),
            ("FrozenLake-v1", {"actions": ["l", "r"]}, "has 4 discrete actions"),
        ):
            with pytest.raises(ConfigError, match=words):
                load_environment(f"gym:{name}", kwargs)


class TestTextWorld:
    @pytest.fixture(autouse=True)
    def installed(self, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: Any) -> None:
        need("textworld")
        cache = tmp_path_factory.getbasetemp() / "textworld-cache"
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        self.cache = Path(cache)

    async def test_a_game_is_played_to_its_end_with_the_commands_that_it_admits(self) -> None:
        factory = load_environment("textworld:", {"nb_rooms": 2, "quest_length": 1})
        assert factory.tasks is not None
        task = factory.tasks("train", 1, 0)[0]
        episode = await play_episode(factory, task, 0, random_act(factory, 5), max_steps=300)
        assert episode.terminated
        assert episode.total == 1.0
        assert episode.infos[-1] == {"success": True, "score": 1}
        texts = [m.content or "" for m in episode.messages if m.role == "user"]
        assert not any("\n>" in text or "$$$" in text for text in texts)
        assert "Commands: " in texts[0]
        assert list((self.cache / "tutelage" / "textworld").glob("*/game.z8"))

    def test_it_keeps_the_protocol(self) -> None:
        factory = load_environment("textworld:", {"nb_rooms": 1, "quest_length": 1})
        assert factory.tasks is not None
        check_environment(factory, factory.tasks("train", 2, 0))


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("reasoning_gym:gcd", "reasoning_gym", "environments"),
        ("gym:FrozenLake-v1", "gymnasium", "environments"),
        ("textworld:", "textworld", "textworld"),
    ],
)
def test_a_missing_package_names_its_extra(
    name: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(module: str, *rest: Any, **more: Any) -> Any:
        if module.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return real(module, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=rf"pip install 'tutelage\[{extra}\]'"):
        load_environment(name)
