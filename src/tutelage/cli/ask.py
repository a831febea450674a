"""`tutelage ask TARGET "question"`: ask an agent a question and show its turns.

The question is played as one rollout by `evaluate`; `rollout_view.py` shows it. `KEY=VALUE` are the
other fields of its task, which an environment or a custom agent may read.
"""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from tutelage.cli.options import Trust
from tutelage.evaluate.config import AskConfig


def ask(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="Run, model folder, GGUF file, `smollm2` or OWNER/NAME on huggingface.co, "
            "AGENT.py or a server's URL.",
        ),
    ],
    question: Annotated[str, typer.Argument(help="Question, in quotes.")],
    options: AskConfig,
    fields: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Further fields of the task, such as prices.lamp=23."
        ),
    ] = None,
    trust: Trust = False,
) -> None:
    """Ask an agent a question and show its turns."""
    from tutelage.cli.console import echo_text, fetch, format_path, output
    from tutelage.cli.display import LiveDisplay
    from tutelage.cli.rollout_view import show_rollout
    from tutelage.config.keys import nest
    from tutelage.config.overrides import parse_overrides
    from tutelage.errors import ConfigError, DataError, RunError
    from tutelage.runs.folder import find
    from tutelage.runs.resume_hint import command_name

    if not question.strip():
        raise DataError(f"the question is empty: {question!r}. Pass it in quotes after the run.")
    if " " in target and not Path(target).exists():
        words = shlex.join(["ask", question, target])
        raise ConfigError(f"the run must come before the question: {command_name()} {words}")
    parsed = parse_overrides(fields or ())
    keys = ["question", *(field.spelling for field in parsed)]
    for field in parsed:
        key = field.spelling
        inside = any(other.startswith(f"{key}.") for other in keys)
        if inside or keys.count(key) > 1 or key.startswith("question."):
            raise ConfigError(
                f"invalid task field {key!r}: set each field once, as KEY=VALUE, and pass the "
                "question first"
            )
    further = nest({field.spelling: field.value for field in parsed})
    fetch(target)
    with LiveDisplay() as display:
        from tutelage.evaluate.targets import ask as play

        rollout = play(target, question, options, further, trust=trust, progress=display)
    show_rollout(output(), rollout, with_reward=False)
    with suppress(RunError):  # the target may be no run
        run = find(target)
        if (agent_file := run.own_agent()[0]) is not None:
            note = "The built-in agent answered, with the policy of this run. Your own: tutelage "
            command = f"ask {format_path(agent_file)} --model {format_path(run.policy)} QUESTION"
            echo_text(output(), note + command, "dim")
    if rollout.last.failure is not None:
        raise typer.Exit(1)
