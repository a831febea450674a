"""No key is silently dropped: each is read somewhere, or the configuration itself decides it.

A key is *decided here* when, whatever other value it is given, the run is refused, the key is
listed as unused, or its value is replaced with a warning. Every other key must be read by code
outside `config/`. A key counts as read when the source has `.name` for a distinctive name, or
`section.name` for one that several keys or other things share (`path`, `lr`, `type`), or reads a
property of the configuration that stands for it.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import tutelage
from tutelage.algorithms.extensions import LOSSES
from tutelage.config import Machine
from tutelage.config.fields import tuples_to_lists
from tutelage.config.keys import get, json_schema, leaf_fields
from tutelage.errors import ConfigError
from tutelage.weights.config import resolve
from tutelage.weights.config.extensions import registered_names

SOURCE = Path(tutelage.__file__).parent
LAPTOP = Machine(cuda_devices=0, cores=2)
ONE_GPU = Machine(cuda_devices=1, cores=8)
PLAIN = resolve("math", machine=LAPTOP).config
# Settings under which keys wake up that a plain `train math` has no use for. One that asks for
# something not built is refused as a whole and wakes nothing.
CONTEXTS = (
    (),
    ("actor.clip_ratio_low=null",),
    ("actor.loss_agg_mode=seq-mean-token-sum-norm",),
    ("trainer.resume_mode=resume_path",),
    ("rollout.response_length=1",),
    ("algorithm.adv_estimator=gae",),
    ("actor.use_kl_loss=true",),
    ("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive"),
    ("rollout.correction=token_tis",),
)
THROUGH = {
    "actor.ppo_mini_batch_size": ("rollouts_per_update", "updates_per_batch"),
    "rollout.response_length": ("response_tokens",),
}
SHARED = {
    name
    for name, times in Counter(key.rsplit(".", 1)[-1] for key in leaf_fields()).items()
    if times > 1
}


def other_values(key: str) -> Iterator[Any]:
    """Values that fit the key's type and are not the one that a plain `train math` has."""
    schema = json_schema(key)
    first = schema["anyOf"][0] if "anyOf" in schema else schema
    default = tuples_to_lists(get(PLAIN, key))
    choices = first.get("enum", registered_names().get(key))
    if choices:
        yield from (choice for choice in choices if choice != default)
        return
    low = first.get("exclusiveMinimum", first.get("minimum", 0))
    high = first.get("exclusiveMaximum", first.get("maximum", low + 4))
    samples: dict[str, list[Any]] = {
        "boolean": [True, False],
        "integer": [2, 3],
        "number": [low + (high - low) / 4, low + (high - low) / 3],
        "string": ["x"],
        "array": [["x"], ["jsonl"], ["console", "wandb"], [0.1, 0.2]],
    }
    yield from (value for value in samples[first["type"]] if value != default)


@cache
def decided_here(key: str, machine: Machine) -> bool:
    """Whether every other value of the key is refused or without effect, in every context."""
    for value, context in itertools.product(other_values(key), CONTEXTS):
        try:
            resolved = resolve("math", context, machine=machine, flags={key: value})
        except ConfigError:
            continue
        replaced = resolved.warnings and get(resolved.config, key) == get(PLAIN, key)
        if key not in resolved.unused and not replaced:
            return False
    return True


DECLARED = {key for loss in LOSSES.values() for key in loss.config_keys}
"""Options of losses: the trainer gives each loss those that it takes (`options_of`)."""


def is_read(key: str, text: str) -> bool:
    """Whether source text reads the key."""
    if key.startswith("actor.policy_loss.") and key in DECLARED:
        return ".options_of(" in text or " options_of(" in text
    *parents, name = key.split(".")
    parent = parents[-1] if parents else "config"
    distinctive = "_" in name and name not in SHARED
    wanted = name if distinctive else f"{parent}.{name}"
    names = [wanted, *THROUGH.get(key, ())]
    # `optim.lr` may follow a dot or stand alone; a single name must follow a dot.
    patterns = [rf"\b{re.escape(n)}\b" if "." in n else rf"\.{re.escape(n)}\b" for n in names]
    return any(re.search(pattern, text) for pattern in patterns)


def source_text(root: Path) -> str:
    """All source outside of folders called `config`, which read keys to judge them."""
    files = [path for path in sorted(root.rglob("*.py")) if path.parent.name != "config"]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def unread_keys(text: str) -> list[str]:
    """The keys that nobody reads and that the configuration does not decide."""
    return [
        key
        for key in leaf_fields()
        if not is_read(key, text)
        and not all(decided_here(key, machine) for machine in (LAPTOP, ONE_GPU))
    ]


@pytest.mark.full
def test_every_key_has_a_reader() -> None:
    assert unread_keys(source_text(SOURCE)) == []
