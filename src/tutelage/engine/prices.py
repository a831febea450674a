"""What tokens cost: a table by model that the user can edit.

The built-in table is `prices.toml` beside this module; a file `prices.toml` in the working
directory, or the one that `TUTELAGE_PRICES` names, adds to it and wins. A model that stands in none
has no known price: its tokens are counted, its dollars are not, and a budget in dollars is refused.
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
    """US dollars for a million tokens, in and out."""

    input: _Dollars
    output: _Dollars

    def of(self, prompt: int, completion: int) -> float:
        """Dollars for a number of tokens."""
        return (prompt * self.input + completion * self.output) / 1e6


_TABLE = TypeAdapter(dict[str, Price])


def price_of(prices: Mapping[str, Price], model: str, *, local: bool = False) -> Price | None:
    """The price of a model, None when it is not known. A `local` one without a price is free.

    A dated name such as `gpt-4o-mini-2024-07-18` has the price of the name that it begins with.
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
    """The built-in prices and the user's, by model.

    Raises `ConfigError` for a file that cannot be read.
    """
    named = path or env.get(VARIABLE)
    own = Path(named or FILE)
    if named and not own.is_file():
        raise ConfigError(f"price table not found: {str(own)!r}; create it, or leave it out")
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
            found = error.errors()[0]
            raise ConfigError(
                f"{where}: {'.'.join(map(str, found['loc']))!r} is {found['input']!r}; use "
                '"MODEL" = { input = 0.15, output = 0.60 }, in dollars per million tokens'
            ) from error
    return prices
