"""Run folder: the files of a run, and their names.

    config.json       the resolved configuration, with the origin of each value
    conditions.json   machine, versions and threads: what bit-for-bit repetition depends on
    metrics.jsonl     one line a step; `phase`, `step`, then metrics by name
    events.jsonl      decisions that depended on the clock, which a resume repeats
    agent.json        the Python agent that is trained; tasks/ has its tasks
    store.db          every rollout with its calls, tokens, rewards and causes of failure
    checkpoints/      step_000040/: weights, optimizer, counters
    policy/           the final policy, an ordinary Hugging Face folder
    report.html       curves, before and after, rollouts side by side
    result.json       the outcome in numbers

Files are written to a temporary file and renamed, or appended a whole line at a time.
`weights/checkpoint.py` writes `checkpoints/`, `report/` the report.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from tutelage import files
from tutelage.bounded import json_lines
from tutelage.errors import RunBusyError, RunError
from tutelage.runs.resume_hint import command_name, resume_command, resume_hint
from tutelage.tools.loading import hint

RUNS = Path("runs")
"""Default parent folder of runs, below the working directory."""

LOCK = ".lock"
"""File by which one process at a time locks a run."""

SERVER_LOG = "vllm.log"
"""Log of a vLLM server that the run starts. It is kept if the server fails to start, and does not
occupy the folder."""

_RECORDS = (
    "agent.json",
    "fingerprint.json",
    *(f"tasks/{s}.jsonl" for s in ("train", "val", "test")),
)
"""Files that a run writes before `config.json`."""

_RAY_PACKAGE = "_ray_pkg_"
"""Prefix of the folders in which Ray runs jobs."""

WALL_CLOCK_METRICS = ("time/", "tokens_per_second")
"""Prefixes of the names of metrics that may differ between equal runs; all others may not."""


def is_wall_clock(name: str) -> bool:
    """Return True if a metric depends on the wall clock, such as durations and throughput."""
    of_tool = name.startswith("tools/") and name.endswith("/seconds")
    return of_tool or name.startswith(WALL_CLOCK_METRICS)


class RunFolder:
    """Run folder, with the paths of its files and access to its metadata."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name or path.resolve().name
        """Name of the folder, which is the run's identifier, even if the path is `.`."""
        self.config = path / "config.json"
        """The resolved configuration."""
        self.conditions = path / "conditions.json"
        """Machine, versions, threads."""
        self.metrics = path / "metrics.jsonl"
        """One line per step."""
        self.events = path / "events.jsonl"
        """Decisions that depended on the clock."""
        self.costs = path / "cost.jsonl"
        """Cost of each rollout in an evaluation, as servers counted it."""
        self.store = path / "store.db"
        """The SQLite database."""
        self.agent = path / "agent.json"
        """The agent that is trained; only runs of Python agents have this file."""
        self.checkpoints = path / "checkpoints"
        """Folder of checkpoints."""
        self.policy = path / "policy"
        """The final policy."""
        self.report = path / "report.html"
        """The report page."""
        self.result = path / "result.json"
        """The outcome."""

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    def store_address(self) -> Path | str | None:
        """Return the path of the run's store or the URL of its database, or None if there is no
        store yet."""
        if self.store.is_file():
            return self.store
        try:
            values = json.loads(self.config.read_text(encoding="utf-8"))
            url = values["config"]["trainer"].get("store_url")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return url if isinstance(url, str) else None

    def tasks(self, split: str) -> Path:
        """Return the path of the task file of a split: `train`, `val` or `test`. Only runs with
        tasks from Python have task files."""
        return self.path / "tasks" / f"{split}.jsonl"

    def final_policy(self) -> Path:
        """Return the folder of the final policy. Raises `RunError` if it does not exist yet."""
        if not self.policy.is_dir():
            raise RunError(
                f"the run {self.name!r} has no final policy yet; finish it first: "
                f"{resume_command(self.path)}"
            )
        return self.policy

    def own_agent(self) -> tuple[Path | None, str | None]:
        """Return the file of the trained agent and the name of its reward, or None for missing
        values."""
        if not self.agent.is_file():
            return None, None
        found = _parse_object(self.agent, self.agent.read_bytes(), "restore it")
        file, reward = found.get("file"), found.get("reward")
        return Path(file) if isinstance(file, str) else None, reward

    def read_result(self) -> dict[str, Any] | None:
        """Read the result of the run, or return None if the run has not ended."""
        if not self.result.is_file():
            return None
        return _parse_object(self.result, self.result.read_bytes(), "remove it, and resume the run")

    def read_metrics(self) -> list[dict[str, Any]]:
        """Read all complete lines of `metrics.jsonl`, without a truncated last line."""
        return list(_read_lines(self.metrics))

    def read_events(self) -> list[dict[str, Any]]:
        """Read all complete lines of `events.jsonl`."""
        return list(_read_lines(self.events))

    def read_costs(self) -> list[dict[str, Any]]:
        """Read all complete lines of `cost.jsonl`."""
        return list(_read_lines(self.costs))


def create(path: Path) -> RunFolder:
    """Create an empty run folder. Raises `RunError` if the path is not empty or not writable."""
    check_vacant(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / "checkpoints").mkdir(exist_ok=True)
    except OSError as error:
        raise _write_error(path, error) from error
    return RunFolder(path)


def check_vacant(path: Path) -> None:
    """Raise `RunError` if no run can be created at a path: it is not empty, not writable, or inside
    the temporary folder of a Ray job."""
    if any(part.startswith(_RAY_PACKAGE) for part in path.absolute().parts):
        raise RunError(
            "the working directory of a Ray job is a copy that is deleted with the cluster; choose "
            "a permanent folder, such as --output /shared/NAME"
        )
    try:
        text = _describe_content(path)
        there = next(place for place in (path, *path.absolute().parents) if place.exists())
        if text is None and not os.access(there, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _write_error(path, error) from error
    if text is None:
        return
    if (path / "config.json").is_file():
        raise RunError(
            f"the output folder {str(path)!r} is not empty; choose another --output. "
            f"{resume_hint(path)}"
        )
    if is_locked(RunFolder(path)):
        raise RunBusyError(
            f"another process is starting a run in {str(path)!r}; choose another --output"
        )
    raise RunError(f"the output folder {str(path)!r} is not empty: {text}; choose another --output")


def _write_error(path: Path, error: OSError) -> RunError:
    reason = error.strerror or str(error)
    return RunError(
        f"cannot write to {str(path)!r}: {reason}; make it writable, or choose another --output"
    )


def _describe_content(path: Path) -> str | None:
    """Describe the content of a folder, or return None if it is empty or contains only files of a
    run that never started. Without a lock file such files may be the user's."""
    names = {SERVER_LOG}
    if files.describe_folder(path / "checkpoints") is None:
        names.add("checkpoints")  # empty, it is what a run has made that was killed at once
    if (path / LOCK).is_file() and not is_locked(RunFolder(path)):
        names |= {LOCK, *_RECORDS, *files.temporary_names(path)}
        if not (path / "tasks").is_symlink():
            names.add("tasks")
    return files.describe_folder(path, ignored=names)


def _remove_records(path: Path) -> None:
    """Remove the files that a run writes before its configuration."""
    with suppress(OSError):
        files.remove_temporary(path / "tasks")
        for name in _RECORDS:
            (path / name).unlink(missing_ok=True)
        (path / "tasks").rmdir()


def find(name: str, runs: Path = RUNS) -> RunFolder:
    """Find a run by its path, or by the beginning of its name in `runs`. Raises `RunError`."""
    direct = Path(name)
    if is_run(direct):
        return RunFolder(direct)
    if (direct / LOCK).is_file() and not (direct / "config.json").exists():
        ended = "stopped before it started: run the same command again"
        state = "has not started yet; wait for it" if is_locked(RunFolder(direct)) else ended
        raise RunError(f"the run in {name!r} {state}")
    known = list_runs(runs)
    run_folders = [f for f in known if f.name.startswith(name)]
    exact = [f for f in run_folders if f.name == name]
    if len(exact or run_folders) == 1:
        return (exact or run_folders)[0]
    if run_folders:
        listed = ", ".join(f.name for f in run_folders[:5])
        raise RunError(f"several runs start with {name!r}: {listed}")
    message = f"no run {name!r}"
    if name and direct.is_dir():
        message += ": the folder of that name is not a run"
    if not known:
        raise RunError(f"{message}; {str(runs)!r} has no runs yet")
    suggestion = hint(name, [f.name for f in known])
    newest = f"; the newest are {', '.join(f.name for f in known[:5])}."
    listed = f"`{command_name()} runs` lists all {len(known)}"
    raise RunError(f"{message}{suggestion or newest} {listed}")


def is_run(path: Path) -> bool:
    """Return True if a folder contains a run. Model folders also have a `config.json`.

    A folder with an unreadable configuration is a run; opening it reports the error.
    """
    try:
        config = json.loads((path / "config.json").read_bytes())
    except OSError:
        return False
    except ValueError:
        return True
    return isinstance(config, dict) and ("kind" in config or "config" in config)


def list_runs(runs: Path = RUNS) -> list[RunFolder]:
    """List all runs in a folder, newest first."""
    if not runs.is_dir():
        return []
    folders = [p for p in runs.iterdir() if is_run(p)]
    folders.sort(key=lambda p: (p / "config.json").stat().st_mtime, reverse=True)
    return [RunFolder(p) for p in folders]


def new_run_path(
    recipe: str, runs: Path = RUNS, *, name: str | None = None, claim: bool = False
) -> Path:
    """Return an unused path for a new run, named `name` or by recipe and date, with a number if
    necessary.

    With `claim` the folder is created, so that no other process gets the same path.
    """
    # A name with a slash would make folders below `runs/` that no verb looks into.
    base = (name or f"{recipe}-{time.strftime('%Y%m%d-%H%M%S')}").replace("/", "-")
    names = (base if i == 1 else f"{base}-{i}" for i in range(1, 1000))
    for path in (runs / name for name in names):
        try:
            if claim:
                path.mkdir(parents=True)
            elif path.exists():
                continue
        except FileExistsError:
            continue
        except OSError:
            pass  # creating the run there raises the reason
        return path
    raise RunError(f"no free run name in {str(runs)!r}; choose one with --output")


def run_path(output: str | None, recipe: str, name: str | None = None) -> Path:
    """Return `output` as a path, or an unused path below `runs/` if it is None."""
    return new_run_path(recipe, name=name, claim=True) if output is None else Path(output)


def open_folder(path: Path) -> RunFolder:
    """Open the run folder at a path, or create an empty one. Raises `RunError`."""
    return RunFolder(path) if (path / "config.json").is_file() else create(path)


def write_text(path: Path, text: str) -> None:
    """Write a file atomically, with a temporary file that is renamed. Raises `RunError`."""
    aside = files.temporary_path(path)
    try:
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise disk_error(path, error) from error


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a JSON file atomically. NaN and infinity are rejected."""
    write_text(path, json.dumps(data, indent=2, allow_nan=False) + "\n")


def append_json(path: Path, data: Mapping[str, Any]) -> None:
    """Append a line of JSON to a file. Raises `RunError` if the disk is full."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(data, allow_nan=False) + "\n")
    except OSError as error:
        raise disk_error(path, error) from error


def trim_lines(path: Path, count: int) -> None:
    """Truncate a JSONL file to its first `count` lines."""
    if path.is_file():
        lines = [json.dumps(line, allow_nan=False) for line in _read_lines(path)]
        write_text(path, "".join(line + "\n" for line in lines[:count]))


def disk_error(path: Path, error: OSError) -> RunError:
    """Create the error for a run file that cannot be written."""
    run = next((p for p in path.parents if (p / "config.json").is_file()), None)
    kept = "" if run is None else "Data saved so far is safe. "
    way = "start again" if run is None else f"continue with: {resume_command(run)}"
    return RunError(
        f"cannot write {str(path)!r}: {error.strerror or error}. {kept}Free some space, or restore "
        f"the folder, and {way}"
    )


@contextmanager
def lock_run(folder: RunFolder) -> Generator[None]:
    """Context manager that locks a run, and removes its folder if the run fails before its start.

    Raises `RunBusyError` if another process has the lock.
    """
    import fcntl

    own = _describe_content(folder.path) is None  # asked before this process's lock is there
    try:
        lock = (folder.path / LOCK).open("w")
    except OSError as error:
        raise _write_error(folder.path, error) from error
    with lock as file:
        for last in (False, True):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if last:
                    message = f"another process is working on the run {folder.name!r}"
                    raise RunBusyError(message) from error
                time.sleep(0.1)  # `tutelage runs` looks at the lock for a moment
        for place in (folder.path, folder.checkpoints):
            files.remove_temporary(place)
        if own and not folder.config.is_file():
            _remove_records(folder.path)
        try:
            yield
        except BaseException:
            _remove_folder(folder, with_records=own)
            raise


def remove_if_empty(folder: RunFolder) -> None:
    """Remove the folder of a run that never started, unless a process has locked it."""
    if not is_locked(folder):
        _remove_folder(folder, with_records=_describe_content(folder.path) is None)


def _remove_folder(folder: RunFolder, *, with_records: bool) -> None:
    """Remove a run folder without a configuration. With `with_records` the files that the run wrote
    are removed first."""
    if folder.config.is_file():
        return
    if with_records:
        _remove_records(folder.path)
    (folder.path / LOCK).unlink(missing_ok=True)
    # rmdir refuses a folder that holds anything, so nothing can be lost here.
    for path in (folder.checkpoints, folder.path):
        with suppress(OSError):
            path.rmdir()


def is_locked(folder: RunFolder) -> bool:
    """Return True if a process has locked the run."""
    import fcntl

    try:
        with (folder.path / LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    whole = path.read_bytes().rpartition(b"\n")[0]  # a line without its end was cut off by a kill
    for number, line in json_lines(whole):
        yield _parse_object(path, line, f"restore a copy, or remove line {number}")


def _parse_object(path: Path, text: bytes, fix: str) -> dict[str, Any]:
    """Parse a JSON object from a run file. Raises `RunError` with the advice `fix`."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise RunError(f"{str(path)!r} is damaged: {error}; {fix}") from error
    if not isinstance(found, dict):
        raise RunError(f"{str(path)!r} is damaged: {found!r} is not a JSON object; {fix}")
    return cast("dict[str, Any]", found)
