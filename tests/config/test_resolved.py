"""`config.json`: exact round trip, and nothing else is accepted."""

import json
from typing import Any

import pytest
from tests.in_one_item import in_one_item

from tutelage.config import Machine, Resolved
from tutelage.errors import ConfigError
from tutelage.weights.config import resolve

LAPTOP = Machine(cuda_devices=0, cores=2)
SAMPLE = resolve(
    "math",
    ["rollout.name=vllm", "agent.tools=[calculator]", "critic.model.path=x", "seed=7"],
    machine=LAPTOP,
)


def damaged(change: Any) -> str:
    tree = json.loads(SAMPLE.to_json())
    change(tree)
    return json.dumps(tree)


def test_round_trip_is_exact() -> None:
    text = SAMPLE.to_json()
    back = Resolved.from_json(text)
    assert back == SAMPLE
    assert back.to_json() == text
    assert SAMPLE.warnings
    assert SAMPLE.unused


@in_one_item(
    ("change", "says"),
    [
        (lambda tree: tree["config"].pop("seed"), "seed"),
        (lambda tree: tree["config"]["actor"]["optim"].pop("lr"), r"actor\.optim\.lr"),
        (lambda tree: tree["config"].update(sede=1), "config.sede=1"),
        (lambda tree: tree["config"].update(seed="7"), "seed='7': expected an integer"),
        (lambda tree: tree["config"].update(actor=3), "should be an object"),
        (lambda tree: tree["config"]["trainer"].update(logger=["wandbb"]), "wandb"),
        (lambda tree: tree["origin"].update(sede="x"), "sede"),
        (lambda tree: tree.pop("notes"), "exactly"),
    ],
)
def test_damaged_files_are_refused(change: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Resolved.from_json(damaged(change))
