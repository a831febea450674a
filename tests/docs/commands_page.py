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

from tutelage.cli.app import VERBS, load_command
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
        yield from _walk(verb, load_command(f"{verb}:{_APPS.get(verb, verb)}"))
    yield from _walk("train planner", load_command("planner:train_planner"))


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
    yield _item(f"**{line}**; {owners}: {' '.join(flags) or 'no flags'}")


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
    yield from _sections("a prompt search", PromptConfig)
    yield from _sections("an evaluation", EvaluationConfig)
    planner = {
        "the `planner`": PlannerTrainingSettings,
        "its `phase1_supervised`": Phase1Settings,
        "its `phase2_rl`": Phase2Settings,
    }
    for of, model in planner.items():
        plain = [name for name, kind in _fields(model) if not _is_section(kind)]
        yield _item(f"**{of}**; `{_file(model)}`: {' '.join(plain)}")


def _sections(of: str, model: type[Section]) -> Iterator[str]:
    """An item for each file that owns sections, the sections one after another."""
    owners: dict[str, list[str]] = {}
    for prefix, section in _walk_sections(model):
        plain = [name for name, kind in _fields(section) if not _is_section(kind)]
        if plain:
            name = [f"**{prefix}**:"] if prefix else []
            owners.setdefault(_file(section), []).append(" ".join([*name, *plain]))
    for owner, sections in owners.items():
        yield _item(f"**{of}**; `{owner}`: {'; '.join(sections)}")


def _walk_sections(model: type[Section], prefix: str = "") -> Iterator[tuple[str, type[Section]]]:
    yield prefix, model
    for name, kind in _fields(model):
        if _is_section(kind):
            yield from _walk_sections(kind, f"{prefix}.{name}" if prefix else name)


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
