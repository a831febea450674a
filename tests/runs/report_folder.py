"""The run folder of a run that never happened, of the size of a small real one.

`make_folder` writes it whole; `play` makes one rollout from what its agent says.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from tests.builders import make_attempt, make_call, make_rollout

from tutelage.config import Machine
from tutelage.runs.folder import RunFolder, write_json, write_text
from tutelage.seeds import SeedTree
from tutelage.store import open_store
from tutelage.tasks.arithmetic import demonstrations, make_tasks
from tutelage.types import (
    Call,
    Failure,
    FailureCause,
    Message,
    Mode,
    Reward,
    Rollout,
    Sampled,
    StopReason,
    Task,
    ToolCall,
    ToolResult,
)
from tutelage.weights.config import resolve

RUN_ID = "run-7"
RESULT: dict[str, Any] = {
    "status": "finished",
    "seed": 7,
    "level": "default",
    "wall_seconds": 281.4,
    "success_before_sampled": 0.31,
    "success_before_sampled_interval": [0.25, 0.377],
    "success_before_greedy": 0.285,
    "success_before_greedy_interval": [0.227, 0.351],
    "success_after_sampled": 0.945,
    "success_after_sampled_interval": [0.904, 0.969],
    "success_after_greedy": 0.985,
    "success_after_greedy_interval": [0.957, 0.995],
    "success_no_tools_greedy": 0.02,
    "success_no_tools_greedy_interval": [0.008, 0.05],
    "control_estimator": "raft",
    "success_control_sampled": 0.79,
    "success_control_sampled_interval": [0.728, 0.841],
    "success_control_greedy": 0.915,
    "success_control_greedy_interval": [0.868, 0.946],
    "test_tasks": 200,
    "rl_steps": 84,
    "rollouts": 10752,
    "tokens": 412_903,
    "policy": "policy",
    "phases": {"cold_start": 71.2, "before": 4.1, "rl": 148.0, "after": 5.5, "control": 48.3},
    "max_dlogp": 3.2e-6,
    "guess_share": 0.7,
    "mixed_steps": 60,
    "warnings": ["rollout.name=vllm is not here: the native engine samples"],
}


def _call(index: int, messages: list[Message], reply: Message) -> Call:
    sampled = Sampled((1, 2, 3), (-0.1,) * 3, (-0.1,) * 3, StopReason.STOP, index)
    return make_call(index, messages=tuple(messages), sampled=sampled, reply=reply)


def play(
    task: Task,
    said: list[Message],
    *,
    label: str = "",
    step: int = 0,
    index: int = 0,
    failure: Failure | None = None,
) -> Rollout:
    """The rollout in which an agent says the assistant messages of `said`."""
    messages, calls, results = list(task.messages()), list[Call](), list[ToolResult]()
    for message in said:
        if message.role == "assistant":
            calls.append(_call(len(calls), messages, message))
        else:
            wrong = "invalid_arguments" if (message.content or "").startswith("Error") else None
            text = message.content or ""
            results.append(ToolResult(message.tool_call_id or "", "t", "{}", text, wrong))
        messages.append(message)
    ended = bool(said) and said[-1].role == "assistant" and not said[-1].tool_calls
    answer = said[-1].content if ended else None
    value = float(answer == task.fields.get("answer"))
    rollout_id = SeedTree(3).child(label, step, task.id, index).id("roll")
    attempt = make_attempt(
        *calls,
        id=f"{rollout_id}-0",
        tool_results=tuple(results),
        answer=answer,
        reward=Reward(value if failure is None else 0.0),
        failure=failure,
        stop=None if failure else "max_turns" if answer is None else "answer",
    )
    mode = Mode.TEST if label else Mode.TRAIN
    of = {"run_id": RUN_ID, "mode": mode, "step": step, "index": index, "label": label}
    return make_rollout(rollout_id, attempt, task=task, group=task.id, **of)


def broken_call(task: Task) -> list[Message]:
    """A turn that misspells an argument, its error, and a turn that gives up."""
    call = ToolCall("call_0", "calculator", '{"expresion":"1+1"}')
    error = "Error: calculator: unknown argument 'expresion'; did you mean 'expression'?"
    return [
        Message("assistant", tool_calls=(call,)),
        Message("tool", error, tool_call_id="call_0", name="calculator"),
        Message("assistant", "9" + str(task.fields["answer"])),
    ]


def evaluate(label: str, solved: float, tasks: list[Task]) -> list[Rollout]:
    rng = random.Random(label)
    rollouts: list[Rollout] = []
    for task in tasks:
        good = rng.random() < solved
        said = demonstrations(task, not good, rng)
        if not good and rng.random() < 0.3:
            said = broken_call(task)
        if not good and rng.random() < 0.15:
            said = said[:1]
        rollouts.append(play(task, said, label=label))
    return rollouts


def metric_lines() -> list[dict[str, Any]]:
    rng = random.Random(1)
    lines: list[dict[str, Any]] = []
    for step in range(1, 361):
        line: dict[str, Any] = {"phase": "cold_start", "step": step, "lr": 2e-3}
        clean = 2.6 * math.exp(-step / 45) + 0.05
        line["loss/sft"] = (clean if step <= 300 else 0.62) * (1 + 0.1 * rng.gauss(0, 1))
        if step % 50 == 0 or step == 360:
            done = 1 / (1 + math.exp(-(step - 170) / 28))
            line["val/success_greedy"] = done if step <= 300 else 0.285
        lines.append(line)
    for step in range(1, 85):
        p = 0.3 + 0.66 / (1 + math.exp(-(step - 26) / 7))
        line = {
            "phase": "rl",
            "step": step,
            "reward/mean": min(1.0, max(0.0, p + rng.gauss(0, 0.035))),
            "reward/std": 0.4,
            "entropy": 0.34 * math.exp(-step / 24) + 0.02 + abs(rng.gauss(0, 0.006)),
            "grad_norm": 0.7 * math.exp(-step / 40) + abs(rng.gauss(0, 0.07)),
            "ratio/clip_fraction": abs(rng.gauss(0.004, 0.002)),
            "max_dlogp": 10 ** rng.gauss(-6, 0.2),
            "group/zero_variance": min(1.0, 0.06 + 0.8 * step / 84 + rng.gauss(0, 0.05)),
            "rollout/turns": 1.4 + 0.9 * p + rng.gauss(0, 0.03),
            "tools/calculator/calls": 0.8 + step / 200,
            "tools/calculator/errors": max(0, 9 - step // 8) / 60,
            "tools/lookup/calls": 0.3,
            "tools/lookup/errors": 0.01,
            "tokens_per_second": 2700 + rng.gauss(0, 90),
            "time/elapsed": 76.0 + 1.75 * step,
        }
        if step % 10 == 0 or step == 1:
            line["val/success_sampled"] = min(1.0, p + rng.gauss(0, 0.01))
            line["val/success_greedy"] = min(1.0, p + 0.04)
        lines.append(line)
    for step in range(1, 41):
        line = {"phase": "control", "step": step, "loss/sft": 0.2, "time/elapsed": 230 + 3.6 * step}
        if step % 8 == 0 or step == 1:
            line["val/success_sampled"] = 0.31 + 0.48 * (step / 40) ** 0.7
        lines.append(line)
    return lines


def make_folder(path: Path, tasks: int = 40, result: dict[str, Any] = RESULT) -> RunFolder:
    """A complete run folder."""
    path.mkdir(parents=True)
    folder = RunFolder(path)
    config = resolve("math", ["model.path=null"], machine=Machine(0, 2), flags={"seed": 7})
    write_text(folder.config, config.to_json())
    cpu = {"model": "Xeon", "flags": ["avx2", "avx512f"], "cores": 2}
    write_json(folder.conditions, {"torch": "2.9.0", "threads": 2, "dtype": "float32", "cpu": cpu})
    write_text(folder.metrics, "".join(json.dumps(line) + "\n" for line in metric_lines()))
    write_json(folder.result, result)
    held_out = make_tasks("default", "val", tasks, 7)
    timeout = Failure(FailureCause.TIMEOUT, "it was stopped after 60 seconds")
    with open_store(folder.store) as store:
        put_run(store)
        for key, solved in (
            ("before/sampled", 0.31), ("before/greedy", 0.28), ("after/sampled", 0.94),
            ("after/greedy", 0.97), ("after/no_tools", 0.02), ("control/sampled", 0.79),
        ):  # fmt: skip
            store.put_rollouts(evaluate(key, solved, held_out))
        train = make_tasks("default", "train", 30, 7)
        store.put_rollouts([play(t, demonstrations(t, False, random.Random(0))) for t in train])
        store.put_rollouts([play(t, [], step=1, failure=timeout) for t in train[:3]])
    return folder


def put_run(store: Any) -> None:
    store.put_run(
        RUN_ID, name="x", recipe="math", algorithm="rl", config={}, seed=7, folder="x",
        status="running",
    )  # fmt: skip
