"""The run folder's small files: whole lines, whole files, one process at a time."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from pathlib import Path

import pytest

from tutelage.errors import RunBusyError, RunError
from tutelage.runs import folder as folders
from tutelage.runs.folder import (
    RunFolder,
    append_json,
    create,
    find,
    list_runs,
    lock_run,
    remove_if_empty,
    trim_lines,
)

ROOT = Path(__file__).parents[2]


def test_a_new_folder_must_be_free(tmp_path: Path) -> None:
    made = create(tmp_path / "a" / "run")
    assert made.checkpoints.is_dir()
    assert made.name == "run"
    assert create(made.path).path == made.path, "one that was killed at once left nothing"
    (made.checkpoints / "step_000001").mkdir()
    with pytest.raises(RunError, match=r"not empty: it contains 'checkpoints'; .* --output$"):
        create(made.path)
    made.config.touch()
    with pytest.raises(RunError, match=r"not empty; choose .*tutelage resume"):
        create(made.path)
    made.result.write_text('{"status": "finished"}')
    with pytest.raises(RunError, match=r"It has finished; see its result: .*tutelage show"):
        create(made.path)
    made.result.write_text('{"status": "stopped"}')
    with pytest.raises(RunError, match=r"Continue with: .* resume"):
        create(made.path)
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="it is a file; choose another --output"):
        create(tmp_path / "file")
    with pytest.raises(RunError, match="Not a directory; make it writable, or choose another"):
        create(tmp_path / "file" / "run")


def test_what_a_run_left_that_was_killed_before_it_began_is_in_no_ones_way(tmp_path: Path) -> None:
    run = create(tmp_path / "run")
    (run.path / "vllm.log").write_text("loading")
    (run.path / ".vllm_model.7.0.tmp").mkdir()
    with pytest.raises(RunError, match=r"not empty: it contains '.vllm_model.7.0.tmp';"):
        create(run.path)
    (run.path / ".lock").touch()
    assert create(run.path).path == run.path
    assert sorted(p.name for p in run.path.iterdir()) == [
        ".lock",
        ".vllm_model.7.0.tmp",
        "checkpoints",
        "vllm.log",
    ], "what is looked at stays"
    for mine in (run.path / "mine.txt", run.checkpoints / "step_000001"):
        mine.touch()
        with pytest.raises(RunError, match="not empty"):
            create(run.path)
        mine.unlink()
    with pytest.raises(RunError, match="stopped before it started: run the same command again"):
        find(str(run.path))
    with lock_run(run):
        with pytest.raises(RunError, match="has not started yet; wait for it"):
            find(str(run.path))
        with pytest.raises(RunBusyError, match="another process is starting a run"):
            create(run.path)


RECORDS = ("agent.json", "fingerprint.json", "tasks/train.jsonl", "tasks/.val.jsonl.7.0.tmp")
"""What is written before `config.json`."""


def recorded(path: Path) -> RunFolder:
    """A folder that has these."""
    run = create(path)
    (path / "tasks").mkdir()
    for name in RECORDS:
        (path / name).write_text("old")
    return run


def test_a_run_that_fails_before_its_configuration_is_there_leaves_nothing(tmp_path: Path) -> None:
    run = create(tmp_path / "run")

    def fill_the_disk() -> None:
        recorded(tmp_path / "other").path.joinpath("tasks").rename(run.path / "tasks")
        run.agent.write_text("{}")
        remove_if_empty(run)
        assert run.agent.is_file(), "a run that is held stays"
        raise RunError("the disk is full")

    with pytest.raises(RunError, match="full"), lock_run(run):
        fill_the_disk()
    assert not run.path.exists()
    run = recorded(run.path)
    (run.path / ".lock").touch()
    remove_if_empty(run)
    assert not run.path.exists()


@pytest.mark.parametrize("mine", [None, "mine.txt", "checkpoints/mine"])
def test_what_may_be_the_users_stays(tmp_path: Path, mine: str | None) -> None:
    """Files of these names without a run's lock, and all of a folder that has another file."""
    run = recorded(tmp_path / "run")
    if mine is not None:
        (run.path / ".lock").touch()
        (run.path / mine).write_text("mine")
    with pytest.raises(RunError, match="not empty"):
        create(run.path)
    with pytest.raises(RunError, match="refused"), lock_run(run):
        raise RunError("refused")
    remove_if_empty(run)
    for name in (*RECORDS, *([] if mine is None else [mine])):
        assert (run.path / name).is_file()


def test_what_a_kill_left_aside_is_cleared_with_the_lock_held(tmp_path: Path) -> None:
    run = create(tmp_path / "run")
    kept = [run.path / ".mine.tmp", run.checkpoints / "x.7.0.tmp"]
    left = [run.path / ".config.json.7.0.tmp", run.checkpoints / ".initial.7.1.tmp"]
    for path in (*kept, left[0]):
        path.write_text("x")
    left[1].mkdir()
    with lock_run(run):
        pass
    assert [p.exists() for p in (*kept, *left)] == [True, True, False, False]


def test_make_clean_removes_what_make_made(tmp_path: Path) -> None:
    """Not a virtual environment that is named on its command line, nor folders that nothing of
    this Makefile writes."""
    (tmp_path / "Makefile").write_bytes((ROOT / "Makefile").read_bytes())
    for name in ("mine", "build", "dist", ".venv", "runs/__pycache__"):
        (tmp_path / name).mkdir(parents=True)
    subprocess.run(["make", "clean", "VENV=mine"], cwd=tmp_path, check=True, capture_output=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "Makefile",
        "build",
        "dist",
        "mine",
        "runs",
    ]


def test_torn_lines_are_left_out_and_cut_away(tmp_path: Path) -> None:
    run = create(tmp_path / "run")
    for step in range(4):
        append_json(run.metrics, {"step": step, "x": 0.1 + 0.2 * step})
    whole = run.metrics.read_text()
    with run.metrics.open("a") as file:
        file.write('{"step": 4, "x')
    assert [line["step"] for line in run.read_metrics()] == [0, 1, 2, 3]
    trim_lines(run.metrics, 9)
    assert run.metrics.read_text() == whole
    trim_lines(run.metrics, 2)
    assert run.metrics.read_text() == "".join(whole.splitlines(keepends=True)[:2])
    trim_lines(run.events, 2)
    assert not run.events.exists()


def test_numbers_come_back_bit_for_bit(tmp_path: Path) -> None:
    values = {"a": 0.1 + 0.2, "b": 5e-324, "c": 1.7976931348623157e308, "d": -0.0, "e": 2**60}
    append_json(tmp_path / "m.jsonl", values)
    before = (tmp_path / "m.jsonl").read_text()
    trim_lines(tmp_path / "m.jsonl", 1)
    assert (tmp_path / "m.jsonl").read_text() == before
    assert {k: repr(v) for k, v in json.loads(before).items()} == {
        k: repr(v) for k, v in values.items()
    }


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_no_file_holds_what_is_no_json(tmp_path: Path, value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        append_json(tmp_path / "m.jsonl", {"x": value})
    with pytest.raises(ValueError, match="JSON"):
        folders.write_json(tmp_path / "r.json", {"x": value})
    assert not (tmp_path / "r.json").exists()


def test_a_file_that_cannot_be_replaced_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create(tmp_path / "run")
    run.config.write_text("{}")
    folders.write_text(run.result, "old")

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError) as caught:
        folders.write_text(run.result, "new")
    assert "No space left on device. Data saved so far is safe." in str(caught.value)
    assert str(caught.value).endswith(f"continue with: tutelage resume {run.path}")
    assert run.result.read_text() == "old"
    assert sorted(p.name for p in run.path.iterdir()) == [
        "checkpoints",
        "config.json",
        "result.json",
    ]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    run = create(tmp_path / "run")
    with (
        lock_run(run),
        pytest.raises(RunError, match="another process is working on the run 'run'"),
        lock_run(run),
    ):
        pass
    with lock_run(run):
        pass


def test_runs_are_found_by_path_and_by_the_beginning_of_their_name(tmp_path: Path) -> None:
    for name in ("math-1", "math-12", "other"):
        create(tmp_path / name).config.write_text('{"kind": "weights"}')
    create(tmp_path / "empty")
    create(tmp_path / "model").config.write_text('{"model_type": "qwen2"}')
    assert {f.name for f in list_runs(tmp_path)} == {"math-1", "math-12", "other"}
    assert find("oth", tmp_path).path == tmp_path / "other"
    assert find("math-1", tmp_path).name == "math-1", "an exact name wins"
    assert find(str(tmp_path / "math-12"), tmp_path / "nowhere").name == "math-12"
    with pytest.raises(RunError, match="several runs start with 'mat'"):
        find("mat", tmp_path)
    with pytest.raises(RunError, match=r"no run 'x'; '.*' has no runs yet"):
        find("x", tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"no run '.*/empty': the folder of that name is not a run;"):
        find(str(tmp_path / "empty"), tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"no run ''; '.*' has no runs yet"):
        find("", tmp_path / "nowhere")
    with pytest.raises(
        RunError, match=r"no run 'ohter'; did you mean 'other'\? `.*runs` lists all 3"
    ):
        find("ohter", tmp_path)
    with pytest.raises(RunError, match=r"no run 'zz'; the newest are .*math-12.*\. `"):
        find("zz", tmp_path)
