"""Command-line options from pydantic models: a parameter that is a model becomes one option per
field.

A verb has a parameter `options: AskConfig`; `as_command` replaces it by options with the names,
defaults and help texts of the model's fields, and builds the model when the verb is called. So an
option is defined once, and invalid values get the messages of `config/keys.py`. Values reach the
model as they were typed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from tutelage.cli.failures import report_errors
from tutelage.config.fields import Names, Paths, RunSettings, Section
from tutelage.config.issues import raise_issues
from tutelage.config.keys import field_issue

Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Run the agent, reward and tools that a run's folder names, even if another user made "
        "that run.",
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object; errors are text on stderr.")
]


class Traces(Section):
    """Tracing options."""

    otlp: str | None = None
    """OTLP/HTTP endpoint that also receives the traces."""


_METAVARS: dict[str, str] = {
    name: metavar
    for metavar, names in {
        "DIR": "output output_dir below",
        "FILE": "train test catalog outcomes models test_outcomes workers tasks verifiers prices",
        "RUN": "checkpoint resume",
        "URL": "otlp store upstream endpoint",
        "SERVER": "mcp",
        "A,B": "tools",
        "JSON": "environment_kwargs",
        "default|hard": "level",
        "SECONDS": "deadline try_timeout",
        "USD": "budget budget_usd",
        "N": "iterations train_size val_size test_size steps seed runners rollouts epochs "
        "batch_size episodes",
        "X": "minutes",
    }.items()
    for name in names.split()
}
"""Placeholder of an option's value, by option name, if its type does not determine it."""


def as_command(func: Callable[..., None], *arguments: str) -> Callable[..., None]:
    """Convert a function into a command: parameters that are models become options, and errors are
    reported. Fields named in `arguments` become positional arguments."""
    hints = get_type_hints(func, include_extras=True)
    models: dict[str, type[Section]] = {}
    params: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(func).parameters.items():
        hint = hints[name]
        # A model that is made when the module is loaded stands in `Annotated[Section, MODEL]`.
        model = hint.__metadata__[0] if get_origin(hint) is Annotated else hint
        if isinstance(model, type) and issubclass(model, Section):
            models[name] = model
            # Its own fields come before those that runs of all kinds have.
            fields = model.model_fields.items()
            ordered = sorted(fields, key=lambda item: item[0] in RunSettings.model_fields)
            params += [
                _make_option(field, of, positional=field in arguments)
                for field, of in ordered
                if get_origin(of.annotation) is not dict
            ]
        else:
            params.append(parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY))

    def run(**values: Any) -> None:
        built = {name: _build_model(model, values) for name, model in models.items()}
        func(**{name: values[name] for name in hints if name in values} | built)

    run.__name__, run.__doc__, run.__module__ = func.__name__, func.__doc__, func.__module__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in params}
    vars(run)["__signature__"] = inspect.Signature(params)
    return report_errors(run)


def _make_option(name: str, field: FieldInfo, *, positional: bool) -> inspect.Parameter:
    """Return the command-line option of a field, or its argument if `positional` is True."""
    of = _strip_type(field.annotation)
    no_default = field.is_required() or field.default in (None, ()) or of is bool
    default = "" if no_default else f" Default: {str(field.default).removesuffix('.0')}."
    many, flag = get_args(Paths)[1] in field.metadata, of is bool
    # A key without a value is `null` in a file; an option is left out.
    text = " ".join((field.description or "").split())
    for null, word in (("Null", "Default:"), ("null", "default:"), ("empty", "default:")):
        text = re.sub(rf"\b{null} (?:is|uses)\b", word, text)
    by_type = {int: "N", float: "X", Path: "FILE"}
    metavar = _METAVARS.get(name, "FILE" if many else by_type.get(of, "NAME"))
    if get_origin(of) is Literal:
        metavar = "|".join(get_args(of))
    elif get_origin(of) is tuple and not many:
        metavar = "A,B"
    elif name == "output" and of is Path:
        metavar = "FILE"  # what a verb writes that is no run
    option: Any = typer.Argument(metavar=name.upper(), help=text + default)
    if not positional:
        option_name = f"--{name.replace('_', '-')}"
        option = typer.Option(option_name, metavar=None if flag else metavar, help=text + default)
    hint: Any = list[str] if many or _is_name_list(field) else bool if flag else str | None
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if field.is_required() else False if flag else None,
        annotation=Annotated[hint, option],
    )


def _is_name_list(field: FieldInfo) -> bool:
    """Return True if a field is a list of names, for which an option can be repeated."""
    names, inside = get_args(Names)[1], [get_args(of)[1:] for of in get_args(field.annotation)]
    return names in field.metadata or any(names in of for of in inside)


def _strip_type(hint: Any) -> Any:
    """Return a type hint without `Annotated` and without None."""
    if get_origin(hint) is Annotated:
        return _strip_type(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return _strip_type(next(part for part in get_args(hint) if part is not type(None)))
    return hint


def _build_model(model: type[Section], values: dict[str, Any]) -> Section:
    """Build a model from option values. Raises `ConfigError` that lists all invalid options."""
    fields = {name: values[name] for name in model.model_fields if name in values}
    fields = {name: value for name, value in fields.items() if value not in (None, [], False)}
    for name, value in fields.items():
        if isinstance(value, list) and _is_name_list(model.model_fields[name]):
            fields[name] = value[0] if len(value) == 1 else ",".join(value)
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise_issues(field_issue(model, details, "--") for details in error.errors())
        raise
