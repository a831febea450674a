"""Tasks and demonstrations for the guide's three agents, small enough for a model made on the spot.

Calculations for `math`, people to look up for `react`, linear functions to write for `code`. Half
of the demonstrations do it right and half guess, so that the model has the form and not the skill.
System prompts are the agents' own: a model that is trained here is asked in the same words later.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tutelage.agents.code import CODE_PROMPT
from tutelage.agents.react import ReactAgent
from tutelage.seeds import SeedTree
from tutelage.tasks.arithmetic import demonstrations
from tutelage.tools import ToolOptions, corpus, resolve_tools
from tutelage.tools.search import RESULTS, format_passages
from tutelage.types import Message, Sampling, Task

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from agent_tasks import arithmetic_tasks, corpus_rows, demonstration, search_tasks

JSON = dict[str, Any]


class Material(NamedTuple):
    """Rows of the data files, and of the demonstrations."""

    train: list[JSON]
    val: list[JSON]
    shown: list[JSON]


def math(folder: Path, count: int) -> Material:
    """Sums, differences and products."""
    tasks = arithmetic_tasks("train", 4000, 0)
    tools = [tool.spec.to_dict() for tool in resolve_tools(["calculator"]).values()]
    rng = _rng("math")
    shown: list[JSON] = []
    for i in range(count):
        task = tasks[i % len(tasks)]
        said = demonstrations(task, i % 2 == 0, rng)
        shown.append(_row([*task.messages(), *said], tools))
    return Material(_rows(tasks), _rows(arithmetic_tasks("val", 200, 0)), shown)


def react(folder: Path, count: int) -> Material:
    """Where people live and what they do, from a corpus that is indexed in `folder`."""
    rows = folder / "corpus.jsonl"
    rows.write_text("".join(json.dumps(r) + "\n" for r in corpus_rows(0)))
    corpus.build([rows], folder / "corpus.db")
    options = ToolOptions(search_index=str(folder / "corpus.db"))
    tools = resolve_tools(["google_search", "answer"], options)
    prompt = ReactAgent(tools, Sampling()).own_prompt()
    tasks, rng = search_tasks("train", 4000, 0), _rng("react")
    shown: list[JSON] = []
    for i in range(count):
        task = tasks[i % len(tasks)]
        if i % 2 == 0:
            guess = (demonstration("search", task, True, rng)[0].content or "").partition(": ")[2]
            said = [_acts("guess", "answer", guess)]
        else:
            name = task.fields["person"]["name"]
            found = format_passages(corpus.search(folder / "corpus.db", name, RESULTS))
            said = [
                _acts("look up", "google_search", name),
                Message("user", f"Observation: {found}"),
                _acts("found", "answer", str(task.fields["answer"])),
            ]
        shown.append(_row([Message("system", prompt), *task.messages(), *said]))
    return Material(_rows(tasks), _rows(search_tasks("val", 200, 0)), shown)


def code(folder: Path, count: int) -> Material:
    """Functions `x * a + b`, which two tests check."""
    rng = _rng("code")
    pairs = [(a, b) for a in range(2, 60) for b in range(1, 60)]
    rng.shuffle(pairs)
    rows = [_function(a, b) for a, b in pairs]
    shown: list[JSON] = []
    for i in range(count):
        a, b = pairs[i % 3000]
        good = i % 2 == 1
        said = [Message("assistant", f"Answer:\n```python\n{_source(a, b if good else a)}\n```")]
        if good:
            tried = f"```python\n{_source(a, b)}\nf(1)\n```"
            seen = Message("user", f"Output:\n{a + b}")
            said = [Message("assistant", tried), seen, *said]
        task = Task("t", rows[i % 3000])
        shown.append(_row([Message("system", CODE_PROMPT), *task.messages(), *said]))
    return Material(rows[:3000], rows[3000:3200], shown)


def _function(a: int, b: int) -> JSON:
    tests = [f"assert f({x}) == {x * a + b}" for x in (2, 7)]
    question = f"Write a function f of x that returns x times {a} plus {b}."
    return {"question": question, "answer": "", "tests": tests}


def _source(a: int, b: int) -> str:
    return f"def f(x):\n    return x * {a} + {b}"


def _acts(thought: str, tool: str, argument: str) -> Message:
    return Message("assistant", f"Thought: {thought}\nAction: {tool}\nAction Input: {argument}")


def _row(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> JSON:
    row: JSON = {"messages": [m.to_dict() for m in messages]}
    return {**row, "tools": list(tools)} if tools else row


def _rows(tasks: Sequence[Task]) -> list[JSON]:
    return [{k: t.fields[k] for k in ("question", "answer")} for t in tasks]


def _rng(name: str) -> random.Random:
    return SeedTree(0).child("guide", name).python()


MATERIAL = {"math": math, "react": react, "code": code}
