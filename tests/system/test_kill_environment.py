"""Killed in the middle of an episode and resumed, a run in an environment ends as one that was not,
turn rewards included."""

from __future__ import annotations

from pathlib import Path

import pytest

from .command import Command
from .outcome import stored
from .reference import Reference

ECHO = '''
import itertools
import os
import signal

from tutelage.environments import Observation, Step
from tutelage.types import Message

steps = itertools.count(1)


class Echo:
    """Three turns, whose rewards depend on the text, so that each group's rewards differ.

    With `KILL_AT` in the environment the step of that number kills the process, which is the
    run's own.
    """

    def reset(self, task, seed):
        self.turn, self.seed = 0, seed
        return Observation((Message("user", f"{task['question']} ({seed % 10})"),))

    def step(self, action):
        if next(steps) == int(os.environ.get("KILL_AT", "0")):
            os.kill(os.getpid(), signal.SIGKILL)
        self.turn += 1
        letters = sum(map(ord, str(action.content) + str(action.tool_calls)))
        reward = (letters + self.seed) % 5 / 4
        shown = Observation((Message("user", f"go on {letters % 7}"),))
        return Step(shown, reward, self.turn == 3, info={"success": reward > 0.5})

    def close(self):
        pass
'''


@pytest.mark.parametrize(
    "share", [0.5, *(pytest.param(share, marks=pytest.mark.full) for share in (0.2, 0.8))]
)
def test_killed_in_an_episode(
    share: float, material: Path, tutelage: Command, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (material / "echo.py").write_text(ECHO)
    flags = {"environment": f"{material / 'echo.py'}:Echo", "model": f"{material / 'parrot'}"}
    flags |= {"train": f"{material / 'train.jsonl'}", "val": f"{material / 'val.jsonl'}"}
    flags |= {"seed": "3", "steps": "4", "output": "run"}
    keys = ["agent.max_tokens_per_turn=40", "agent.max_turns=4", "agent.num_chains=4"]
    keys += ["data.train_batch_size=4", "trainer.control=none", "trainer.save_freq=2"]
    keys += ["trainer.test_freq=2", "trainer.stop_at_success=null"]
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    reference = Reference(["train", *words, *keys], tmp_path_factory.mktemp("whole"))
    rollouts = reference.outcome["rollouts"].values()
    calls = [call for r in rollouts for attempt in r["attempts"] for call in attempt["calls"]]
    rewards = [call["reward"] for call in calls if call["reward"] is not None]
    assert len({*rewards}) > 2, "turn rewards are on record, and differ"
    assert any(row["advantage"] for row in reference.outcome["training rows"])
    job = tutelage.start(*reference.arguments, KILL_AT=str(1 + int(share * len(rewards)))).end()
    assert job.code == -9
    assert 0 < len(stored(tutelage.cwd / "run")) < len(rollouts)
    reference.check(tutelage)
