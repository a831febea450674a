"""The fields of a row: each is read, and what cannot be is refused by the name of its key.

What a value may look like, a list or a list written as text, a number or a name, is decided here
once for all kinds of row, and so are links by tool name and the references of NESTFUL's arguments.
`formats.py` says which kinds of row there are and makes workflows of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

from tutelage.errors import DataError
from tutelage.orchestration.data.rows import opened
from tutelage.orchestration.plan.catalog import Catalog

INSTRUCTION_KEYS = ("instruction", "user_request", "request", "query", "question", "input")

_VARIABLE = re.compile(r"\$(var[\w-]*?)(?:\.[^$]*|\[[^$]*)?\$")


def instruction_of(row: Mapping[str, Any]) -> str:
    """What is asked for, under any of its keys."""
    key = next((key for key in INSTRUCTION_KEYS if key in row), "instruction")
    text = row.get(key)
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{key!r} is {text!r}; an instruction is a text that says something")
    return text


def list_of(value: Any, key: str) -> list[Any]:
    """A list, or one that is written as text."""
    value = opened(value)
    if not isinstance(value, list):
        raise DataError(f"{key!r} is {value!r}; it must be a list")
    return cast("list[Any]", value)


def whole(value: Any) -> int | None:
    """A whole number, given as one or as a float without a fraction; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value):
        return None
    return int(value)


def tool_named(value: Any, catalog: Catalog | None, key: str) -> str:
    """A task type: a name, or the place of one in the catalog."""
    if isinstance(value, str) and value.strip():
        return value
    number = whole(value)
    if number is None or number < 0:
        raise DataError(f"{key} is {value!r}; a task type is a name or a number from 0")
    if catalog is None:
        return f"type {number}"
    if number >= len(catalog):
        raise DataError(
            f"{key} is {number}, and the catalog has {len(catalog)} tools, numbered from 0"
        )
    return catalog.names[number]


def workers_of(value: Any, count: int, key: str) -> tuple[int | str, ...] | None:
    """A worker for each of `count` subtasks, by number or name; None where nobody chose."""
    if value is None:
        return None
    listed = list_of(value, key)
    if len(listed) != count:
        raise DataError(f"{key!r} names {len(listed)} workers for {count} subtasks; give one each")
    chosen: list[int | str] = []
    for index, worker in enumerate(listed):
        number = whole(worker)
        if isinstance(worker, str) and worker:
            chosen.append(worker)
        elif number is not None and number >= 0:
            chosen.append(number)
        else:
            raise DataError(
                f"'{key}[{index}]' is {worker!r}; a worker is a name or a number from 0"
            )
    return tuple(chosen)


def parents_of(value: Any, count: int, key: str) -> list[tuple[int, ...]]:
    """The numbers that each of `count` subtasks waits for."""
    listed = list_of(value, key)
    if len(listed) != count:
        raise DataError(f"{key!r} has {len(listed)} entries for {count} subtasks; give one each")
    found: list[tuple[int, ...]] = []
    for index, entry in enumerate(listed):
        parents = [whole(parent) for parent in list_of(entry, f"{key}[{index}]")]
        if any(parent is None for parent in parents):
            raise DataError(f"'{key}[{index}]' is {entry!r}; parents are numbers of subtasks")
        found.append(tuple(parent for parent in parents if parent is not None))
    return found


def rewards_of(value: Any) -> dict[str, float]:
    """Finite numbers by name; empty where there are none."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise DataError(f"'rewards' is {value!r}; it must be an object")
    found: dict[str, float] = {}
    for name, number in cast("Mapping[str, Any]", value).items():
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise DataError(f"'rewards.{name}' is {number!r}; a reward is a number")
        found[name] = float(number)
    return found


def identifier_of(row: Mapping[str, Any]) -> str:
    """The row's own identifier, empty without one."""
    return str(row["id"]) if row.get("id") is not None else ""


def mapping_of(value: Any, key: str) -> Mapping[str, Any]:
    """An object, or one that is written as text."""
    value = opened(value)
    if not isinstance(value, Mapping):
        raise DataError(f"{key!r} is {value!r}; it must be an object")
    return cast("Mapping[str, Any]", value)


def worker_called(worker: int | str, names: Sequence[Any], key: str) -> str:
    """A worker's name: those given by number are places in the line's `workers`."""
    if isinstance(worker, str):
        return worker
    if worker >= len(names):
        raise DataError(f"{key!r} holds {worker}, and the line's 'workers' are {len(names)}")
    return str(names[worker])


def texts_of(value: Any) -> tuple[str, ...]:
    """Texts; what is none becomes empty, and so does what is no list."""
    value = opened(value)
    if not isinstance(value, list):
        return ()
    return tuple(text if isinstance(text, str) else "" for text in cast("list[Any]", value))


def links_of(value: Any, key: str) -> list[tuple[Any, Any]]:
    """Pairs of source and target, given as objects or as lists of two."""
    found: list[tuple[Any, Any]] = []
    for index, link in enumerate(list_of(value, key)):
        if isinstance(link, Mapping) and "source" in link and "target" in link:
            pair = cast("Mapping[str, Any]", link)
            found.append((pair["source"], pair["target"]))
        elif isinstance(link, list) and len(cast("list[Any]", link)) == 2:
            found.append((link[0], link[1]))
        else:
            raise DataError(f"'{key}[{index}]' is {link!r}; a link needs 'source' and 'target'")
    return found


def link_indices(
    tools: Sequence[str], links: Sequence[tuple[Any, Any]], key: str = "links"
) -> list[tuple[int, int]]:
    """Links by tool name (or node number) as pairs of node numbers.

    A tool that stands twice makes a name ambiguous. Where the links walk the list from node to node
    they are taken by their place; otherwise a link joins the nearest pair that stands in its order
    and is not joined yet. Raises `DataError` for a name that no node has.
    """
    steps = list(pairwise(tools))
    if list(links) == steps:
        return [(i, i + 1) for i in range(len(steps))]
    places: dict[str, list[int]] = {}
    for index, tool in enumerate(tools):
        places.setdefault(tool, []).append(index)
    found: list[tuple[int, int]] = []
    for number, (source, target) in enumerate(links):
        ends: list[list[int]] = []
        for side, end in (("source", source), ("target", target)):
            index = whole(end)
            where = [index] if index is not None and 0 <= index < len(tools) else places.get(end)
            if not where:
                raise DataError(
                    f"'{key}[{number}].{side}' is {end!r}, and no node of the workflow is that; "
                    f"its nodes are {list(tools)}"
                )
            ends.append(where)
        pairs = [(i, j) for i in ends[0] for j in ends[1] if i != j or source == target]
        free = [pair for pair in pairs if pair not in found] or pairs
        found.append(min(free, key=lambda p: (p[0] >= p[1], abs(p[0] - p[1]), p)))
    return found


def labelled(label: str, node: int, labels: Sequence[str], tools: Sequence[str]) -> int:
    """The call that a label means at `node`: the last one before it, as a variable that is set
    twice would, and only without one the first that comes later.
    """
    before = [i for i in range(node) if labels[i] == label]
    if before:
        return before[-1]
    after = [i for i in range(node, len(labels)) if labels[i] == label]
    if after:
        return after[0]
    raise DataError(
        f"subtask {node} ({tools[node]!r}) refers to {f'${label}$'!r}, and no call is labelled "
        f"{label!r}; the labels are {list(labels)}"
    )


def variables(value: Any) -> list[str]:
    """The labels that an argument of NESTFUL refers to, in order; looks into lists and mappings."""
    match value:
        case str():
            return _VARIABLE.findall(value)
        case Mapping():
            inner = cast("Mapping[str, Any]", value).values()
            return [label for part in inner for label in variables(part)]
        case list() | tuple():
            return [label for part in cast("Sequence[Any]", value) for label in variables(part)]
        case _:
            return []
