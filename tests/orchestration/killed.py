"""Executions that are killed at random moments and continued: what was done and what was asked.

Run as a script, with a folder; prints a list of what each came to.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from executing import stored_events

from tutelage.orchestration import Node, Plan
from tutelage.orchestration.execution.pools.tools import ToolPool
from tutelage.orchestration.execution.record import Event
from tutelage.orchestration.execution.system import OrchestrationSystem
from tutelage.tools import Tool, tool

NODES = [Node("add", {"number": i}, after=((i - 1,) if i % 2 else ())) for i in range(6)]


def execute(path: Path, log: Path, kill: int) -> None:
    """Six calls that change something; the process is killed at the moment of this number."""
    moments = 0

    def note(*words: object) -> None:
        with log.open("a") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def perhaps_die() -> None:
        nonlocal moments
        moments += 1
        if moments == kill:
            os.kill(os.getpid(), signal.SIGKILL)

    @tool(destructive=True)
    def add(number: int) -> str:
        """Write a number down."""
        perhaps_die()
        note("did", number)
        perhaps_die()
        return str(number)

    def watch(event: Event) -> None:
        perhaps_die()

    def permit(tool: Tool, arguments: str, doubt: str) -> str:
        if doubt:
            note("asked", json.loads(arguments)["number"])
        return "it may have been done" if doubt else ""

    pool, plan = ToolPool({"add": add}, permit=permit), Plan("x", tuple(NODES))
    system = OrchestrationSystem(lambda text: plan, pool)
    done = system.execute("x", journal=path, name="flow", observers=[watch])
    note("kept", sum(node.is_ok for node in done.nodes))


def in_child(*args: Any) -> int:
    """How a process that executes so ends."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        execute(*args)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main(folder: Path) -> None:
    rows = []
    for kill in random.Random(0).sample(range(2, 36), 20):
        path, log = folder / f"{kill}.db", folder / f"{kill}.log"

        def noted(word: str, log: Path = log) -> list[int]:
            lines = log.read_text().splitlines() if log.is_file() else []
            return [int(line.split()[1]) for line in lines if line.startswith(word)]

        status = in_child(path, log, kill)
        before = noted("did")
        answers = [event for event in stored_events(path) if event["event"] == "answer"]
        again = in_child(path, log, 0)
        rows.append(
            {
                "kill": kill,
                "killed": os.WIFSIGNALED(status) and again == 0,
                "before": before,
                "answered": [e["node"] for e in answers if "error" not in e["answer"]],
                "did": noted("did"),
                "asked": noted("asked"),
                "kept": sum(noted("kept")),
            }
        )
    print(json.dumps(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
