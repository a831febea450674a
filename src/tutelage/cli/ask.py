"""`tutelage ask RUN "question"`: the trained agent answers, and its turns are shown.

The question is played as one rollout by `evaluate`; `rollout_view.py` shows it.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tutelage.cli.options import Trust
from tutelage.evaluate.config import AskConfig


def ask(
    target: Annotated[
        str, typer.Argument(metavar="RUN", help="Run, or a model folder or hub name.")
    ],
    question: Annotated[str, typer.Argument(help="What to ask, in quotes.")],
    options: AskConfig,
    trust: Trust = False,
) -> None:
    """Ask a trained agent a question and show its turns."""
    from tutelage.cli.console import output, waiting
    from tutelage.cli.rollout_view import show_rollout
    from tutelage.errors import DataError

    if not question.strip():
        raise DataError(f"the question is empty: {question!r}. Write it in quotes after the run.")
    with waiting("loading the model ..."):
        from tutelage.evaluate.targets import ask as play

        rollout = play(target, question, options, trust=trust)
    show_rollout(output(), rollout, graded=False)
    if rollout.last.failure is not None:
        raise typer.Exit(1)
