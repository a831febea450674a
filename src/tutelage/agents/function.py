"""`@rollout`: a plain function as an agent.

Its first parameter is the task, a dict; the others are filled by name from the run's resources. It
is async or not (then it runs in a thread, or with `isolation="process"` in a process), and it
returns its reward. `lit_agent.py` is the equivalent as a class. `as_agent` converts any agent
passed to `Trainer.train`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, overload

from tutelage.agents.agent import Agent, Isolation, Schedule
from tutelage.agents.session import RolloutSession, with_agent_endpoint
from tutelage.errors import ConfigError
from tutelage.resources import LLM, MAIN_AGENT, NamedResources
from tutelage.tools.execute import call
from tutelage.tools.loading import hint
from tutelage.types import Task

MODEL, TOKENIZER, PROMPT = "llm", "tokenizer", "prompt_template"
"""Parameter names of the policy, its tokenizer, and the only prompt template."""
ENVIRONMENT = "environment"
"""Parameter name of the environment of a rollout."""


class AgentFunction:
    """Agent that calls a function. It can still be called like the function."""

    schedule: Schedule = "free"

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        model: LLM | None = None,
        tokenizer: LLM | None = None,
        isolation: Isolation = "none",
    ) -> None:
        """Raise `ConfigError` if the parameters of the function cannot be passed by name."""
        self.fn = fn
        self.isolation: Isolation = isolation
        self.name: str = getattr(fn, "__name__", type(fn).__name__)
        functools.update_wrapper(self, fn, updated=())
        values = ((MODEL, model), (TOKENIZER, tokenizer))
        self._own = {name: value for name, value in values if value is not None}
        if any(v.tokenizer_only is not (n == TOKENIZER) for n, v in self._own.items()):
            raise ConfigError(
                f"agent {self.name!r}: tokenizer=LLM(...) requires tokenizer_only=True, and "
                "model=LLM(...) does not allow it"
            )
        positional, required, optional = 0, list[str](), list[str]()
        for index, parameter in enumerate(inspect.signature(fn).parameters.values()):
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if index == 0 and parameter.kind is not parameter.KEYWORD_ONLY:
                positional = 1
                continue
            has_default = parameter.default is not parameter.empty
            (optional if has_default else required).append(parameter.name)
        if not positional:
            raise ConfigError(
                f"agent {self.name!r} has no parameter for the task; add it as the first, as in "
                f"def {self.name}(task, llm)"
            )
        self.required, self.optional = tuple(required), tuple(optional)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the wrapped function."""
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<agent {self.name}>"

    def __reduce__(self) -> Any:
        # By reference, as functions are: the other process imports the decorated name.
        if "<locals>" in self.fn.__qualname__:
            raise ConfigError(
                f"agent {self.name!r} is defined inside a function, where other processes cannot "
                "import it; move it to the top level of a module"
            )
        return _import_agent, (self.fn.__module__, self.fn.__qualname__)

    def own_resources(self) -> Mapping[str, Any]:
        """Return the models that were passed to the decorator."""
        return self._own

    def check(self, names: Collection[str]) -> None:
        """Raise `ConfigError` if there is no resource for a required parameter."""
        words = {*names, MODEL, TOKENIZER, PROMPT, ENVIRONMENT, "rollout", "resources"}
        for name in (each for each in self.required if each not in words):
            raise ConfigError(
                f"agent {self.name!r} needs {name!r}, but there is no resource with that name"
                + (hint(name, words) or ".")
                + f" Define {name} = PromptTemplate(...) in its file or pass Trainer(resources=...)"
            )

    def environment_refusal(self) -> str:
        """Return a fix if the function takes no environment, else an empty text."""
        if {ENVIRONMENT, "rollout"} & {*self.required, *self.optional}:
            return ""
        return "give it a parameter named environment, and call environment.step(reply)"

    async def play(self, task: Task, session: RolloutSession, resources: NamedResources) -> Any:
        """Call the function with the task and the resources of the rollout."""
        known = {*resources, "rollout", "resources"}
        known |= set() if session.environment is None else {ENVIRONMENT}
        names = [*self.required, *(name for name in self.optional if name in known)]
        arguments = {name: self._get_argument(name, session, resources) for name in names}
        return await call(self.fn, session.task, **arguments)

    def _get_argument(self, name: str, session: RolloutSession, resources: NamedResources) -> Any:
        """Return the value of a parameter. Raises `ConfigError` if there is none."""
        if name == "rollout":
            return session
        if name == "resources":
            return resources
        if name in resources:
            value = resources[name]
            return with_agent_endpoint(value) if isinstance(value, LLM) else value
        if name == ENVIRONMENT and session.environment is not None:
            return session.environment
        if name == MODEL:
            return session.llm(MAIN_AGENT)
        if name == PROMPT:
            return session.prompt()
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
    """Decorator that creates an agent: `@rollout`, `@rollout()`, `@rollout(model=LLM(...))`.

    `model` and `tokenizer` are its resources `llm` and `tokenizer`. Raises `ConfigError` for a
    signature that cannot be filled.
    """

    def decorate(function: Callable[..., Any]) -> AgentFunction:
        return AgentFunction(function, model=model, tokenizer=tokenizer, isolation=isolation)

    return decorate if fn is None else decorate(fn)


def as_agent(value: Any) -> Agent:
    """Convert an object to an agent. Raises `ConfigError` if it is not an agent."""
    if isinstance(value, type):
        raise ConfigError(f"{value.__name__} is a class; pass an instance: {value.__name__}()")
    if isinstance(value, Agent):
        return value
    if callable(value):
        return AgentFunction(value)
    raise ConfigError(
        f"{value!r} is not an agent: use a function with @rollout, a LitAgent, or an ExternalAgent"
    )


def needs_model(agent: Agent, resources: Mapping[str, Any]) -> bool:
    """Return True if an agent needs an LLM. For functions this depends on the parameters."""
    if not isinstance(agent, AgentFunction):
        return True
    llms = {name for name, value in resources.items() if isinstance(value, LLM)}
    names = {MODEL, TOKENIZER, "rollout", "resources", "main", *llms}
    return bool(names & {*agent.required, *agent.optional})


def _import_agent(module: str, qualname: str) -> Any:
    """Import an agent by its module and qualified name."""
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found if isinstance(found, AgentFunction) else AgentFunction(found)
