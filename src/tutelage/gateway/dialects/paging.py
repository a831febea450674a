"""Pages of a list whose objects have ids: what comes after one of them, or before it.

`stored.py` lists the items of a request so, and `models.py` beside this folder the models.
"""

from __future__ import annotations

from collections.abc import Sequence

from tutelage.gateway.errors import invalid
from tutelage.types import JSON


def page(items: Sequence[JSON], limit: int, **cursors: str | None) -> tuple[list[JSON], bool]:
    """At most `limit` of the items, and whether there are more in that direction.

    A cursor is named as the API names it: one whose name begins with `before` asks for the items
    before its id, the nearest ones; another for those after it. Raises `ApiError` for an id that is
    not in the list.
    """
    found, backwards = list(items), False
    for name, cursor in cursors.items():
        if cursor is None:
            continue
        at = next((i for i, item in enumerate(found) if item["id"] == cursor), None)
        if at is None:
            raise invalid(f"`{name}` = {cursor!r}: no item with this id in the list", name)
        backwards = name.startswith("before")
        found = found[:at] if backwards else found[at + 1 :]
    return (found[-limit:] if backwards else found[:limit]), len(found) > limit


def first_and_last(items: Sequence[JSON]) -> JSON:
    """The ids at the ends of a page, null where it is empty."""
    first, last = (items[at]["id"] if items else None for at in (0, -1))
    return {"first_id": first, "last_id": last}
