"""`@rollout`: a plain function as an agent.

Its first parameter is the task, a dict; the others are filled by name from the run's resources. It
is async or not (then it runs in a thread, or with `isolation="process"` in a process), and it
returns its reward. `lit_agent.py` is the same idea as a class.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, overload

from tutelage.agents.context import RolloutContext, calling_agent, for_agent
from tutelage.agents.program import Isolation, call
from tutelage.errors import ConfigError
from tutelage.resources import LLM, MAIN_AGENT
from tutelage.tools.loading import nearest

MODEL, TOKENIZER, PROMPT = "llm", "tokenizer", "prompt_template"
"""Parameters that mean the policy, its tokenizer, and the only prompt template."""


class AgentFunction:
    """A function that plays a task and returns its reward; still callable as that function."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        model: LLM | None = None,
        tokenizer: LLM | None = None,
        isolation: Isolation = "none",
    ) -> None:
        """Raises `ConfigError` for a signature whose parameters cannot be filled by name."""
        self.fn = fn
        self.isolation: Isolation = isolation
        self.name: str = getattr(fn, "__name__", type(fn).__name__)
        functools.update_wrapper(self, fn, updated=())
        given = ((MODEL, model), (TOKENIZER, tokenizer))
        self._own = {name: value for name, value in given if value is not None}
        _check_roles(self.name, model, tokenizer)
        positional, required, optional = 0, list[str](), list[str]()
        for index, parameter in enumerate(inspect.signature(fn).parameters.values()):
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if index == 0 and parameter.kind is not parameter.KEYWORD_ONLY:
                positional = 1
                continue
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise ConfigError(
                    f"agent {self.name!r}: {parameter.name!r} is positional-only and cannot be "
                    "filled by name; drop the `/`"
                )
            has_default = parameter.default is not parameter.empty
            (optional if has_default else required).append(parameter.name)
        if not positional:
            raise ConfigError(
                f"agent {self.name!r} takes no task: its first parameter is the task, as in "
                f"def {self.name}(task, llm)"
            )
        self.required, self.optional = tuple(required), tuple(optional)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<agent {self.name}>"

    def __reduce__(self) -> Any:
        # By reference, as functions are: the other process imports the decorated name.
        if "<locals>" in self.fn.__qualname__:
            raise ConfigError(
                f"agent {self.name!r} is defined inside a function, where no other process can "
                "find it; move it to the top of a module"
            )
        return _find, (self.fn.__module__, self.fn.__qualname__)

    def own_resources(self) -> Mapping[str, Any]:
        """What the decorator was given."""
        return self._own

    def check(self, names: Collection[str]) -> None:
        """Raise `ConfigError` when a parameter has no resource of its name."""
        given = {*names, MODEL, TOKENIZER, "rollout", "resources"}
        for name in self.required:
            if name in given or name == PROMPT:
                continue
            near = nearest(name, given)
            raise ConfigError(
                f"agent {self.name!r} needs {name!r}, and there is no resource of that name"
                + (f"; did you mean {near!r}?" if near else ".")
                + f" Give one: Trainer(resources=NamedResources({{{name!r}: ...}}))"
            )

    async def play(self, rollout: RolloutContext) -> Any:
        """Call the function with this rollout's task and resources."""
        return await call(self.fn, rollout.task, **self.arguments(rollout))

    def arguments(self, rollout: RolloutContext) -> dict[str, Any]:
        """The parameters after the task."""
        out = {name: self._fill(name, rollout) for name in self.required}
        for name in self.optional:
            if name in rollout.resources or name in ("rollout", "resources"):
                out[name] = self._fill(name, rollout)
        return out

    def _fill(self, name: str, rollout: RolloutContext) -> Any:
        if name == "rollout":
            return rollout
        if name == "resources":
            return rollout.resources
        if name in rollout.resources:
            value = rollout.resources[name]
            return for_agent(value, calling_agent()) if isinstance(value, LLM) else value
        if name == MODEL:
            return rollout.llm(MAIN_AGENT)
        if name == PROMPT:
            return rollout.prompt()
        raise ConfigError(f"agent {self.name!r} needs {name!r}, which this rollout does not have")


@overload
def rollout(fn: Callable[..., Any], /) -> AgentFunction: ...
@overload
def rollout(
    *, model: LLM | None = None, tokenizer: LLM | None = None, isolation: Isolation = "none"
) -> Callable[[Callable[..., Any]], AgentFunction]: ...
def rollout(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    model: LLM | None = None,
    tokenizer: LLM | None = None,
    isolation: Isolation = "none",
) -> AgentFunction | Callable[[Callable[..., Any]], AgentFunction]:
    """Make a function an agent: `@rollout`, `@rollout()`, `@rollout(model=LLM(...))`.

    `model` and `tokenizer` are its resources `llm` and `tokenizer`. Raises `ConfigError` for a
    signature that cannot be filled.
    """

    def decorate(function: Callable[..., Any]) -> AgentFunction:
        return AgentFunction(function, model=model, tokenizer=tokenizer, isolation=isolation)

    return decorate if fn is None else decorate(fn)


def _check_roles(name: str, model: LLM | None, tokenizer: LLM | None) -> None:
    if model is not None and model.tokenizer_only:
        raise ConfigError(f"agent {name!r}: model=LLM(tokenizer_only=True) cannot answer anything")
    if tokenizer is not None and not tokenizer.tokenizer_only:
        raise ConfigError(f"agent {name!r}: give tokenizer=LLM(..., tokenizer_only=True)")


def _find(module: str, qualname: str) -> Any:
    """The agent that stands in a module under a name."""
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found if isinstance(found, AgentFunction) else AgentFunction(found)
