"""Small tasks for the ReAct, code and search agents, each with its gold turns.

They are what a tiny policy can learn in a minute of a CPU, so that every agent type is trained and
not only run. Arithmetic comes from `tasks/arithmetic.py`, with its split by a hash of the problem;
the search tasks ask about people of a generated corpus, split by a hash of the name. Demonstrations
are written as the agent would see and write them (`agents/react.py`, `agents/code.py`), for a cold
start; a test plays them through the agents and compares. The `make_data.py` of each example writes
them into files.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tutelage.seeds import SeedTree
from tutelage.tasks.arithmetic import make_tasks, split_of
from tutelage.types import Message, Task

AgentKind = Literal["react", "code", "search"]

_FIRST = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gina", "Hugo", "Ida", "Jon", "Kim", "Leo")
_LAST = ("Berg", "Cole", "Dahl", "Egan", "Falk", "Gray", "Holm", "Ivey", "Jung", "Kern", "Lund",
         "Moor", "Nash", "Oaks", "Penn", "Roth")  # fmt: skip
_PLACES = ("Oslo", "Rome", "Lima", "Cairo", "Paris", "Tokyo", "Delhi", "Quito", "Bern", "Riga")
_TRADES = ("baker", "nurse", "pilot", "judge", "miner", "tailor", "painter", "farmer")
_ASKED = {
    "place": "Where does {name} live?",
    "trade": "What is the trade of {name}?",
}


def arithmetic_tasks(split: str, n: int, seed: int) -> list[Task]:
    """`n` tasks with two operands; a shorter list is the beginning of a longer one."""
    drawn = make_tasks("default", split, 4 * n + 40, seed)
    return [task for task in drawn if task.fields["family"] == "arithmetic"][:n]


def people(seed: int) -> list[dict[str, str]]:
    """The people of the corpus: `name`, `place` and `trade`."""
    rng = SeedTree(seed).child("people").python()
    return [
        {"name": f"{first} {last}", "place": rng.choice(_PLACES), "trade": rng.choice(_TRADES)}
        for first in _FIRST
        for last in _LAST
    ]


def corpus_rows(seed: int) -> list[dict[str, str]]:
    """The corpus as rows for `tutelage index`: a `title` and a `text` for each person."""
    return [
        {"title": p["name"], "text": f"{p['name']} is a {p['trade']} in {p['place']}."}
        for p in people(seed)
    ]


def search_tasks(split: str, n: int, seed: int) -> list[Task]:
    """At most `n` questions about people of a split, in an order that the seed gives."""
    rows = [p for p in people(seed) if split_of(f"person:{p['name']}") == split]
    pairs = [(person, field) for person in rows for field in _ASKED]
    SeedTree(seed).child("search", split).python().shuffle(pairs)
    return [
        Task(
            f"{field}-{person['name'].replace(' ', '-').lower()}",
            {
                "question": _ASKED[field].format(name=person["name"]),
                "answer": person[field],
                "person": person,
            },
        )
        for person, field in pairs[:n]
    ]


def demonstration(kind: AgentKind, task: Task, guess: bool, rng: random.Random) -> list[Message]:
    """What an agent of a kind writes for `task` and sees, without the question.

    A guess answers at once with a wrong answer of the right form.
    """
    answer = str(task.fields["answer"])
    if guess:
        return [Message("assistant", f"Answer: {_guess(kind, answer, rng)}")]
    if kind == "code":
        expression = _expression(task)
        acted, seen = f"```python\n{expression}\n```", f"Output:\n{answer}"
    elif kind == "react":
        acted = f"Thought: compute\nAction: calculator\nAction Input: {_expression(task)}"
        seen = f"Observation: {answer}"
    else:
        person: Mapping[str, str] = task.fields["person"]
        acted = f"Thought: look up\nAction: search\nAction Input: {person['name']}"
        seen = f"Observation: {_result(person)}"
    final = f"Answer: {answer}" if kind == "code" else f"Thought: found\nAnswer: {answer}"
    return [Message("assistant", acted), Message("user", seen), Message("assistant", final)]


def tools_of(kind: AgentKind) -> Sequence[str]:
    """The tools that the demonstrations of a kind use."""
    return {"react": ["calculator"], "code": ["python_executor"], "search": ["search"]}[kind]


def tasks_of(kind: AgentKind, split: str, n: int, seed: int) -> list[Task]:
    """Tasks of a kind of agent."""
    make: Any = search_tasks if kind == "search" else arithmetic_tasks
    return make(split, n, seed)


def _result(person: Mapping[str, str]) -> str:
    """What the corpus says of a person, as the one result of a search for the whole name."""
    return f"[1] {person['name']}: {person['name']} is a {person['trade']} in {person['place']}."


def _expression(task: Task) -> str:
    calls: Sequence[Mapping[str, Any]] = task.fields["calls"]
    return str(calls[-1]["arguments"]["expression"])


def _guess(kind: AgentKind, answer: str, rng: random.Random) -> str:
    if kind == "search":
        return rng.choice([w for w in (*_PLACES, *_TRADES) if w != answer])
    sign, digits = ("-", answer[1:]) if answer.startswith("-") else ("", answer)
    low = 10 ** (len(digits) - 1) if len(digits) > 1 else 0
    return sign + str(rng.randint(low, 10 ** len(digits) - 1))
