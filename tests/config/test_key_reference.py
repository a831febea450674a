"""The reference page has every key once, with its spellings, in valid table rows."""

import re

from tutelage.config.aliases import NAMES
from tutelage.config.keys import leaf_fields
from tutelage.config.reference import reference_markdown, reference_rows


def test_rows() -> None:
    rows = {row.key: row for row in reference_rows()}
    assert list(rows) == list(leaf_fields())
    lr = rows["actor.optim.lr"]
    assert lr.type == "a number, above 0"
    assert {"lr", "learning_rate", "actor_rollout_ref.actor.optim.lr"} <= set(lr.aliases)
    assert rows["trainer.logger"].default == '["jsonl", "console"]'
    assert rows["model.path"].default == "null"
    assert rows["trainer.total_training_steps"].type == "an integer, at least 0, or null"


def test_page() -> None:
    page = reference_markdown()
    for key in leaf_fields():
        assert page.count(f"\n| `{key}` |") == 1
    for alias in NAMES:
        assert f"`{alias}`" in page
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 6 for line in table)
    assert "None" not in page
