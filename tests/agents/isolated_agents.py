"""Agents that are played in processes of their own; at the top of a module, as they must be."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tutelage import LitAgent, emit_reward, rollout
from tutelage.agents.session import current_rollout
from tutelage.resources import LLM, NamedResources


@rollout(isolation="process")
def blocking(task: Any, rollout: Any) -> dict[str, float]:
    """Blocks, marks, emits, and says which process it ran in."""
    time.sleep(0.05)
    here = current_rollout()
    assert here is rollout
    rollout.mark_agent_as_trainable("solver")
    rollout.answer = str(os.getpid())
    emit_reward(0.25, "extra")
    return {"reward": float(task["question"][1:]), "own": 1.0}


@rollout(isolation="process")
def speaks(task: Any, llm: LLM) -> float:
    """One request by HTTP, without any framework."""
    import json
    import urllib.request

    assert llm.client is None
    body = {"model": llm.model, "messages": [{"role": "user", "content": task["question"]}]}
    asked = urllib.request.Request(
        f"{llm.endpoint}/chat/completions",
        json.dumps(body).encode(),
        {"authorization": f"Bearer {llm.api_key}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(asked) as reply:
        text = json.load(reply)["choices"][0]["message"]["content"]
    here = current_rollout()
    assert here is not None
    with here.agent("helper"):
        assert (here.llm().endpoint or "").endswith("/agent/helper/v1")
    return float(text == "a" + task["question"][1:])


@rollout(isolation="process")
def bad(task: Any) -> float:
    """Crashes, raises, exits or hangs with a child, by task."""
    if task["id"] == "t0":
        os.abort()
    if task["id"] == "t1":
        raise ValueError("in the other process")
    if task["id"] == "t2":
        sys.exit(3)
    if task["id"] == "t3":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(task["answer_file"]).write_text(f"{os.getpid()} {child.pid}")
        time.sleep(600)
    return 1.0


class Counts(LitAgent):
    """Keeps state; each process has its own."""

    isolation = "process"

    def __init__(self, start: int) -> None:
        self.count = start

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Any) -> float:
        """Async, in a loop of the process's own."""
        self.count += 1
        return float(self.count)
