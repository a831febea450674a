"""`RL` and `SFT`: Python objects that configure a weight training.

`RL` learns from rewards, `SFT` from demonstrations. Each takes the keys of the command line's
`KEY=VALUE` arguments, with the same aliases and checks, and runs the same job. `VERL` is an alias
of `RL` for code written for verl. The default estimator is GRPO.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from tutelage.algorithms.extensions import ESTIMATOR, METHODS
from tutelage.config import Resolved
from tutelage.config.aliases import list_aliases
from tutelage.config.keys import flatten
from tutelage.config.overrides import Override
from tutelage.errors import ConfigError, MissingExtraError
from tutelage.weights.config import resolve
from tutelage.weights.config.resolve import ALGORITHM


@contextmanager
def training_packages() -> Generator[None]:
    """Context for imports of training packages. Raises `MissingExtraError` if one is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"training weights needs the package {error.name!r}; install it with: pip install "
            "'tutelage[train]'"
        ) from error


class RL:
    """Keys of an RL run: `RL(num_chains=8, lr=1e-6)`, or `RL({"actor": {"optim": {"lr": 1e-6}}})`.

    Raises `ConfigError` when the run starts, and names the nearest key, as the command line does.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **keys: Any) -> None:
        if config is not None and not isinstance(cast("object", config), Mapping):
            raise ConfigError(
                f"{type(self).__name__}({config!r}): pass keys by name, as lr=1e-6, or in a dict"
            )
        values = {**dict(flatten(config or {})), **dict(flatten(keys))}
        self.keys: dict[str, Any] = {key: v for key, v in values.items() if v != {}}
        self.overrides = [Override(key, value) for key, value in self.keys.items()]
        self.flags: dict[str, Any] = {}
        """Flags of a command, which replace overrides."""
        self.file: Path | None = None
        """File of keys."""
        self.stored: Resolved | None = None
        """Configuration of a resumed run, which `resolve` returns unchanged."""
        self.resolved: Resolved | None = None
        """Result of the last `resolve`."""

    def has(self, key: str) -> bool:
        """Return True if a key is set, under any of its names."""
        return not {key, *list_aliases(key)}.isdisjoint(self.keys)

    def resolve(self, recipe: str = "rl", *, own_agent: bool = False, **flags: Any) -> Resolved:
        """Return the full configuration of a run; `flags` are command-line flags such as `train`.

        `own_agent` is True if a Python agent plays.
        """
        if self.stored is not None:
            return self.stored
        with training_packages():
            from tutelage.policy.machine import detect_machine

        flags = {name: value for name, value in flags.items() if value is not None} | self.flags
        # A method, such as `ppo`, has an estimator.
        method = any(self.keys.get(k) in METHODS for k in (ALGORITHM, *list_aliases(ALGORITHM)))
        if recipe != "sft" and not (method or self.has(ESTIMATOR)):
            flags[ESTIMATOR] = "grpo"
        self.resolved = resolve(
            recipe,
            self.overrides,
            machine=detect_machine(),
            flags=flags,
            file=self.file,
            own_agent=own_agent,
        )
        return self.resolved


VERL = RL


class SFT(RL):
    """Keys of a supervised training run: `SFT("demonstrations.jsonl", epochs=3, lr=1e-4)`.

    The demonstrations are chat rows, or pairs of a question and its answer, in files; see
    `tutelage train sft`. With `Trainer` the agent plays the test tasks before and after.
    """

    def __init__(
        self,
        demonstrations: str | Path | Sequence[str | Path],
        config: Mapping[str, Any] | None = None,
        /,
        **keys: Any,
    ) -> None:
        super().__init__(config, **keys)
        one = isinstance(demonstrations, str | Path)
        self.demonstrations = [str(path) for path in ([demonstrations] if one else demonstrations)]

    def resolve(self, recipe: str = "sft", *, own_agent: bool = False, **flags: Any) -> Resolved:
        """Return the full configuration of a run; `flags` are command-line flags such as `test`."""
        values = {"data.train_files": self.demonstrations} | flags
        return super().resolve("sft", own_agent=own_agent, **values)
