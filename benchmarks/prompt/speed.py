"""How long a whole search takes per optimiser call, on a server without delay.

    python -m benchmarks.prompt.speed --agl /path/python

Ours in two ways: `search` is the search with the package's HTTP clients for both models, `command`
is `tutelage train math --algorithm apo` as a user types it, process start, gateway, store and
held-out test included (it plays the math world, where a rollout is several calls). The peer is
agentlightning's APO as it comes (`--as-is`), set narrow by hand, at the same ceilings. Wall seconds
depend on who else is at work, so CPU seconds of the searching process stand beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks.prompt import ours
from benchmarks.prompt.server import simulator
from benchmarks.prompt.worlds import world

from tutelage.engine.endpoint import Endpoint
from tutelage.engine.remote import RemoteChatClient
from tutelage.prompts import APO
from tutelage.prompts.optimiser_client import OptimiserClient
from tutelage.seeds import SeedTree
from tutelage.types import Message, Sampling

ROOT = Path(__file__).parents[2]
ROLLOUTS = 600


class Clients:
    """The package's own clients, in the place of the benchmark's plain one."""

    def __init__(self, url: str, key: str) -> None:
        optimiser = Endpoint("edit", url, "simulator-optimiser", key)
        self._task = RemoteChatClient(url, key, "simulator-task", keep=8)
        roles = {"gradient": optimiser, "edit": optimiser}
        self._ask = OptimiserClient(roles, {}, SeedTree(0), Sampling(max_tokens=2000))
        self._number = 0

    async def chat(self, model: str, messages: list[dict[str, Any]], seed: int = 0) -> str:
        """A reply."""
        said = [Message(m["role"], m["content"]) for m in messages]
        if model == "simulator-task":
            sampling = Sampling(temperature=0, max_tokens=1000)
            return (await self._task.chat(said, sampling=sampling)).reply.content or ""
        self._number += 1
        return (await self._ask("edit", said, f"speed/{self._number}")).text


def search(url: str, seed: int) -> dict[str, Any]:
    """One search of ours through the package's clients."""
    here = world("clerk")
    chat: Any = Clients(url, f"ours/{seed}")
    calls = ours.ceiling(ROLLOUTS)
    return asyncio.run(ours.search(here, chat, APO(), seed, ROLLOUTS, calls))


def by_command(url: str, seed: int) -> float:
    """Wall seconds of the whole command."""
    env = {
        **os.environ,
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": f"command/{seed}",
        "OPENAI_MODEL": "simulator-task",
        "TUTELAGE_GRADIENT_MODEL": "simulator-optimiser",
        "TUTELAGE_EDIT_MODEL": "simulator-optimiser",
    }
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("tutelage")),
                *("train", "math", "--algorithm", "apo"),
                *("--iterations", "6", "--train-size", "40", "--val-size", "24"),
                *("--rollouts", str(ROLLOUTS), "--seed", str(seed)),
                *("--output", str(Path(folder) / "run")),
            ],
            env=env,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - began
    # 0, 3 and 4 are the verdicts.
    if done.returncode not in (0, 3, 4):
        raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    return seconds


def theirs(python: str, url: str, seed: int) -> dict[str, Any]:
    """agentlightning's APO, untouched."""
    done = subprocess.run(
        [
            *(python, "-m", "benchmarks.prompt.peers.agl_peer", "--url", url, "--world", "clerk"),
            *("--seeds", str(seed), "--rollouts", str(ROLLOUTS), "--name", "agl"),
            *("--calls", str(ours.ceiling(ROLLOUTS)), "--narrow", "--as-is"),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    line = next(x for x in done.stdout.split("\n") if x.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT "))


def counts(url: str) -> dict[str, dict[str, int]]:
    """What each client used."""
    with urllib.request.urlopen(url.removesuffix("/v1") + "/counts") as reply:
        return json.loads(reply.read())["clients"]


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--agl", required=True, help="the Python of agentlightning's environment")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []

    def note(way: str, seed: int, used: dict[str, int], seconds: float, cpu: float | None) -> None:
        calls = used["optimiser_calls"]
        rows.append(
            {
                "way": way,
                "seed": seed,
                "rollouts": used["rollouts"],
                "optimiser_calls": calls,
                "seconds": round(seconds, 3),
                "cpu_seconds": cpu,
                "seconds_a_call": round(seconds / calls, 4),
            }
        )
        print(json.dumps(rows[-1]), flush=True)

    with simulator("clerk") as url:
        for seed in range(given.seeds):
            made = search(url, seed)
            used = counts(url)[f"ours/{seed}"]
            note("ours, search", seed, used, made["seconds"], made["cpu_seconds"])
    with simulator("math") as url:
        for seed in range(given.seeds):
            seconds = by_command(url, seed)
            note("ours, command", seed, counts(url)[f"command/{seed}"], seconds, None)
    with simulator("clerk") as url:
        peer = theirs(given.agl, url, 0)
        used = counts(url)[peer["key"]]
        note("agentlightning APO", 0, used, peer["seconds"], peer["cpu_seconds"])


if __name__ == "__main__":
    main()
