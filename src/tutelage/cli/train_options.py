"""The flags of `tutelage train`, each with its help; `train.py` says what becomes of them.

A flag is the spelling of a key and is handed on as it was typed, so almost all are text: what a
number or a name must look like is for the configuration to say, in one place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Recipe = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="math: the embedded job, which needs nothing; rl: your own model and tasks; "
        "sft: your own demonstrations; prompt AGENT.py: the prompt of your own agent; "
        "planner: plans and workers (see tutelage train planner --help).",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Any key; `tutelage config` lists them."),
]
Algorithm = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="rl or sft train weights; apo, gepa, screen, grips or auto search for prompts.",
    ),
]
Iterations = Annotated[
    str | None,
    typer.Option(metavar="N", help="Rounds of a prompt search; training steps else."),
]
TrainSize = Annotated[str | None, typer.Option(metavar="N", help="Training tasks at most.")]
ValSize = Annotated[str | None, typer.Option(metavar="N", help="Validation tasks at most.")]
TestSize = Annotated[str | None, typer.Option(metavar="N", help="Test tasks at most.")]
Runners = Annotated[str | None, typer.Option(metavar="N", help="Prompt search: rollouts at once.")]
Rollouts = Annotated[str | None, typer.Option(metavar="N", help="Prompt search: rollouts at most.")]
BudgetUsd = Annotated[
    str | None, typer.Option(metavar="X", help="Prompt search: US dollars at most.")
]
Level = Annotated[
    str | None,
    typer.Option(metavar="default|hard", help="Difficulty of the embedded tasks."),
]
Seed = Annotated[str | None, typer.Option(metavar="N", help="Seed of every random draw.")]
Minutes = Annotated[str | None, typer.Option(metavar="M", help="Stop after this many minutes.")]
Steps = Annotated[str | None, typer.Option(metavar="N", help="Stop after this many steps.")]
Output = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Run folder; without it a new one below runs/."),
]
Model = Annotated[
    str | None,
    typer.Option(metavar="PATH_OR_ID", help="Hugging Face model; without it a tiny one."),
]
Train = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE", help="Training tasks (sft: demonstrations): JSON, JSONL, CSV, Parquet."
    ),
]
Val = Annotated[list[str] | None, typer.Option(metavar="FILE", help="Held-out tasks.")]
Test = Annotated[
    list[str] | None, typer.Option(metavar="FILE", help="Tasks seen only after training.")
]
Tools = Annotated[
    str | None, typer.Option(metavar="A,B", help="Tools by name or as FILE.py:function.")
]
Reward = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Reward by name or as FILE.py:function."),
]
Success = Annotated[
    str | None,
    typer.Option(
        metavar="RULE", help="What succeeds: a part of the reward, or a bound such as '>=0.5'."
    ),
]
Config = Annotated[Path | None, typer.Option(metavar="FILE", help="Keys from a JSON or TOML file.")]
Store = Annotated[
    str | None,
    typer.Option(metavar="URL", help="postgresql://HOST/DATABASE instead of a file."),
]
Otlp = Annotated[str | None, typer.Option(metavar="URL", help="Collector that traces are sent to.")]
AllowUnsandboxed = Annotated[
    bool,
    typer.Option("--allow-unsandboxed", help="Run model-written code where no sandbox works."),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Show the configuration, play one task, train nothing."),
]
