"""`tutelage ask TARGET "question"`: an agent answers, and its turns are shown.

The question is played as one rollout by `evaluate`; `rollout_view.py` shows it.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tutelage.cli.options import Trust
from tutelage.evaluate.config import AskConfig


def ask(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="Run, model folder or hub name; AGENT.py or a server's URL.",
        ),
    ],
    question: Annotated[str, typer.Argument(help="What to ask, in quotes.")],
    options: AskConfig,
    trust: Trust = False,
) -> None:
    """Ask an agent a question and show its turns."""
    from tutelage.cli.console import fetch, output, prose, waiting
    from tutelage.cli.rollout_view import show_rollout
    from tutelage.errors import DataError
    from tutelage.tools.loading import is_file_reference

    if not question.strip():
        raise DataError(f"the question is empty: {question!r}. Write it in quotes after the run.")
    fetch(target)
    with waiting("loading the model ..."):
        from tutelage.evaluate.targets import ask as play

        rollout = play(target, question, options, trust=trust)
    show_rollout(output(), rollout, graded=False)
    if rollout.last.failure is not None:
        if rollout.last.calls and is_file_reference(target):
            said = "An agent that grades itself fails here: the question is the task's only field."
            prose(output(), said, "dim")
        raise typer.Exit(1)
