"""A kind of run is one file and one registration: it runs, stops, goes on, is listed and shown."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from tutelage.cli import build_app
from tutelage.errors import RunError, StoreError
from tutelage.runs import lifecycle
from tutelage.runs.folder import RunFolder, create
from tutelage.runs.kinds import RunKind, find_kind, register
from tutelage.runs.progress import Progress
from tutelage.store import open_store

SOURCE = Path(__file__).with_name("counting.py")


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The kind, imported by the path of its file, as a user's own is."""
    place = tmp_path_factory.mktemp("mine") / "my_counting.py"
    place.write_text(SOURCE.read_text())
    spec = importlib.util.spec_from_file_location("my_counting", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["my_counting"] = module
    spec.loader.exec_module(module)
    return module


class StopAt(Progress):
    """Presses Ctrl-C while a step is done."""

    def __init__(self, step: int) -> None:
        self.at = step
        self.notes: list[str] = []

    def step(self, done: int, values: Mapping[str, float]) -> None:
        if done == self.at:
            os.kill(os.getpid(), signal.SIGINT)

    def note(self, text: str) -> None:
        self.notes.append(text)


def command(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(build_app(), [str(word) for word in words])
    assert done.exit_code == code, done.output
    return done.output


def run(counting: ModuleType, folder: RunFolder, progress: Any = None, **asked: Any) -> Any:
    kind = counting.Counting(counting.CountingSettings(**{"steps": 4, **asked}))
    return lifecycle.start(kind, folder, progress or Progress())


def test_it_runs_to_its_end(counting: ModuleType, tmp_path: Path) -> None:
    folder = create(tmp_path / "one")
    assert run(counting, folder) == {"status": "finished", "seed": 0, "count": 4}
    assert json.loads(folder.config.read_text()) == {
        "kind": "counting",
        "config": {"recipe": "counting", "seed": 0, "steps": 4, "pace": 0.0},
    }
    assert json.loads(folder.result.read_text())["count"] == 4
    assert [line["step"] for line in folder.read_metrics()] == [1, 2, 3, 4]
    assert folder.report.read_text() == "<p>counted</p>"
    with open_store(folder.store, create=False) as store:
        (row,) = store.runs()
        assert (row.status.value, row.recipe, row.algorithm) == (
            "succeeded", "counting", "plus one",
        )  # fmt: skip
        assert [metrics.step for metrics in store.metrics(row.id)] == [1, 2, 3, 4]


@pytest.mark.full
def test_its_file_is_a_program_that_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    """No verb imports a file of the user's by itself."""
    words = [sys.executable, str(SOURCE), str(tmp_path / "one")]
    folder = RunFolder(tmp_path / "one")
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not folder.metrics.is_file() or folder.metrics.read_text().count("\n") < 3:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) != 0
    assert json.loads(folder.result.read_text())["status"] == "stopped"
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    assert [line["step"] for line in folder.read_metrics()] == [*range(1, 101)]


def test_it_stops_after_its_step_and_goes_on(counting: ModuleType, tmp_path: Path) -> None:
    folder, stopping = create(tmp_path / "one"), StopAt(2)
    with pytest.raises(KeyboardInterrupt):
        run(counting, folder, stopping)
    assert stopping.notes == [lifecycle.STOPPING]
    assert json.loads(folder.result.read_text())["status"] == "stopped"
    with open_store(folder.store, create=False) as store:
        assert store.runs()[0].status.value == "cancelled"
    told = command("resume", folder.path)
    assert "finished" in told
    assert json.loads(folder.result.read_text())["count"] == 4
    assert [line["step"] for line in folder.read_metrics()] == [1, 2, 3, 4]
    assert lifecycle.NOTHING_LEFT in command("resume", folder.path)


def test_a_change_of_its_code_is_refused(counting: ModuleType, tmp_path: Path) -> None:
    folder, file = create(tmp_path / "one"), Path(str(counting.__file__))
    with pytest.raises(KeyboardInterrupt):
        run(counting, folder, StopAt(2))
    text = file.read_text()
    file.write_text(text.replace("self.count += 1", "self.count += 2"))
    with pytest.raises(RunError, match="different sources: the kind counting changed"):
        run(counting, folder)
    file.write_text(text + "# a comment changes nothing\n")
    assert run(counting, folder)["count"] == 4


def test_while_it_goes_on_nothing_is_told_of_the_stop_before(
    counting: ModuleType, tmp_path: Path
) -> None:
    """A process that is killed leaves what is there while it works."""
    folder, told = create(tmp_path / "one"), list[str]()

    class Looks(Progress):
        def start(self, title: str, lines: Mapping[str, str]) -> None:
            told.append(command("runs", "--below", tmp_path))

        def step(self, done: int, values: Mapping[str, float]) -> None:
            told.extend([command("runs", "--below", tmp_path), command("show", folder.path)])
            assert not folder.result.is_file()

    with pytest.raises(KeyboardInterrupt):
        run(counting, folder, StopAt(2))
    run(counting, folder, Looks())
    begun, listed, shown = told[:3]
    assert "running" in begun
    assert "stopped" not in begun
    assert "running" in listed
    assert "It is running now." in shown
    assert "stopped" not in shown


def test_the_verbs_know_it_without_a_line_of_their_own(
    counting: ModuleType, tmp_path: Path
) -> None:
    folder = create(tmp_path / "one")
    run(counting, folder)
    assert "finished" in command("runs", "--below", tmp_path)
    shown = command("show", folder.path)
    assert "counting" in shown
    assert "count" in shown
    compared = json.loads(command("compare", folder.path, "--json"))
    assert compared["runs"][0]["run"]["trained"] == "counting"
    assert "no rollout" in command("export", folder.path, "--format", "sft", code=2)


def test_a_folder_of_another_run_is_refused(counting: ModuleType, tmp_path: Path) -> None:
    folder = create(tmp_path / "one")
    run(counting, folder)
    with pytest.raises(RunError, match=r"started with other settings.*tutelage show"):
        run(counting, folder, steps=5)
    folder.config.write_text('{"kind": "other", "config": {"steps": 4}}')
    with pytest.raises(RunError, match="is of the kind 'other'"):
        run(counting, folder)


def test_a_store_that_cannot_be_used_is_told_before_anything_is_written(
    counting: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, place = counting.Counting(counting.CountingSettings(steps=3)), tmp_path / "counted"
    monkeypatch.setattr(type(asked), "head", replace(asked.head, store=str(tmp_path / "all.db")))
    with sqlite3.connect(tmp_path / "all.db") as books:
        books.execute("create table books (title)")
    with pytest.raises(
        StoreError, match=r"another program \(tables \['books'\]\): use another database"
    ):
        lifecycle.start(asked, RunFolder(place), Progress())
    assert not place.exists()
    (tmp_path / "all.db").unlink()
    assert lifecycle.start(asked, RunFolder(place), Progress())["count"] == 3
    other = tmp_path / "elsewhere" / "counted"
    with pytest.raises(StoreError, match=f"another run named 'counted', in '{place}'"):
        lifecycle.start(asked, RunFolder(other), Progress())
    assert not other.exists()


def test_an_error_is_kept_as_the_end(counting: ModuleType, tmp_path: Path) -> None:
    folder = create(tmp_path / "one")
    with pytest.raises(ValueError, match="negative"):
        run(counting, folder, pace=-1.0)
    assert json.loads(folder.result.read_text())["status"] == "failed"
    with open_store(folder.store, create=False) as store:
        assert store.runs()[0].status.value == "failed"


def test_an_unknown_kind_and_an_earlier_format_say_so(tmp_path: Path) -> None:
    folder = create(tmp_path / "one")
    folder.config.write_text('{"kind": "unheard"}')
    with pytest.raises(RunError, match="a program that imports its module"):
        find_kind(folder)
    assert "imports its module" in command("resume", folder.path, code=2)
    folder.config.write_text('{"config": {"recipe": "math"}}')
    told = " ".join(command("show", folder.path, code=2).split())
    assert "has an old format" in told


def test_a_taken_name_is_refused(counting: ModuleType) -> None:
    class Mine(RunKind):
        name: ClassVar[str] = "counting"

    with pytest.raises(RunError, match="the kind of run 'counting' is already registered"):
        register(Mine)
