"""`python test_real_api.py ["INSTRUCTION"] [OPTIONS]`: execute one task and log the result.

The document's script: it is `tutelage orchestrate run`, which logs to `execution_logs/`. With
`OPENAI_API_KEY` in the environment the workers of `workers.json` are asked, which costs money:
`--budget` bounds it. Without a key simulated workers answer, and the output says so.
"""

import os
import sys
from pathlib import Path

from tutelage.cli import main

TASK = "Summarise this report, translate the summary to French and write an email about it."
PLAN = Path(__file__).parents[1] / "plan.json"
WORKERS = Path(__file__).parents[1] / "workers.json"


def arguments(given: list[str]) -> list[str]:
    """The arguments of `tutelage`; what is given stands last, so that it wins."""
    told = bool(given) and not given[0].startswith("-")
    task = [given[0]] if told else [TASK, "--plan", str(PLAN)]
    real = ["--pool", "openai", "--workers", str(WORKERS)] if "OPENAI_API_KEY" in os.environ else []
    options = ["--logs", "execution_logs", "--budget", "0.05", "--deadline", "120"]
    return ["orchestrate", "run", *task, *options, *real, *given[told:]]


if __name__ == "__main__":
    sys.argv[1:] = arguments(sys.argv[1:])
    main()
