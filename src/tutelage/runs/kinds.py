"""Kinds of run: their interface, and the register in which every verb finds them.

An object of a kind is one requested run; once prepared, it has the run's phases and its result.
`lifecycle.py` does what is the same for every kind (folder, lock, store, loggers, tracing,
stopping, status). `config.json` of a run names its kind, and readers of a run folder ask that kind.
A new kind is one class, registered.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Container, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

from tutelage.agents.loading import source_hash
from tutelage.config.fields import RunSettings
from tutelage.errors import ConfigError, RunError
from tutelage.runs.figures import Figures, RunFiles
from tutelage.runs.fingerprint import settings_sources, write_fingerprint
from tutelage.runs.folder import RunFolder, write_json
from tutelage.runs.launched import is_nonzero_rank, world_size
from tutelage.runs.progress import Progress
from tutelage.runs.trust import record_trust
from tutelage.types import JSON, ToolSpec

if TYPE_CHECKING:
    from tutelage.runs.lifecycle import Run

FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"
"""How a run's process ends, as `status` in its result."""


@dataclass(frozen=True, slots=True)
class RunHeader:
    """Metadata of a run for the store, the loggers and the trace collector."""

    recipe: str
    algorithm: str
    settings: RunSettings
    """Requested settings of the run."""
    title: str | None = None
    """Name of the run, if it differs from its folder's."""
    project: str | None = None
    loggers: Sequence[str] = ()
    store: str | None = None
    """Database of many runs; None is the run's own file."""
    collector: str | None = None
    """OTLP endpoint that also receives the traces."""
    traced_content: bool = False
    """True if traces contain messages, arguments and results."""
    trace_headers: Mapping[str, str] | None = None
    """None uses the headers of the environment."""

    @property
    def keys(self) -> JSON:
        """Requested settings of the run, for loggers."""
        return {"recipe": self.recipe, **self.settings.model_dump(mode="json")}


Phase = tuple[str, Callable[["Run"], Coroutine[Any, Any, None] | None]]
"""Name and function of a phase; a coroutine is awaited in the run's event loop."""


class RunKind(Protocol):
    """Interface of run types. An instance represents one requested run.

    `prepare`, `begin` for a new run, `open`, the phases and `result` are called in this order, and
    `close` at the end in any case.
    """

    name: ClassVar[str]
    """Name of the kind in `config.json`."""
    model: ClassVar[type[RunSettings]]
    """Keys of a run of this kind, and options of its command."""
    finishes_step: ClassVar[bool] = False
    """True if a first Ctrl-C waits for the current step (see `Run.stop`). Otherwise it ends the
    work at once, which loses nothing if every answer is recorded."""
    awaits: ClassVar[bool] = False
    """True if phases are coroutines, played in the event loop of the caller."""

    several_ranks: ClassVar[bool] = False
    """True if the ranks of a launcher such as torchrun work on the run together."""

    free: ClassVar[tuple[str, ...]] = ()
    """Keys that may differ in a command that continues a run."""

    # ------------------------------------------------------------ of a folder

    @classmethod
    @abstractmethod
    def read(cls, folder: RunFolder, progress: Progress) -> Self:
        """Load the run of a folder. Raises `RunError` or `ConfigError`."""
        ...

    @classmethod
    def report(cls, folder: RunFolder) -> None:
        """Write the HTML report of a finished run."""

    @classmethod
    def figures(cls, files: RunFiles) -> Figures:
        """Return the summary of a run for `tutelage compare`."""
        return Figures(trained=cls.name, algorithm=cls.name)

    @classmethod
    def tools(cls, folder: RunFolder) -> tuple[ToolSpec, ...] | None:
        """Return the tools of a run's agent, or None if they are known only from recorded calls.

        Code that the configuration names is not run.
        """
        return None

    # ------------------------------------------------------------ of one run

    def config(self) -> JSON:
        """Return the content of `config.json`, except the kind."""
        head = self.head
        return {"config": {"recipe": head.recipe, **_dump(head.settings)}}

    def difference(self, folder: RunFolder) -> str | None:
        """Describe how the run in a folder differs, or return None if it is the same run."""
        was, now = (_dump(s) for s in (load_settings(folder, self.model), self.head.settings))
        changed = [key for key in now if key not in self.free and was[key] != now[key]]
        keys = [f"{key} ({was[key]!r}, now {now[key]!r})" for key in changed[:5]]
        return f"was started with other settings: {', '.join(keys)}" if keys else None

    def sources(self, folder: RunFolder) -> dict[str, str]:
        """Return hashes of the files, code and tasks of a run, by displayed name. A run can be
        resumed only if they are unchanged."""
        hashes = settings_sources(_dump(self.head.settings), folder)
        if not type(self).__module__.startswith("tutelage."):
            hashes[f"the kind {self.name}"] = source_hash(type(self))
        return hashes

    def extends(self, folder: RunFolder) -> bool:
        """Return True if this run extends the run in a folder, for example by more steps."""
        return False

    def record(self, folder: RunFolder) -> None:
        """Write the settings of the run and the hashes of its sources."""
        config: JSON = {"kind": self.name, **self.config()}
        write_fingerprint(folder, config, self.sources(folder))
        write_json(folder.config, config)
        record_trust(folder)

    def reload(self, folder: RunFolder, progress: Progress) -> Self:
        """Reload this run from a folder, keeping the caller's objects."""
        return type(self).read(folder, progress)

    @abstractmethod
    def prepare(self, folder: RunFolder, progress: Progress) -> None:
        """Load and check all inputs of a new run, or the last saved state of a resumed run.

        Raises `TutelageError`s before anything of a new run is written.
        """
        ...

    @property
    @abstractmethod
    def head(self) -> RunHeader:
        """Metadata of the run for the store, the loggers and the trace collector."""
        ...

    def begin(self, folder: RunFolder) -> None:
        """Write the files of a new run, except its configuration."""

    def open(self, run: Run) -> None:
        """Restore the saved state, and report the start of the run to `run.progress`."""

    @property
    def done(self) -> Container[str]:
        """Names of the phases that earlier processes have finished."""
        return ()

    @abstractmethod
    def phases(self) -> Sequence[Phase]:
        """Return the phases in order. An interrupted phase is called again when the run is
        resumed."""
        ...

    def enter(self, phase: str) -> None:
        """Handle the start or continuation of a phase."""

    def leave(self, phase: str) -> None:
        """Handle the end of a phase, for example by saving its results."""

    @abstractmethod
    def result(self, status: str) -> JSON | None:
        """Return the content of `result.json` for a `status` of `finished`, `stopped` or `failed`.

        None leaves an unfinished run without a result.
        """
        ...

    def close(self) -> None:
        """Release the resources that `prepare` has opened."""


S = TypeVar("S", bound=RunSettings)


def load_settings(folder: RunFolder, model: type[S]) -> S:
    """Load the settings of the run in a folder. Raises `ConfigError` if they are invalid."""
    try:
        told = json.loads(folder.config.read_text(encoding="utf-8"))["config"]
        named = {k: v for k, v in told.items() if k != "recipe" or k in model.model_fields}
        return model.model_validate(named)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{str(folder.config)!r} is not a valid configuration of a run: {error}"
        ) from error


def _dump(settings: RunSettings) -> JSON:
    """Convert settings to JSON, without the output folder."""
    return settings.model_dump(mode="json", exclude={"output", "allow_changes"})


# ---------------------------------------------------------------- the register

K = TypeVar("K", bound=RunKind)
_KINDS: dict[str, type[RunKind]] = {}
BUILT_IN = ("weights", "supervised", "prompt", "planner", "evaluation", "execution")
"""Reserved names of the built-in kinds, whether or not their modules are loaded."""


def register(kind: type[K]) -> type[K]:
    """Class decorator that registers a run type by its name.

    Raises `RunError` for a name that another class has.
    """
    if kind.name in BUILT_IN and not kind.__module__.startswith("tutelage."):
        raise RunError(
            f"the name {kind.name!r} is reserved for a built-in kind of run; rename "
            f"{kind.__qualname__}"
        )
    other = _KINDS.setdefault(kind.name, kind)
    if other.__qualname__ != kind.__qualname__:
        raise RunError(
            f"the kind of run {kind.name!r} is already registered by {other.__qualname__}; use "
            f"another name for {kind.__qualname__}"
        )
    return kind


def check_ranks(kind: type[RunKind]) -> None:
    """Check that a run type supports the number of launched ranks. If not, rank 0 raises
    `ConfigError` and the other ranks exit."""
    size = world_size()
    if kind.several_ranks or size == "1":
        return
    if is_nonzero_rank():
        raise SystemExit(0)
    raise ConfigError(
        f"torchrun started {size} processes, but a run of the kind {kind.name!r} supports one; "
        "start it without torchrun (or unset WORLD_SIZE)"
    )


def find_kind(folder: RunFolder) -> type[RunKind]:
    """Return the type of the run in a folder. Raises `RunError` if the type is not registered."""
    name = kind_name(folder)
    if name not in _KINDS:
        known = ", ".join(sorted({*BUILT_IN, *_KINDS}))
        raise RunError(
            f"the run in {str(folder.path)!r} has the unknown kind {name!r} (known: {known}); "
            "use a program that imports its module and calls tutelage.cli.main()"
        )
    return _KINDS[name]


def kind_name(folder: RunFolder) -> str:
    """Read the name of the run type from a folder. Raises `RunError` if there is none."""
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
