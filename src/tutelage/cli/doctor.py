"""`tutelage doctor`: what this machine has, what is missing and how to get it.

The facts come from `policy/machine.py`; this file lays them out.
"""

from __future__ import annotations


def doctor() -> None:
    """Show what this machine offers and what is missing."""
    from tutelage.cli.console import output, say, visible
    from tutelage.policy.machine import describe

    console = output()
    pairs = describe()
    width = max((len(name) for name, _, _ in pairs), default=0)
    for name, value, remedy in pairs:
        mark = ("ok  ", "green") if remedy is None else ("!   ", "bold yellow")
        say(console, mark, f"{name:<{width}}  ", visible(value))
        if remedy is not None:
            say(console, " " * (width + 6), (visible(remedy), "yellow"))
    missing = sum(remedy is not None for _, _, remedy in pairs)
    summary = "Nothing is missing." if not missing else f"{missing} to look at, marked with '!'."
    say(console, f"\n{summary} Start with: tutelage train math")
