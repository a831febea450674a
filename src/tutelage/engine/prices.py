"""Token prices by model, in a table that the user can edit.

The built-in table is `prices.toml` beside this module; `prices.toml` in the working directory, or
the file that `TUTELAGE_PRICES` names, extends and overrides it. A model in neither has no known
price: its tokens are counted, its dollars are not, and a budget in dollars is rejected.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from tutelage.errors import ConfigError

FILE = "prices.toml"
VARIABLE = "TUTELAGE_PRICES"
_Dollars = Annotated[float, Field(ge=0, lt=1e9, strict=True)]


@dataclass(frozen=True, slots=True)
class Price:
    """A model's price in US dollars per million input and output tokens."""

    input: _Dollars
    output: _Dollars

    def cost(self, prompt: int, completion: int) -> float:
        """Return the cost in dollars of the given numbers of prompt and completion tokens."""
        return (prompt * self.input + completion * self.output) / 1e6


_TABLE = TypeAdapter(dict[str, Price])


def find_price(prices: Mapping[str, Price], model: str, *, local: bool = False) -> Price | None:
    """Return the price of a model, or None if it is unknown.

    A `local` model that is not in the table is free. A dated name such as `gpt-4o-mini-2024-07-18`
    has the price of the undated name.
    """
    if model in prices:
        return prices[model]
    begins = [name for name in prices if model.startswith(f"{name}-20")]
    if begins:
        return prices[max(begins, key=len)]
    return Price(0.0, 0.0) if local else None


def load_prices(
    path: str | Path | None = None, env: Mapping[str, str] = os.environ
) -> dict[str, Price]:
    """Load the token prices by model: the built-in table, overridden by the user's.

    Raises `ConfigError` for a file that cannot be read.
    """
    chosen = path or env.get(VARIABLE)
    own = Path(chosen or FILE)
    if chosen and not own.is_file():
        raise ConfigError(f"price table not found: {str(own)!r}; create it or unset the path")
    prices: dict[str, Price] = {}
    for table in (files("tutelage.engine") / FILE, own):
        if not table.is_file():
            continue
        where = f"the price table {str(table)!r}"
        try:
            models = tomllib.loads(table.read_text(encoding="utf-8")).get("models", {})
            prices |= _TABLE.validate_python(models)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{where} is not valid TOML: {error}") from error
        except ValidationError as error:
            detail = error.errors()[0]
            raise ConfigError(
                f"{where}: {'.'.join(map(str, detail['loc']))!r} is {detail['input']!r}; use "
                '"MODEL" = { input = 0.15, output = 0.60 }, in dollars per million tokens'
            ) from error
    return prices
