"""The tasks of the embedded job: arithmetic, sums of 1..n, and priced shopping, with gold calls.

They are generated, so that a first training run needs no download, and they need tools, so that it
trains an agent. A *problem* is the content of a question (operands, n, item and quantity); its
*wording* is one of several templates. Problems are divided into train, val and test by a hash of
the problem alone: a held-out problem cannot occur in training with another wording, level or seed.
`demonstrations` converts a task to messages for the supervised cold start. The tools are in
`tutelage.tools.builtin`.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tutelage.errors import ConfigError
from tutelage.seeds import SeedTree
from tutelage.types import Message, Task, ToolCall

Level = Literal["default", "hard"]
Split = Literal["train", "val", "test"]
Family = Literal["arithmetic", "sum", "shopping"]

EMBEDDED_REWARD = "math"
"""Name of the reward that grades these tasks."""
PROMPTED_REWARD = "numeric_partial_credit"
"""Name of the reward in prompt searches on these tasks."""

FAMILY_WEIGHTS: Mapping[Family, float] = {"arithmetic": 0.5, "sum": 0.25, "shopping": 0.25}
"""The share of each family in the tasks of `make_tasks`."""


SHORT_ITEMS = {"pen": 7, "cup": 12, "hat": 25, "bag": 38, "map": 9, "key": 4, "box": 16, "jar": 21}
LONG_ITEMS = {
    **{"paper lamp": 34, "garden chair": 59, "tea kettle": 27},
    **{"wool scarf": 18, "desk clock": 43, "picture frame": 15},
}
PRICES: Mapping[str, int] = SHORT_ITEMS | LONG_ITEMS
"""The catalogue of the `lookup` tool: price by name."""
_PLURALS = {"box": "boxes", "wool scarf": "wool scarves"}


def plural(item: str) -> str:
    """Return the plural of an item."""
    return _PLURALS.get(item, f"{item}s")


_TEMPLATES: Mapping[Family, Sequence[str]] = {
    "arithmetic": ("What is {spaced}?", "Compute {tight}.", "{spaced} = ?"),
    "sum": ("Sum the integers from 1 to {n}.", "Add up 1 to {n}."),
    "shopping": ("What do {count} {plural} cost?", "Price of {count} {plural}?"),
}
_FRESH_TRIES = 20


@dataclass(frozen=True, slots=True)
class Problem:
    """Content of a question without its wording. `key` identifies it; `words` are the values of the
    templates' placeholders."""

    family: Family
    key: str
    answer: int
    calls: tuple[tuple[str, dict[str, Any]], ...]
    words: Mapping[str, str]


def split_of(key: str) -> Split:
    """Return the split of a problem by a hash of its key, independent of seed, level and wording.

    Of 100 problems 80 are for training, and 10 each for validation and test.
    """
    place = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") % 100
    return "train" if place < 80 else "val" if place < 90 else "test"


def arithmetic_problem(operands: Sequence[int], operators: Sequence[str]) -> Problem:
    """Return the problem `17 * 23 + 5` for `[17, 23, 5]` and `["*", "+"]`; operators: + - *."""
    pieces = [str(operands[0])]
    for operator, operand in zip(operators, operands[1:], strict=True):
        pieces += [operator, str(operand)]
    tight = "".join(pieces)
    # 17*23 and 23*17 are one problem; with three operands the order of writing is kept.
    commutes = len(operands) == 2 and operators[0] in "+*"
    key = operators[0].join(map(str, sorted(operands))) if commutes else tight
    return Problem(
        "arithmetic",
        f"arithmetic:{key}",
        _evaluate(operands, operators),
        (("calculator", {"expression": tight}),),
        {"tight": tight, "spaced": " ".join(pieces)},
    )


def sum_problem(n: int) -> Problem:
    """Return a problem that asks for the sum of the integers from 1 to n."""
    return Problem("sum", f"sum:{n}", n * (n + 1) // 2, (("sum_1_to_n", {"n": n}),), {"n": str(n)})


def _shopping_problem(item: str, count: int) -> Problem:
    """Return a problem that asks for the price of `count` items: a look-up, then a product."""
    calls: tuple[tuple[str, dict[str, Any]], ...] = (
        ("lookup", {"item": item}),
        ("calculator", {"expression": f"{count}*{PRICES[item]}"}),
    )
    words = {"count": str(count), "plural": plural(item)}
    return Problem("shopping", f"shopping:{count}:{item}", count * PRICES[item], calls, words)


def make_tasks(level: str, split: str, n: int, seed: int) -> list[Task]:
    """Draw `n` tasks of a level (`default`, `hard`) and split (`train`, `val`, `test`).

    Fields: `question`, `answer` (a string), `family`, and `calls`, the gold tool calls as `{"name",
    "arguments"}`. The same arguments give the same list, and a smaller `n` gives a prefix of it.
    Questions do not repeat until a family has few left; a repeated question gets another id. Raises
    `ConfigError` for an unknown level or split.
    """
    if level not in get_args(Level):
        raise ConfigError(f"unknown level {level!r}; choose one of {', '.join(get_args(Level))}")
    if split not in get_args(Split):
        raise ConfigError(f"unknown split {split!r}; choose one of {', '.join(get_args(Split))}")
    if n < 1:
        raise ConfigError(f"invalid number of tasks {n!r}: must be at least 1")
    tree = SeedTree(seed).child("arithmetic", level, split)
    seen: dict[str, int] = {}
    return [_draw_task(level, split, tree.child(index).python(), seen) for index in range(n)]


def demonstrations(task: Task, guess: bool, rng: random.Random) -> list[Message]:
    """Create the messages of a demonstration for `task`, without the question.

    A correct demonstration makes the gold calls, receives their true results and answers with the
    number. A guess answers at once with a number of the right length and sign, as an agent that
    ignores its tools.
    """
    answer = str(task.fields["answer"])
    if guess:
        sign, size = "-" * answer.startswith("-"), len(answer.removeprefix("-"))
        low = 10 ** (size - 1) if size > 1 else 0
        return [Message("assistant", sign + str(rng.randint(low, 10**size - 1)))]
    messages: list[Message] = []
    calls: Sequence[Mapping[str, Any]] = task.fields["calls"]
    for index, call in enumerate(calls):
        name, arguments = str(call["name"]), call["arguments"]
        call_id = f"call_{index}"
        text = json.dumps(arguments, separators=(",", ":"))
        messages.append(Message("assistant", tool_calls=(ToolCall(call_id, name, text),)))
        # Every problem ends in the call whose result is the answer; what precedes is a look-up.
        known = str(PRICES.get(arguments["item"])) if name == "lookup" else answer
        result = str(call.get("result", known))
        messages.append(Message("tool", result, tool_call_id=call_id, name=name))
    return [*messages, Message("assistant", answer)]


def _draw_task(level: str, split: str, rng: random.Random, counts: dict[str, int]) -> Task:
    """Draw a task, preferably with a question that is not in `counts`."""
    family = rng.choices(list(FAMILY_WEIGHTS), list(FAMILY_WEIGHTS.values()))[0]
    problem, question = _draw_question(level, split, family, rng)
    for _ in range(_FRESH_TRIES):
        if question not in counts:
            break
        problem, question = _draw_question(level, split, family, rng)
    repeat = counts.get(question, 0)
    counts[question] = repeat + 1
    digest = hashlib.blake2b(question.encode(), digest_size=6).hexdigest()
    fields: dict[str, Any] = {
        "question": question,
        "answer": str(problem.answer),
        "family": family,
        "calls": [{"name": name, "arguments": {**given}} for name, given in problem.calls],
    }
    return Task(f"{family}-{digest}" + (f"-{repeat}" if repeat else ""), fields)


def _draw_question(
    level: str, split: str, family: Family, rng: random.Random
) -> tuple[Problem, str]:
    """Draw a problem of the split by rejection sampling, and one of its wordings."""
    problem = _draw_problem(level, family, rng)
    while split_of(problem.key) != split:
        problem = _draw_problem(level, family, rng)
    return problem, rng.choice(_TEMPLATES[family]).format(**problem.words)


def _draw_problem(level: str, family: Family, rng: random.Random) -> Problem:
    """Draw a random problem of a family."""
    hard = level == "hard"
    if family == "sum":
        return sum_problem(rng.randint(2 if hard else 10, 999))
    if family == "shopping":
        items = [*(PRICES if hard else SHORT_ITEMS)]
        return _shopping_problem(rng.choice(items), rng.randint(2, 99))
    size = rng.choice((2, 3, 3)) if hard else 2
    operands = [rng.randint(2 if hard else 10, 99) for _ in range(size)]
    return arithmetic_problem(operands, [rng.choice("+-*") for _ in range(size - 1)])


def _evaluate(operands: Sequence[int], operators: Sequence[str]) -> int:
    """Evaluate an expression with the usual precedence, as a sum of signed products."""
    total, product = 0, operands[0]
    for operator, operand in zip(operators, operands[1:], strict=True):
        if operator == "*":
            product *= operand
        else:
            total, product = total + product, operand if operator == "+" else -operand
    return total + product
