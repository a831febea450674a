"""`config.json`: exact round trip, and nothing else is accepted."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
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


@pytest.mark.full
@given(
    lr=st.floats(1e-12, 1e3),
    seed=st.integers(0, 2**63),
    path=st.text(min_size=1),
    tools=st.lists(st.text(min_size=1)),
)
def test_round_trip_of_any_value(lr: float, seed: int, path: str, tools: list[str]) -> None:
    resolved = resolve(
        "math",
        machine=LAPTOP,
        flags={"lr": lr, "seed": seed, "model": path, "tools": tools},
    )
    text = resolved.to_json()
    assert Resolved.from_json(text) == resolved
    assert Resolved.from_json(text).to_json() == text
    assert resolved.config.agent.tools == tuple(tools)


@in_one_item(
    ("change", "says"),
    [
        (lambda tree: tree["config"].pop("seed"), "seed"),
        (lambda tree: tree["config"]["actor"]["optim"].pop("lr"), r"actor\.optim\.lr"),
        (lambda tree: tree["config"].update(sede=1), "config.sede=1"),
        (lambda tree: tree["config"].update(learning_rate=1), "config.learning_rate=1"),
        (lambda tree: tree["config"].update(seed="7"), "seed='7': expected an integer"),
        (lambda tree: tree["config"].update(seed=-7), "at least 0"),
        (lambda tree: tree["config"].update(actor=3), "should be an object"),
        (lambda tree: tree["config"]["trainer"].update(logger=["wandbb"]), "wandb"),
        (lambda tree: tree["origin"].pop("seed"), "seed"),
        (lambda tree: tree["origin"].update(sede="x"), "sede"),
        (lambda tree: tree["origin"].update(seed=3), "origin"),
        (lambda tree: tree.update(warnings=[3]), "warnings"),
        (lambda tree: tree.update(config=[]), "config"),
        (lambda tree: tree.pop("notes"), "exactly"),
        (lambda tree: tree.update(extra=1), "exactly"),
    ],
)
def test_damaged_files_are_refused(change: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Resolved.from_json(damaged(change))


@in_one_item("text", ["", "{", "[]", "3", SAMPLE.to_json()[:-40]])
def test_what_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Resolved.from_json(text)
