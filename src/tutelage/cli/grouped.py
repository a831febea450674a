"""Options that several verbs share: a dataclass of options stands for all of them in a signature.

A verb says `there: PoolOptions`, and `grouped` shows the command line that class's fields in its
place, with their names, defaults and help, and puts them together again when the verb is called. So
an option is written once, and a verb's parameters stay few.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, cast, get_type_hints


def grouped(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with each parameter that is a dataclass replaced by the fields of it."""
    hints = get_type_hints(verb, include_extras=True)
    groups: dict[str, type[Any]] = {}
    shown: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(verb).parameters.items():
        hint = hints[name]
        if isinstance(hint, type) and is_dataclass(hint):
            group = cast("type[Any]", hint)
            groups[name] = group
            own = get_type_hints(group, include_extras=True)
            shown += [
                inspect.Parameter(f.name, parameter.kind, default=f.default, annotation=own[f.name])
                for f in fields(group)
            ]
        else:
            shown.append(parameter.replace(annotation=hint))

    def run(**given: Any) -> None:
        made = {
            name: group(**{f.name: given.pop(f.name) for f in fields(group)})
            for name, group in groups.items()
        }
        verb(**given, **made)

    run.__name__, run.__doc__, run.__module__ = verb.__name__, verb.__doc__, verb.__module__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    typed = cast("Any", run)
    typed.__signature__ = inspect.Signature(shown)
    return run
