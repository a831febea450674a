"""`tutelage train planner --dry-run`: settings with where each came from, the data, one plan.

`orchestration/preview.py` makes what is shown here; nothing is trained or written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tutelage.orchestration.planner.settings import Request


def show_dry_run(request: Request, origins: Mapping[str, str]) -> None:
    """Print what a run would do. `origins` says of each key that was set who set it."""
    from tutelage.cli.console import facts, output, prose, say, visible, waiting
    from tutelage.orchestration.plan.dag import to_text

    with waiting("reading workflows ..."):
        from tutelage.orchestration.preview import preview

        found = preview(request)
    console = output()
    section = ""
    for key, value in found.settings.items():
        here, _, name = key.rpartition(".")
        if here != section:
            section = here
            say(console, (f"\n{section}", "bold"))
        line = f"  {name}={json.dumps(value, ensure_ascii=False)}"
        origin = origins.get(key)
        style, remark = ("", "   # default") if origin is None else ("green", f"   # {origin}")
        say(console, (visible(line), style), (visible(remark), "dim"))
    say(console, ("\nData", "bold"))
    facts(console, list(found.facts.items()), indent=2)
    if found.wanted is not None and found.planned is not None:
        say(console, ("\nOne workflow", "bold"))
        prose(console, found.wanted.instruction)
        for title, plan in (("wanted", found.wanted.plan), (found.planner, found.planned)):
            say(console, (visible(title), "dim"))
            say(console, visible(to_text(plan)))
    say(console, "\nDry run: nothing was trained or written.")
