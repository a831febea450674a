"""Environments by name: `FILE.py:NAME`, a built-in, or `SCHEME:ARGUMENT`.

A name in a file may be a class of the protocol, a class with `@tool` methods, a function that
returns an `EnvironmentFactory` or an `Environment`, or a class in the form of another library
(`classes.py`). `tasks`, `expert` and `deterministic` of a class become fields of its factory.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tutelage.environments.protocol import Environment, EnvironmentFactory
from tutelage.environments.tool_classes import ToolEnvironment
from tutelage.errors import ConfigError, MissingExtraError, TutelageError
from tutelage.tools.loading import hint, import_attribute, is_file_reference, load_attribute
from tutelage.tools.tool import Tool, environment_tools

BUILTIN_ENVIRONMENTS = ("sources", "service_desk", "rooms")
"""Built-in environments: modules of this package with `make_factory(argument, kwargs)`."""
SCHEMES: Mapping[str, str] = {
    "reasoning_gym": "environments",
    "gym": "environments",
    "textworld": "textworld",
}
"""Schemes of third-party environments (modules of this package), with the extra that each needs."""
_NO_KWARGS: Mapping[str, Any] = {}


def load_environment(name: str, kwargs: Mapping[str, Any] = _NO_KWARGS) -> EnvironmentFactory:
    """Return the factory of a named environment, whose instances are created with `kwargs`.

    Raises `ConfigError` for an unknown name or a value that is not an environment, and
    `MissingExtraError` if the package of a scheme is not installed.
    """
    if is_file_reference(name):
        return as_factory(load_attribute(name, "environment"), name.rpartition(":")[2], kwargs)
    word, colon, argument = name.partition(":")
    if word not in BUILTIN_ENVIRONMENTS and not (colon and word in SCHEMES):
        forms = [*BUILTIN_ENVIRONMENTS, *(f"{scheme}:NAME" for scheme in SCHEMES)]
        near = hint(name, [*BUILTIN_ENVIRONMENTS, *SCHEMES], "did you mean {!r}? ")
        raise ConfigError(
            f"unknown environment {name!r}; {near}use FILE.py:NAME or one of {', '.join(forms)}"
        )
    module = importlib.import_module(f"tutelage.environments.{word}")
    try:
        factory: EnvironmentFactory = module.make_factory(argument, kwargs)
    except ModuleNotFoundError as error:
        extra = SCHEMES.get(word, "train")
        raise MissingExtraError(
            f"the environment {name!r} needs a package that is not installed ({error}): install it "
            f"with `pip install 'tutelage[{extra}]'`"
        ) from error
    return factory


def as_factory(
    value: Any, name: str = "", kwargs: Mapping[str, Any] = _NO_KWARGS
) -> EnvironmentFactory:
    """Return the factory of an environment given as an object: a factory, a class, a function, or a
    dictionary of classes. Raises `ConfigError`."""
    name = name or str(getattr(value, "__name__", type(value).__name__))
    if isinstance(value, EnvironmentFactory):
        if kwargs:
            raise ConfigError(
                f"environment.kwargs={dict(kwargs)!r} has no effect on the existing object "
                f"{name!r}: pass its class, or a function that creates it"
            )
        return value
    if isinstance(value, type) and _is_environment(value):
        return _create_factory(value, name, lambda: value(**kwargs))
    if isinstance(value, type) and any(
        isinstance(each, Tool) for _, each in inspect.getmembers_static(value)
    ):
        tools = environment_tools(value, kwargs)
        owner = tools[0].environment
        assert owner is not None, "tools of a class have an owner"
        factory = _create_factory(value, name, lambda: ToolEnvironment(owner, tools))
        return replace(factory, tools=tuple(tool.spec for tool in tools))
    if inspect.isroutine(value):
        try:
            made: Any = value(**kwargs)
        except Exception as error:
            if isinstance(error, TutelageError):
                raise
            raise ConfigError(
                f"the function {name!r} failed with {type(error).__name__}: {error}; "
                f"environment.kwargs are {dict(kwargs)!r}"
            ) from error
        if isinstance(made, EnvironmentFactory):
            return made
        if _is_environment(type(made)):
            return _create_factory(type(made), name, lambda: value(**kwargs))
        raise ConfigError(
            f"the function {name!r} returned a {type(made).__name__}; return an "
            "EnvironmentFactory, or a new Environment each time"
        )
    adapted = import_attribute("tutelage.environments.classes:adapt_class")(value, name, kwargs)
    if adapted is None:
        raise ConfigError(
            f"{name!r} is not an environment: it is a {type(value).__name__} without "
            "reset(task, seed), step(action) and close(), and without @tool methods"
        )
    return adapted


def _is_environment(cls: type) -> bool:
    """Return True if a class has the methods of the protocol (gymnasium's `reset` has no task).
    Raises `ConfigError` if only `close` is missing."""
    if not all(callable(getattr(cls, method, None)) for method in ("reset", "step")):
        return False
    parameters = [*inspect.signature(cls.reset).parameters.values()][1:]  # pyright: ignore
    plain = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if plain and plain[0].name == "seed":
        return False
    found = len(plain) >= 2 or any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if found and not callable(getattr(cls, "close", None)):
        raise ConfigError(f"{cls.__name__!r} has reset and step, but no close(); define it")
    return found


def _create_factory(cls: type, name: str, make: Callable[[], Environment]) -> EnvironmentFactory:
    """Return a factory with the class attributes `tasks`, `expert` and `deterministic`, if set."""
    found: dict[str, Any] = {}
    for attribute in ("tasks", "expert", "deterministic"):
        value = inspect.getattr_static(cls, attribute, None)
        if value is not None and not isinstance(value, property):
            found[attribute] = getattr(cls, attribute)
    return EnvironmentFactory(name, make, **found)
