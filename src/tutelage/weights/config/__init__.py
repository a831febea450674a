"""Resolve a recipe, flags, overrides and a file to the checked configuration of a training.

`resolve` is the entry point. The keys are in `tutelage/config`, since readers of runs need them;
presets, derived values and checks are here.
"""

from tutelage.weights.config.resolve import resolve

__all__ = ["resolve"]
