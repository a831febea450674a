"""The tables of `docs/design/commands.md`: every command with its flags, every key, and the owners.

The program is asked for both, so the page cannot say anything else. After a flag or a key was added
or renamed: `python tests/docs/commands_page.py`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from tutelage.cli.app import VERBS, command
from tutelage.config.fields import RunSettings, Section
from tutelage.config.schema import RunConfig
from tutelage.evaluate.config import EvaluationConfig
from tutelage.orchestration.planner.settings import Phase1Settings, PlannerTrainingSettings
from tutelage.orchestration.routing.settings import Phase2Settings
from tutelage.prompts.config import PromptConfig

PAGE = Path(__file__).parents[2] / "docs" / "design" / "commands.md"
_APPS = {"prompts": "prompts_app", "orchestrate": "orchestrate_app", "eval": "evaluate"}
_WIDTH = 118


def tables() -> dict[str, str]:
    """The text of each table, by its name."""
    return {"commands": "".join(_commands()), "keys": "".join(_keys())}


def written(page: str) -> str:
    """The page with the tables as they are now."""
    for name, text in tables().items():
        pattern = rf"(?<=<!-- {name} -->\n\n).*?(?=\n<!-- end -->)"
        page = re.sub(pattern, lambda _, text=text: text, page, flags=re.DOTALL)
    return page


# ---------------------------------------------------------------- commands


def _commands() -> Iterator[str]:
    for verb in VERBS:
        yield from _walk(verb, command(f"{verb}:{_APPS.get(verb, verb)}"))
    yield from _walk("train planner", command("planner:train_planner"))


def _walk(name: str, found: Any) -> Iterator[str]:
    if hasattr(found, "commands"):
        for below, verb in found.commands.items():
            yield from _walk(f"{name} {below}", verb)
        return
    arguments = [p.metavar or p.name for p in found.params if p.param_type_name == "argument"]
    flags = [p.opts[0] for p in found.params if p.param_type_name == "option" and p.name != "help"]
    module = importlib.import_module(found.callback.__module__)
    verb = getattr(module, found.callback.__name__, None)
    models = sorted({_file(m) for m in _models(verb)} - {_file(module)})
    owners = " ".join(f"`{place}`" for place in (_file(module), *models))
    line = " ".join((f"`tutelage {name}`", *(f"`{word.upper()}`" for word in arguments)))
    yield _item(f"**{line}**; {owners}: {' '.join(f'`{f}`' for f in flags) or 'no flags'}")


def _models(verb: Any) -> Iterator[type[Section]]:
    """The models whose fields are options of a verb, and those they inherit options from."""
    for hint in get_type_hints(verb, include_extras=True).values() if verb else ():
        model = get_args(hint)[1] if get_origin(hint) is Annotated else hint
        if isinstance(model, type) and issubclass(model, Section):
            bases = [b for b in model.__mro__ if b not in (Section, RunSettings)]
            yield from (b for b in bases if issubclass(b, Section) and _annotated(b))


def _annotated(model: type) -> bool:
    return bool(vars(model).get("__annotations__"))


# ---------------------------------------------------------------- keys


def _keys() -> Iterator[str]:
    yield from _sections("a training of weights", RunConfig)
    yield _section("a prompt search", PromptConfig)
    yield _section("an evaluation", EvaluationConfig)
    yield from _sections("`train planner`", PlannerTrainingSettings)
    yield _section("`train planner`, `phase1_supervised`", Phase1Settings)
    yield _section("`train planner`, `phase2_rl`", Phase2Settings)


def _sections(of: str, model: type[Section], prefix: str = "") -> Iterator[str]:
    plain = [name for name, kind in _fields(model) if not _is_section(kind)]
    told = f"{of}, `{prefix}*`" if prefix else of
    if plain:
        yield _item(f"**{told}**; `{_file(model)}`: {' '.join(f'`{n}`' for n in plain)}")
    if model is PlannerTrainingSettings:
        return
    for name, kind in _fields(model):
        if _is_section(kind):
            yield from _sections(of, kind, f"{prefix}{name}.")


def _section(told: str, model: type[Section]) -> str:
    names = " ".join(f"`{name}`" for name in model.model_fields)
    return _item(f"**{told}**; `{_file(model)}`: {names}")


def _fields(model: type[Section]) -> list[tuple[str, Any]]:
    return [(name, field.annotation) for name, field in model.model_fields.items()]


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


# ---------------------------------------------------------------- text


def _file(thing: Any) -> str:
    module = getattr(thing, "__module__", None) or thing.__name__
    return module.removeprefix("tutelage.").replace(".", "/") + ".py"


def _item(text: str) -> str:
    """A list item in lines of the page's width."""
    lines, line = list[str](), "-"
    for word in text.split(" "):
        if len(line) + 1 + len(word) > _WIDTH:
            lines.append(line)
            line = " "
        line += f" {word}"
    return "\n".join([*lines, line]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
