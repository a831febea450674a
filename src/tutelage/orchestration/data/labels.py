"""Labels of NESTFUL, by which a call refers to the result of another one: `$var_1.name$`.

They become the references of plans, `<node-1>.name`, with all steps of a path. Some paths have
what is no step of a plan, such as `$var_1.Exchange Rate$`: they are not cut, but told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from tutelage.errors import DataError
from tutelage.orchestration.plan.arguments import STEP
from tutelage.orchestration.plan.dag import with_texts

_VARIABLE = re.compile(r"\$(var[\w-]*?)((?:\.[^$]*|\[[^$]*)?)\$")
_STEPS = re.compile(rf"(?:{STEP})*")


def meant(label: str, node: int, labels: Sequence[str], tools: Sequence[str]) -> int:
    """The call that a label means at `node`: the last one before it, as a variable that is set
    twice would, and only without one the first that comes later.
    """
    places = [i for i, known in enumerate(labels) if known == label]
    if places:
        return max((i for i in places if i < node), default=places[0])
    raise DataError(
        f"subtask {node} ({tools[node]!r}) refers to {f'${label}$'!r}, and no call is labelled "
        f"{label!r}; the labels are {labels}"
    )


def referring(given: Any, node: int, labels: Sequence[str], tools: Sequence[str]) -> Any:
    """Arguments of a NESTFUL call with references as plans have them."""

    def named(match: re.Match[str]) -> str:
        return f"<node-{meant(match[1], node, labels, tools)}>{match[2]}"

    return with_texts(given if isinstance(given, Mapping) else {}, partial(_VARIABLE.sub, named))


def variables(value: Any) -> list[str]:
    """The labels that an argument of NESTFUL refers to, in order; looks into lists and mappings."""
    return [found[1] for found in _found(value)]


def untaken(value: Any) -> list[str]:
    """Those of its references, as they are written, whose path no plan can take of a result."""
    return [found[0] for found in _found(value) if not _STEPS.fullmatch(found[2])]


def _found(value: Any) -> list[re.Match[str]]:
    if isinstance(value, str):
        return [*_VARIABLE.finditer(value)]
    inner = cast("Mapping[str, Any]", value).values() if isinstance(value, Mapping) else value
    parts = cast("Iterable[Any]", inner) if isinstance(inner, Iterable) else ()
    return [found for part in parts for found in _found(part)]
