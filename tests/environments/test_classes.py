"""Classes of other libraries, unchanged: TRL's, SkyRL's, and those whose step has five values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tutelage.environments import EnvironmentFactory, as_factory
from tutelage.environments.episode import play_episode
from tutelage.errors import ConfigError, EnvironmentFailedError
from tutelage.testing import check_environment
from tutelage.types import Message, Task, ToolCall


class GuessNumber:
    """In TRL's form: public functions are tools, `reset` takes the row."""

    def __init__(self) -> None:
        self.secret, self.found, self.closed = 0, False, False

    def reset(self, secret: int, **kwargs: Any) -> str | None:
        self.secret, self.found = secret, False
        self.row = kwargs
        return "The number is between 1 and 9."

    def guess(self, number: int) -> str:
        """
        Guess the number.

        Args:
            number: The number that is guessed.

        Returns:
            Whether it was found.
        """
        if self.found:
            raise ValueError("Game over.")
        self.found = number == self.secret
        return "found" if self.found else "no"

    async def hint(self) -> str:
        """Tell whether the number is odd."""
        return "odd" if self.secret % 2 else "even"

    def get_reward(self) -> float:
        return 1.0 if self.found else 0.0

    def _hidden(self) -> None: ...


class Silent:
    """Without text at the beginning, with an async reward, and with a `close`."""

    closed = 0

    def reset(self, **row: Any) -> None:
        self.sums = 0.0

    def add(self, amount: float) -> str:
        """Add.

        Args:
            amount: What is added.
        """
        self.sums += amount
        return str(self.sums)

    async def get_reward(self) -> float:
        return self.sums

    def close(self) -> None:
        Silent.closed += 1


class Shout:
    """In SkyRL's form."""

    def __init__(self, env_config: Any, extras: dict[str, Any] | None = None) -> None:
        self.word = (extras or {})["reward_spec"]["ground_truth"]
        self.most, self.turns = int(env_config.get("max_turns", 2)), 0

    def init(self, prompt: list[dict[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        return [*prompt, {"role": "user", "content": "Go."}], {"most": self.most}

    def step(self, action: str) -> dict[str, Any]:
        self.turns += 1
        right = action == self.word
        done = right or self.turns == self.most
        said = [] if done else [{"role": "user", "content": "Again."}]
        return {"observations": said, "reward": float(right), "done": done, "metadata": {"n": 1}}

    def close(self) -> None: ...


class Count:
    """Five values, text in and text out, and no package."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.left = 2 + (seed or 0) % 3
        return f"{self.left} left", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.left -= action == "down"
        return f"{self.left} left", float(action == "down"), self.left == 0, False, {}

    def close(self) -> None: ...


def calls(*each: tuple[str, str]) -> Message:
    return Message("assistant", None, tuple(ToolCall(f"c{i}", *c) for i, c in enumerate(each)))


async def play(factory: EnvironmentFactory, task: Task, *replies: Message) -> Any:
    left: Sequence[Message] = list(replies)
    it = iter(left)
    return await play_episode(factory, task, 1, lambda *_: next(it))


TASK = Task("t", {"prompt": "Find the number.", "secret": 4})
DONE = Message("assistant", "I have it.")


async def test_trls_class_has_its_public_functions_as_tools_and_its_reward() -> None:
    factory = as_factory(GuessNumber)
    assert [tool.name for tool in factory.tools] == ["guess", "hint"]
    number = factory.tools[0].parameters["properties"]["number"]
    assert number == {"type": "integer", "description": "The number that is guessed."}
    wrong, right = ("guess", '{"number": 3}'), ("guess", '{"number": 4}')
    episode = await play(factory, TASK, calls(wrong, ("hint", "{}")), calls(right), DONE)
    said = [message.content for message in episode.messages if message.role != "assistant"]
    assert said == ["Find the number.The number is between 1 and 9.", "no", "even", "found"]
    assert episode.rewards == (0.0, 1.0, 0.0)
    assert episode.terminated


async def test_an_exception_of_a_tool_is_an_answer_and_a_cut_episode_keeps_its_reward() -> None:
    right = calls(("guess", '{"number": 4}'))
    moves = iter([right, right])
    episode = await play_episode(
        as_factory(GuessNumber), TASK, 1, lambda *_: next(moves), max_steps=2
    )
    assert "Game over." in (episode.messages[-1].content or "")
    assert episode.total == 1.0
    assert episode.truncated


async def test_a_row_chooses_among_the_classes_of_a_dictionary() -> None:
    factory = as_factory({"guess": GuessNumber, "add": Silent}, "games")
    row = Task("t", {"prompt": "Add.", "environment": "add"})
    before = Silent.closed
    episode = await play(factory, row, calls(("add", '{"amount": 1.5}')), DONE)
    assert [m.content for m in episode.messages[:1]] == ["Add."]
    assert episode.rewards == (1.5, 0.0)
    assert Silent.closed == before + 1
    unknown = Task("t", {"prompt": "?", "environment": "chess"})
    with pytest.raises(EnvironmentFailedError, match=r"environment='chess'.*\['guess', 'add'\]"):
        await play(factory, unknown, DONE)


async def test_skyrls_class_gets_the_row_and_the_config() -> None:
    factory = as_factory(Shout, kwargs={"max_turns": 3})
    task = Task("t", {"prompt": "Shout HO.", "reward_spec": {"ground_truth": "HO"}})
    no, yes = Message("assistant", "hey"), Message("assistant", "HO")
    episode = await play(factory, task, no, yes)
    said = [message.content for message in episode.messages]
    assert said == ["Shout HO.", "Go.", "hey", "Again.", "HO"]
    assert episode.rewards == (0.0, 1.0)
    assert episode.infos == ({"most": 3}, {"n": 1}, {"n": 1})
    assert episode.terminated


async def test_a_class_of_five_values_needs_no_package() -> None:
    episode = await play(
        as_factory(Count), Task("t", {"seed": 4}), *[Message("assistant", "down")] * 3
    )
    assert [m.content for m in episode.messages if m.role == "user"] == [
        "3 left",
        "2 left",
        "1 left",
        "0 left",
    ]
    assert episode.rewards == (1.0, 1.0, 1.0)
    assert episode.terminated


def test_the_forms_keep_the_protocol() -> None:
    check_environment(GuessNumber, [TASK])
    check_environment(Count)
    shout = Task("t", {"prompt": "Shout.", "reward_spec": {"ground_truth": "Shout"}})
    check_environment(Shout, [shout])


def test_what_is_no_environment_is_refused() -> None:
    class Nothing: ...

    with pytest.raises(ConfigError, match="'Nothing' is not an environment"):
        as_factory(Nothing)
    with pytest.raises(ConfigError, match=r"games\['x'\] is not an environment"):
        as_factory({"x": 3}, "games")
