"""`textworld:`: TextWorld games, generated from seeds, with the admissible commands as actions.

A game is compiled once (a second or two) and kept in the cache folder. A step's reward is the
increase of the game's score.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tutelage.environments.gym import seeded_tasks
from tutelage.environments.protocol import Environment, EnvironmentFactory, Observation, Step
from tutelage.errors import ConfigError
from tutelage.files import cache_folder
from tutelage.tools.execute import call
from tutelage.types import Message, Task

OPTIONS = {"nb_rooms": 2, "nb_objects": 3, "quest_length": 2, "quest_breadth": 1}
"""Keys of a game, with their defaults."""
_STATUS_LINE = re.compile(r"\n>[^\n]*\Z")
_creation_lock = threading.Lock()
"""Lock around game creation, since TextWorld draws from one generator of the process."""


def make_factory(argument: str, kwargs: Mapping[str, Any]) -> EnvironmentFactory:
    """Return the factory of generated games. `kwargs` are `OPTIONS` and `reward`: `score` (the
    default), or `intermediate`, which is 1 for a step towards the end of the quest and -1 for a
    step away from it. A task's `seed` selects its game; `seed` in `kwargs` selects one game for all
    tasks.

    Raises `ConfigError` for another key or an argument, `ModuleNotFoundError` without TextWorld.
    """
    import textworld

    warnings.filterwarnings("ignore", "Game .* is not fully supported")  # by Jericho; all are
    options: Mapping[str, Any] = {"reward": "score", "seed": None, **OPTIONS, **kwargs}
    known = {"reward", "seed", *OPTIONS}.issuperset(kwargs)
    if argument or not known or options["reward"] not in ("score", "intermediate"):
        raise ConfigError(
            f"invalid environment textworld:{argument} with {dict(kwargs)!r}; use 'textworld:' "
            f"and the keys seed, {', '.join(OPTIONS)}, reward ('score' or 'intermediate')"
        )

    def create_game(seed: int) -> Path:
        """Return the file of a game, and generate it if it is not in the cache."""
        made = textworld.GameOptions()
        made.seeds = seed
        for name in OPTIONS:
            setattr(made, name, int(options[name]))
        words = repr((textworld.__version__, seed, [options[name] for name in OPTIONS]))
        folder = cache_folder("textworld") / hashlib.blake2b(words.encode()).hexdigest()[:16]
        with _creation_lock:
            if not folder.exists():
                folder.parent.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(dir=folder.parent) as aside:
                    made.path = f"{aside}/game/game.z8"
                    textworld.make(made)
                    with suppress(OSError):  # another process was faster
                        os.rename(f"{aside}/game", folder)
        return folder / "game.z8"

    class Game(Environment):
        inner: Any = None

        async def reset(self, task: Task, seed: int) -> Observation:
            number = options["seed"] if options["seed"] is not None else task.fields.get("seed")
            return await call(self.start, int(seed if number is None else number) % 2**31)

        def start(self, seed: int) -> Observation:
            asked = ("admissible_commands", "score", "max_score", "won", "intermediate_reward")
            shown = textworld.EnvInfos(**dict.fromkeys((*asked, "objective", "description"), True))
            self.inner = textworld.start(str(create_game(seed)), shown)
            self.state, self.over = self.inner.reset(), False
            return self.observe(f"{self.state.objective}\n\n{self.state.description}")

        def observe(self, text: str) -> Observation:
            commands = () if self.over else tuple(self.state.admissible_commands)
            text = _STATUS_LINE.sub("", text.rstrip()).strip()
            text += "" if self.over else f"\n\nCommands: {', '.join(commands)}"
            return Observation((Message("user", text),), commands)

        async def step(self, action: Message) -> Step:
            if self.over:
                raise RuntimeError("the game has ended")
            before = self.state.score
            self.state, _, self.over = await call(self.inner.step, (action.content or "").strip())
            gain = (self.state.score - before) / (self.state.max_score or 1)
            reward = gain if options["reward"] == "score" else self.state.intermediate_reward
            info = {"success": bool(self.state.won), "score": self.state.score}
            shown = self.observe(self.state.feedback)
            return Step(shown, float(reward), terminated=bool(self.over), info=info)

        async def close(self) -> None:
            if self.inner is not None:
                await call(self.inner.close)

    return EnvironmentFactory("textworld", Game, tasks=seeded_tasks)
