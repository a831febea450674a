"""`RL` and `SFT`: training of weights as objects, for Python code.

`RL` learns from rewards, `SFT` from demonstrations. Each holds what the command line's `KEY=VALUE`
arguments hold, in the same keys and aliases, checked the same way, and runs the same job. `VERL` is
the other name of `RL`, the one that agent code written for verl uses. GRPO is its default
estimator.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tutelage.config import Resolved, resolve
from tutelage.config.aliases import spellings
from tutelage.runs.folder import create, fresh_name
from tutelage.runs.progress import Progress, Silent


class RL:
    """Keys of an RL run: `RL(num_chains=8, lr=1e-6)`, or `RL({"actor": {"optim": {"lr": 1e-6}}})`.

    Raises `ConfigError` when the run starts, and names the nearest key, as the command line does.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **keys: Any) -> None:
        self.keys: dict[str, Any] = {**_flat(config or {}), **_flat(keys)}

    def resolve(self, recipe: str = "rl", *, own_agent: bool = False, **flags: Any) -> Resolved:
        """The full configuration of a run; `flags` are the command line's, such as `train`.

        `own_agent` says that a Python agent plays, and not a built-in one.
        """
        from tutelage.policy.machine import facts
        from tutelage.weights.built import built

        keys = dict(self.keys)
        if not {"algorithm.adv_estimator", *spellings("algorithm.adv_estimator")} & {*keys}:
            keys["algorithm.adv_estimator"] = "grpo"
        overrides = [f"{key}={_literal(value)}" for key, value in keys.items()]
        return resolve(
            recipe, overrides, machine=facts(), built=built(), flags=flags, own_agent=own_agent
        )

    def train(
        self,
        *,
        recipe: str = "rl",
        output: str | Path | None = None,
        progress: Progress | None = None,
        **flags: Any,
    ) -> dict[str, Any]:
        """Run a job and return what is in its result.json.

        `flags` are those of `tutelage train`: `model`, `train`, `val`, `test`, `tools`, `reward`,
        `steps`, `minutes`, `seed`, `level`.
        """
        from tutelage.weights import jobs
        from tutelage.weights.places import check_name_is_new

        resolved = self.resolve(recipe, **flags)
        if output is None:
            check_name_is_new(resolved)
        place = Path(output) if output is not None else fresh_name(recipe, claim=True)
        folder = create(place)
        return jobs.train(resolved, folder, progress or Silent())

    def __repr__(self) -> str:
        return f"RL({self.keys!r})"


VERL = RL


class SFT(RL):
    """Keys of a supervised training: `SFT("demonstrations.jsonl", epochs=3, lr=1e-4)`.

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
        """The full configuration of a run; `flags` are the command line's, such as `test`."""
        from tutelage.policy.machine import facts
        from tutelage.weights.built import built

        overrides = [f"{key}={_literal(value)}" for key, value in self.keys.items()]
        given = {"data.train_files": self.demonstrations} | flags
        return resolve(
            "sft", overrides, machine=facts(), built=built(), flags=given, own_agent=own_agent
        )

    def __repr__(self) -> str:
        return f"SFT({self.demonstrations!r}, {self.keys!r})"


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            out |= _flat(cast("Mapping[str, Any]", value), f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out


def _literal(value: Any) -> str:
    """A value in the override grammar."""
    return json.dumps(list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value)
