"""A layer imports only from the layers above it, type hints included."""

from __future__ import annotations

import pytest
from source_tree import imported, modules

LAYERS = (
    "types", "errors", "bounded", "files", "signals", "seeds", "config", "resources", "tracing",
    "store", "tasks", "tools", "rewards", "policy", "engine", "gateway", "agents", "rollouts",
    "evaluate", "algorithms", "orchestration", "train", "distributed", "web", "cli",
)  # fmt: skip
"""From the words that all share down to the command line. `testing` stands outside: it may import
anything, and nothing imports it."""


def layer(module: str) -> str:
    """`tutelage.policy.codec` belongs to `policy`; the public surface to the empty name."""
    return [*module.split("."), ""][1]


def test_every_module_belongs_to_a_layer() -> None:
    known = {"", "testing", "__main__", *LAYERS}
    strangers = sorted(m for m in modules() if layer(m) not in known)
    assert strangers == [], f"give these a place in LAYERS: {strangers}"


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_imports_only_from_those_above_it(name: str) -> None:
    above = {*LAYERS[: LAYERS.index(name) + 1]}
    wrong = [
        f"{module} imports {target}"
        for module in modules()
        if layer(module) == name
        for target in imported(module)
        if layer(target) not in above and target != "tutelage.__version__"
    ]
    assert wrong == []


def test_imports_are_found_wherever_they_stand() -> None:
    """The rule above would hold of anything if no import were seen."""
    seen = {(layer(m), layer(t)) for m in modules() for t in imported(m)}
    assert ("engine", "policy") in seen
    assert ("rollouts", "agents") in seen
    assert "tutelage.policy.tokenizer.train_tokenizer" in set(imported("tutelage.policy.model"))
    assert "tutelage.policy.model.Policy" in set(imported("tutelage.testing.tiny"))
