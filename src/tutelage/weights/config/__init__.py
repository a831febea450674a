"""From a recipe, flags, overrides and a file to the checked configuration of a training.

`resolve` is the entry point. The keys themselves stand in `config/`, because a reader of a
run reads them; presets, what follows from a value and what may not be asked for are here.
"""

from tutelage.weights.config.resolve import resolve

__all__ = ["resolve"]
