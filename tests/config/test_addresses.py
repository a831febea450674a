"""Where records go: databases and collectors are named without secrets."""

from __future__ import annotations

import pytest
from tests.in_one_item import in_one_item

from tutelage.config import Machine
from tutelage.errors import ConfigError
from tutelage.weights.config import resolve

LAPTOP = Machine(cuda_devices=0, cores=2)


def test_the_flags_are_keys() -> None:
    flags = {"store": "postgresql://me@db/x", "otlp": "http://localhost:4318"}
    trainer = resolve("math", machine=LAPTOP, flags=flags).config.trainer
    assert trainer.store_url == "postgresql://me@db/x"
    assert trainer.otlp_endpoint == "http://localhost:4318"
    assert trainer.otlp_content is False


@in_one_item(
    ("key", "value", "message"),
    [
        ("store", "postgresql://me:secret@db/x", "contains a password"),
        ("store", "postgresql://me@db/x?password=secret", "contains a password"),
        ("store", "postgresql://db", "not the URL of a PostgreSQL database"),
        ("store", "mysql://me:secret@db/x", "not the URL of a PostgreSQL database"),
        ("store", "runs/store.db", "not the URL of a PostgreSQL database"),
        ("otlp", "localhost:4318", "expected text such as http"),
        ("otlp", "grpc://localhost:4317", "expected text such as http"),
    ],
)
def test_what_is_no_address_or_holds_a_secret(key: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        resolve("math", machine=LAPTOP, flags={key: value})
    assert "secret" not in str(caught.value)
