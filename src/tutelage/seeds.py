"""The seed tree: every random draw is addressed by (run seed, path), never by the order of calls.

A node of the tree is a run seed and a path such as `("rl", 12, "task-3", 5)`. Its value is a
BLAKE2b hash of both, so any part of a run can be repeated alone with the same draws: resume is
exact without stored generator states, and identifiers repeat.
"""

from __future__ import annotations

import hashlib
import random
import re
from dataclasses import dataclass

import numpy as np

PathPart = str | int


_LONGEST_NAME = 80
"""Maximum characters of a run's name in an identifier."""


@dataclass(frozen=True, slots=True)
class SeedTree:
    """Node of a seed tree: a run seed and a path, which determine generators and identifiers."""

    seed: int
    path: tuple[PathPart, ...] = ()

    def child(self, *parts: PathPart) -> SeedTree:
        """Return the node at the path `parts` below this one."""
        return SeedTree(self.seed, self.path + parts)

    def value(self, bits: int = 63) -> int:
        """Return a uniform integer in [0, 2**bits), determined by seed and path."""
        return int.from_bytes(self._digest(), "big") & ((1 << bits) - 1)

    def id(self, prefix: str, run: str = "") -> str:
        """Return an identifier such as `roll_5f2c...` (96 bits), determined by seed and path.

        The optional name of the `run` at its end makes it unique among runs of this seed.
        """
        id = f"{prefix}_{self._digest()[:12].hex()}"
        if not run:
            return id
        return f"{id}_" + re.sub(r"[^\w.-]", "-", run)[:_LONGEST_NAME]

    def python(self) -> random.Random:
        """Return a new `random.Random` generator."""
        return random.Random(self.value())

    def numpy(self) -> np.random.Generator:
        """Return a new NumPy generator (Philox)."""
        return np.random.Generator(np.random.Philox(key=self.value()))

    def _digest(self) -> bytes:
        # repr of a tuple of str and int is injective, so two paths never collide by concatenation.
        """Return the BLAKE2b hash of seed and path."""
        text = repr((self.seed, self.path)).encode()
        return hashlib.blake2b(text, digest_size=16).digest()
