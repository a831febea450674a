"""Which algorithm `auto` means, with the reason that is printed."""

from __future__ import annotations

import importlib.util

from tutelage.errors import ConfigError
from tutelage.prompts.apo import APO
from tutelage.prompts.gepa import GEPA
from tutelage.prompts.grips import GRIPS
from tutelage.prompts.screen import Screen

Algorithm = APO | GEPA | Screen | GRIPS

SMALL = 300
"""GEPA, within `max_rollouts`."""
_BY_NAME: dict[str, type[Algorithm]] = {"apo": APO, "gepa": GEPA, "screen": Screen, "grips": GRIPS}


def choose(
    name: str, *, has_optimiser: bool, rollouts: int | None, expensive: bool = False
) -> tuple[Algorithm, str]:
    """The algorithm at its defaults, and why. Raises `ConfigError` for one that cannot run."""
    if name == "auto":
        if not has_optimiser:
            return Screen(), "there is no optimiser endpoint, and it needs none"
        if rollouts is not None and rollouts <= SMALL:
            return GEPA(), f"the budget is small ({rollouts} rollouts, at most {SMALL})"
        if expensive:
            return GEPA(), "rollouts are expensive, and it spends the fewest a proposal"
        return APO(), f"the budget allows more than {SMALL} rollouts"
    if name not in _BY_NAME:
        raise ConfigError(
            f"unknown prompt algorithm {name!r}; choose one of auto, {', '.join(_BY_NAME)}"
        )
    algorithm = _BY_NAME[name]()
    if algorithm.needs_optimiser and not has_optimiser:
        raise no_endpoint(name, "--algorithm screen")
    return algorithm, "it was asked for"


def no_endpoint(algorithm: str, without: str) -> ConfigError:
    """What to say where an algorithm needs an optimiser LLM and there is none; `without` is how
    the caller asks for a search that needs none."""
    torch = importlib.util.find_spec("torch") is not None
    needs = "" if torch else ", on this machine after pip install 'tutelage[train]'"
    return ConfigError(
        f"{algorithm} needs an optimiser LLM, but no endpoint is set. Either set OPENAI_BASE_URL "
        "or OPENAI_API_KEY in .env or the environment (any OpenAI-compatible server: OpenAI, vLLM, "
        f"Ollama), or search without an LLM: {without}{needs}"
    )
