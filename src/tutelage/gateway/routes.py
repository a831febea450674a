"""Which endpoint a path leads to, what the path itself says, and what to do about one that leads
nowhere.

A path may begin with the rollout, the attempt and the agent of a request. What follows is one of
the gateway's paths: a fixed one, which one look into a dictionary finds, or one with parameters,
written as Starlette writes them. Those of agent-lightning mean one of these. `app.py` says
what the paths are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from starlette.routing import compile_path

from tutelage.gateway.agent_lightning import own_path
from tutelage.gateway.clients import Clients
from tutelage.gateway.dialects.field_errors import shown
from tutelage.gateway.errors import ApiError

_ATTEMPT = "(?:/rollout/(?P<rollout>[^/]+)/attempt/(?P<attempt>[^/]+))?(?:/agent/(?P<agent>[^/]+))?"
_BEGIN = re.compile(f"{_ATTEMPT}(?=/v1/)")
_ANY = re.compile(_ATTEMPT)

T = TypeVar("T")


def origin_form(target: str) -> str:
    """The path of a request line that names the whole URL, as clients of a proxy send it."""
    _, _, rest = target.partition("://")
    return "/" + rest.partition("/")[2]


class Routes(Generic[T]):
    """Endpoints by path."""

    def __init__(self, endpoints: Mapping[str, T]) -> None:
        self._paths = [path.replace(":path}", "}") for path in endpoints]
        self._fixed = {path: each for path, each in endpoints.items() if "{" not in path}
        self._forms = [(compile_path(p)[0], each) for p, each in endpoints.items() if "{" in p]

    def find(self, path: str) -> tuple[T | None, dict[str, str]]:
        """The endpoint, None for a path that leads nowhere, and the parameters of the path."""
        endpoint = self._fixed.get(path)
        if endpoint is not None:
            return endpoint, {}
        path = own_path(path)
        begin = _BEGIN.match(path)
        if begin is None:
            return None, {}
        said = {name: value for name, value in begin.groupdict().items() if value is not None}
        rest = path[begin.end() :]
        if rest in self._fixed:
            return self._fixed[rest], said
        for form, endpoint in self._forms:
            found = form.fullmatch(rest)
            if found is not None and all(found.groupdict().values()):
                return endpoint, said | found.groupdict()
        return None, said

    def missing(
        self, method: str, path: str, clients: Clients, known: Sequence[Clients]
    ) -> ApiError:
        """A 404 for a path that leads nowhere: what is wrong with it, and which paths there are.
        `clients` says whose asked, `known` which there are."""
        hint = self._hint(path, clients) or ", ".join(each.base_url for each in known)
        words = f"no route for {method} {shown(path)}: {hint}"
        return ApiError(404, f"{words}. Routes: {', '.join(self._paths)}", code="unknown_url")

    def _hint(self, path: str, clients: Clients) -> str:
        """What to change so that a path leads somewhere; empty where that is not clear."""
        begin, base = _ANY.match(path), clients.base_url
        attempt, rest = ("", path) if begin is None else (begin[0], path[begin.end() :])
        if rest.startswith("/v1/v1/"):
            return f"{base}, which its client adds" if clients.adds_v1 else f"{base} only once"
        if self.find(f"{attempt}/v1{rest}")[0] is not None:
            return f"{base}, but the path must start with it" if clients.adds_v1 else base
        if rest.endswith("/") and self.find(path.rstrip("/"))[0] is not None:
            return "remove the trailing slash"
        return ""
