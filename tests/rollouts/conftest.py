"""What tests of live rollouts share: a codec and a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tutelage.gateway import Gateway
from tutelage.policy.codec import Codec


@pytest.fixture
def codec(tiny: Any) -> Codec:
    return tiny("qwen2").codec


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway() as made:
        yield made
