"""Which endpoint a path leads to, and what the path itself says.

A path may begin with the rollout, the attempt and the agent of a request. What follows is one of
the gateway's paths: a fixed one, which one look into a dictionary finds, or one with parameters,
written as Starlette writes them. `app.py` says what the paths are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Generic, TypeVar

from starlette.routing import compile_path

_BEGIN = re.compile(
    "(?:/rollout/(?P<rollout>[^/]+)/attempt/(?P<attempt>[^/]+))?(?:/agent/(?P<agent>[^/]+))?(?=/v1/)"
)

T = TypeVar("T")


class Routes(Generic[T]):
    """Endpoints by path."""

    def __init__(self, endpoints: Mapping[str, T]) -> None:
        self._fixed = {path: each for path, each in endpoints.items() if "{" not in path}
        self._forms = [(compile_path(p)[0], each) for p, each in endpoints.items() if "{" in p]

    def find(self, path: str) -> tuple[T | None, dict[str, str]]:
        """The endpoint, None for a path that leads nowhere, and the parameters of the path."""
        endpoint = self._fixed.get(path)
        begin = _BEGIN.match(path) if endpoint is None else None
        if begin is None:
            return endpoint, {}
        said = {name: value for name, value in begin.groupdict().items() if value is not None}
        rest = path[begin.end() :]
        if rest in self._fixed:
            return self._fixed[rest], said
        for form, endpoint in self._forms:
            if found := form.fullmatch(rest):
                return endpoint, said | found.groupdict()
        return None, said
