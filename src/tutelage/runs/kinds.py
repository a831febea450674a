"""Kinds of run: what a kind declares, and the register in which every verb finds it.

An object of a kind is what one run is asked for; prepared, it has the run's phases and its result.
All that is the same whatever is trained (folder, lock, store, loggers, tracing, stopping, status)
is done around it by `lifecycle.py`. A run's `config.json` names its kind, and the reader of a
run folder asks that kind: nobody asks a run which one it is. A new kind is one class, registered.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Container, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

from tutelage.config.fields import RunSettings
from tutelage.errors import ConfigError, RunError
from tutelage.runs.figures import Figures, RunFiles
from tutelage.runs.fingerprint import keep_fingerprint, settings_sources
from tutelage.runs.folder import RunFolder, write_json
from tutelage.runs.launched import follows, launched_ranks
from tutelage.runs.progress import Progress
from tutelage.runs.trust import remember
from tutelage.types import JSON, ToolSpec

if TYPE_CHECKING:
    from tutelage.runs.lifecycle import Run

FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"
"""How a run's process ends, as `status` in its result."""


@dataclass(frozen=True, slots=True)
class RunHeader:
    """What the store, the loggers and the collector know of a run."""

    recipe: str
    algorithm: str
    settings: RunSettings
    """What the run is asked for, whatever its kind."""
    title: str | None = None
    """The run's name where it has one that is not its folder's."""
    project: str | None = None
    loggers: Sequence[str] = ()
    store: str | None = None
    """A database of many runs; None is the run's own file."""
    collector: str | None = None
    """Where the traces of the run are sent as well."""
    traced_content: bool = False
    """Whether messages, arguments and results are sent too."""
    trace_headers: Mapping[str, str] | None = None
    """None takes those of the environment."""

    @property
    def keys(self) -> JSON:
        """What the run is asked for as loggers show it."""
        return {"recipe": self.recipe, **self.settings.model_dump(mode="json")}


Phase = tuple[str, Callable[["Run"], Coroutine[Any, Any, None] | None]]
"""A name, and what is done: at once, or awaited in the loop that the run has."""


class RunKind(Protocol):
    """One kind of run; an object of it is what one run is asked for.

    Of an object `prepare`, `begin` for a new run, `open`, the phases and `result` are called in
    this order, and `close` after all whatever happened.
    """

    name: ClassVar[str]
    """As `config.json` has it."""
    model: ClassVar[type[RunSettings]]
    """What a run of this kind can be asked for: its keys, and the options of its command."""
    finishes_step: ClassVar[bool] = False
    """Whether a first Ctrl-C waits for the step in progress (`Run.stop` says that it came). Else it
    ends the work at once, which loses nothing where every answer is recorded."""
    awaits: ClassVar[bool] = False
    """Whether phases are coroutines, played in the event loop of the caller."""

    several_ranks: ClassVar[bool] = False
    """Whether the ranks that a launcher such as torchrun has started work on it together."""

    free: ClassVar[tuple[str, ...]] = ()
    """Keys that may differ in a command that continues a run."""

    # ------------------------------------------------------------ of a folder

    @classmethod
    @abstractmethod
    def read(cls, folder: RunFolder, progress: Progress) -> Self:
        """What the run in a folder was asked for. Raises `RunError` or `ConfigError`."""
        ...

    @classmethod
    def report(cls, folder: RunFolder) -> None:
        """Write the page of a run that has ended."""

    @classmethod
    def figures(cls, files: RunFiles) -> Figures:
        """What `tutelage compare` shows of a run, as far as its files do."""
        return Figures(trained=cls.name, algorithm=cls.name)

    @classmethod
    def tools(cls, folder: RunFolder) -> tuple[ToolSpec, ...] | None:
        """The tools that a run's agent is given; None where only the record of its calls says
        that. Runs no code that the configuration names."""
        return None

    # ------------------------------------------------------------ of one run

    def config(self) -> JSON:
        """What `config.json` holds of it, beside the kind."""
        head = self.head
        return {"config": {"recipe": head.recipe, **_told(head.settings)}}

    def difference(self, folder: RunFolder) -> str | None:
        """How the run in a folder differs from this one; None where they are the same."""
        was, now = (_told(s) for s in (stored_settings(folder, self.model), self.head.settings))
        changed = [key for key in now if key not in self.free and was[key] != now[key]]
        keys = [f"{key} ({was[key]!r}, now {now[key]!r})" for key in changed[:5]]
        return f"was started with other settings: {', '.join(keys)}" if keys else None

    def sources(self, folder: RunFolder) -> dict[str, str]:
        """Marks of what the run works with beside its keys: files that they name, code, tasks. Its
        names are shown to users. A run is continued where they are as they were."""
        return settings_sources(_told(self.head.settings), folder)

    def extends(self, folder: RunFolder) -> bool:
        """Whether this is the run in a folder and asks for more of it, such as more steps."""
        return False

    def record(self, folder: RunFolder) -> None:
        """Write what the run is asked for, and marks of its sources."""
        config: JSON = {"kind": self.name, **self.config()}
        keep_fingerprint(folder, config, self.sources(folder))
        write_json(folder.config, config)
        remember(folder)

    def again(self, folder: RunFolder, progress: Progress) -> Self:
        """This run as its folder has it, with the objects of a caller that no file has."""
        return type(self).read(folder, progress)

    @abstractmethod
    def prepare(self, folder: RunFolder, progress: Progress) -> None:
        """Check and read everything that can be wrong, for a new run or from where the last one
        left off. Raises `TutelageError`s; nothing of a new run is written by then."""
        ...

    @property
    @abstractmethod
    def head(self) -> RunHeader:
        """What store, loggers and collector know of the run."""
        ...

    def begin(self, folder: RunFolder) -> None:
        """Write what a new run has beside its configuration."""

    def open(self, run: Run) -> None:
        """The run is open: take over what was saved, and tell `run.progress` what begins."""

    @property
    def done(self) -> Container[str]:
        """Phases that an earlier process has ended."""
        return ()

    @abstractmethod
    def phases(self) -> Sequence[Phase]:
        """The work in order. A phase that a process was stopped in is called again by the next."""
        ...

    def enter(self, phase: str) -> None:
        """A phase begins, or goes on."""

    def leave(self, phase: str) -> None:
        """A phase has ended: keep what the run and its user need of it."""

    @abstractmethod
    def result(self, status: str) -> JSON | None:
        """What stands in `result.json`: `status` is `finished`, `stopped` or `failed`. None leaves
        a run that has not finished without one."""
        ...

    def close(self) -> None:
        """Let go of what was opened to prepare it."""


S = TypeVar("S", bound=RunSettings)


def stored_settings(folder: RunFolder, model: type[S]) -> S:
    """What the run in a folder was asked for. Raises `ConfigError` where its file does not say."""
    try:
        told = json.loads(folder.config.read_text(encoding="utf-8"))["config"]
        named = {k: v for k, v in told.items() if k != "recipe" or k in model.model_fields}
        return model.model_validate(named)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{str(folder.config)!r} is not a valid configuration of such a run: {error}"
        ) from error


def _told(settings: RunSettings) -> JSON:
    """What is written down of it: where the run lies is no part of what it is."""
    return settings.model_dump(mode="json", exclude={"output", "allow_changes"})


# ---------------------------------------------------------------- the register

K = TypeVar("K", bound=RunKind)
_KINDS: dict[str, type[RunKind]] = {}
BUILT_IN = ("weights", "supervised", "prompt", "planner", "evaluation", "execution")
"""Names that no other kind may have, whether or not theirs is loaded."""


def register(kind: type[K]) -> type[K]:
    """Make a kind known by its name, as a decorator of its class. Raises `RunError` for a name that
    another class has."""
    if kind.name in BUILT_IN and not kind.__module__.startswith("tutelage."):
        raise RunError(
            f"the name {kind.name!r} is reserved for a built-in kind of run; rename "
            f"{kind.__qualname__}"
        )
    known = _KINDS.setdefault(kind.name, kind)
    if known.__qualname__ != kind.__qualname__:
        raise RunError(
            f"the kind of run {kind.name!r} is already registered by {known.__qualname__}; use "
            f"another name for {kind.__qualname__}"
        )
    return kind


def check_registered(kind: type[RunKind]) -> None:
    """Raise `RunError` for a kind under whose name no verb would find its class."""
    known = _KINDS.get(kind.name)
    if known is None or known.__qualname__ != kind.__qualname__:
        raise RunError(
            f"the kind of run {kind.__qualname__} is not registered, so its runs could not be "
            "resumed or shown; add @register to the class"
        )


def check_ranks(kind: type[RunKind]) -> None:
    """Raise `ConfigError` on the first of several ranks for a kind that one process runs, and end
    the others without a word."""
    size = launched_ranks()
    if kind.several_ranks or size == "1":
        return
    if follows():
        raise SystemExit(0)
    raise ConfigError(
        f"torchrun started {size} processes, but a run of the kind {kind.name!r} uses one; start "
        "it without torchrun (or unset WORLD_SIZE)"
    )


def registered(folder: RunFolder) -> type[RunKind]:
    """The kind of a run. Raises `RunError` for one that nothing has registered."""
    name = name_of(folder)
    if name not in _KINDS:
        known = ", ".join(sorted({*BUILT_IN, *_KINDS}))
        raise RunError(
            f"the run in {str(folder.path)!r} has the unknown kind {name!r} (known: {known}); "
            "import the module that registers it first"
        )
    return _KINDS[name]


def name_of(folder: RunFolder) -> str:
    """The name of a run's kind. Raises `RunError` for a folder that names none."""
    try:
        return str(json.loads(folder.config.read_text(encoding="utf-8"))["kind"])
    except FileNotFoundError:
        message = f"{str(folder.path)!r} is not a run folder: it has no config.json"
        raise RunError(message) from None
    except (KeyError, TypeError) as error:
        raise RunError(
            f"the run in {str(folder.path)!r} has an old format without a kind in config.json, "
            "which is no longer supported; start the run again"
        ) from error
    except (OSError, ValueError) as error:
        raise RunError(f"the configuration {str(folder.config)!r} is damaged: {error}") from error
