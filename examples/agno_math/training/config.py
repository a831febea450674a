"""`TrainingConfig` and `AgentConfig`: what the command line and `.env` come down to.

A flag wins over a variable that is set, and that over a line of `.env`. The key of the endpoint is
read by the training itself and stands in neither, so it is never printed or stored.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dotenv import load_dotenv

from tutelage.tracing.export import endpoint

Algorithm = Literal["apo", "sft", "rl"]
SEED_PROMPT = "You are a helpful assistant. Solve math problems."
COLLECTOR = "http://localhost:4318/v1/traces"
"""Where a collector such as Jaeger listens that nobody has configured."""


@dataclass(frozen=True)
class TrainingConfig:
    """How it is trained, and on how much."""

    algorithm: Algorithm = "apo"
    iterations: int = 10
    """Rounds of apo, passes over the demonstrations of sft, steps of rl."""
    train_size: int = 20
    val_size: int = 10
    test_size: int = 200
    """Held-out tasks, played before and after; fewer make a verdict unlikely."""
    runners: int = 8
    """Rollouts that are played at once."""
    rollouts: int = 600
    """apo: rollouts of the search at most; the held-out test comes on top. More than 10 iterations
    have 60 each."""
    budget_usd: float | None = None
    """apo: US dollars at most."""
    seed: int = 0
    otlp: str | None = COLLECTOR
    """Collector for traces; None sends them nowhere."""
    output: Path | None = None
    """Folder of the run; one below `runs/` is made if there is none."""
    model: str | None = None
    """A Hugging Face model, as folder or name: the one that sft and rl train, or that apo plays
    with. Without it apo plays with the endpoint's model, and sft and rl train a small policy."""
    base: Path = Path("runs/base")
    """Where that small policy lies, which both begin with; it is made where it is missing."""


@dataclass(frozen=True)
class AgentConfig:
    """The agent before any training."""

    prompt: str = SEED_PROMPT
    model: str = "gpt-4o-mini"
    """Its name at the endpoint."""
    base_url: str | None = None
    """None is OpenAI."""
    max_turns: int = 4
    """Model calls of one task at most."""
    database: Path = Path("agno_memory_training.db")
    sessions: int = 2000
    """Rollouts that the database keeps; what comes after is in the run's store alone."""


def read_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m training.train", description="Train an Agno agent on math problems."
    )
    default = TrainingConfig()
    parser.add_argument("--algorithm", choices=("apo", "sft", "rl"), default=default.algorithm)
    for name, words in (
        ("iterations", "rounds of apo, passes of sft, steps of rl"),
        ("train-size", "training tasks"),
        ("val-size", "validation tasks"),
        ("test-size", "held-out test tasks"),
        ("runners", "rollouts at once"),
    ):
        value = getattr(default, name.replace("-", "_"))
        parser.add_argument(f"--{name}", type=_count, default=value, help=f"{words} ({value})")
    default_rollouts = f"apo: rollouts of the search at most (60 an iteration, {default.rollouts})"
    parser.add_argument("--rollouts", type=_count, help=default_rollouts)
    parser.add_argument("--budget-usd", type=float, help="apo: US dollars at most")
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--otlp", metavar="URL", help=f"collector for traces ({COLLECTOR})")
    parser.add_argument("--output", type=Path, help="folder of the run")
    first = parser.add_mutually_exclusive_group()
    first.add_argument("--model", metavar="PATH_OR_ID", help="your Hugging Face model")
    first.add_argument(
        "--base", type=Path, default=default.base, help="sft, rl: folder of the small policy"
    )
    parser.add_argument("--dry-run", action="store_true", help="play one task, train nothing")
    return parser.parse_args(arguments)


def configure(given: argparse.Namespace) -> tuple[TrainingConfig, AgentConfig]:
    """Both configurations, with `.env` of the working directory read into the environment."""
    load_dotenv(Path(".env"), override=False)
    training = TrainingConfig(
        algorithm=given.algorithm,
        iterations=given.iterations,
        train_size=given.train_size,
        val_size=given.val_size,
        test_size=given.test_size,
        runners=given.runners,
        rollouts=given.rollouts or max(TrainingConfig.rollouts, 60 * given.iterations),
        budget_usd=given.budget_usd,
        seed=given.seed,
        otlp=asked_collector(given) or (None if _no_traces() else COLLECTOR),
        output=given.output,
        model=given.model,
        base=given.base,
    )
    agent = AgentConfig(
        model=os.environ.get("OPENAI_MODEL") or AgentConfig.model,
        base_url=os.environ.get("OPENAI_BASE_URL") or None,
    )
    return training, agent


def asked_collector(given: argparse.Namespace) -> str | None:
    """The collector that the command line or the environment names, if any."""
    return endpoint(given.otlp, os.environ)


def _no_traces() -> bool:
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be at least 1")
    return value
