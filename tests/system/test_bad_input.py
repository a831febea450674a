"""Mistakes in what a user gives: one clear line with the way out, and nothing left lying about."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from .command import Command

Arguments = Callable[..., list[str]]


def refused(command: Command, arguments: list[str], *told: str) -> str:
    """The command says `told`, exits with 2, and leaves the folder as it was."""
    before = sorted(p for p in command.cwd.rglob("*") if not p.name.startswith("."))
    err = command.here(*arguments).check(2).err
    for text in told:
        assert text in err, err
    after = sorted(p for p in command.cwd.rglob("*") if not p.name.startswith("."))
    assert [p for p in after if p.suffix not in (".pyc",) and p.name != "__pycache__"] == before
    return err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"model": "no/such/folder"}, "folder not found: 'no/such/folder'"),
        ({"tools": "code.py:serch"}, "code.py does not define 'serch'; did you mean 'search'?"),
        ({"tools": "broken.py:search"}, "broken.py, line 1: ZeroDivisionError"),
        ({"reward": "code.py:anser"}, "needs 'anser', which task 'q0' does not have ("),
        ({"output": "code.py/run"}, "cannot write to 'code.py/run'"),
        ({"output": "full"}, "is not empty: it contains 'mine.txt'; choose another --output"),
    ],
)
def test_what_a_flag_names_must_be_there(
    with_tools: Arguments, tutelage: Command, flags: dict[str, str], told: str
) -> None:
    (tutelage.cwd / "code.py").write_text(
        "def anser(prediction, anser):\n    return 1.0\n\n"
        'def search(query: str) -> str:\n    """Search."""\n    return query\n'
    )
    (tutelage.cwd / "broken.py").write_text("1 / 0")
    (tutelage.cwd / "full").mkdir()
    (tutelage.cwd / "full" / "mine.txt").write_text("mine")
    refused(tutelage, with_tools(**flags), told)


def refusing_template(model: Path) -> None:
    (model / "chat_template.jinja").write_text("{{ raise_exception('never') }}")


def broken_config(model: Path) -> None:
    (model / "config.json").write_text("{")


def half_the_weights(model: Path) -> None:
    whole = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(whole[: len(whole) // 2])


def one_tensor_less(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (refusing_template, "cannot render the chat template"),
        (broken_config, "cannot load 'model'"),
        (half_the_weights, "cannot load the weights of 'model'"),
        (one_tensor_less, ": ['model.layers.1.mlp.up_proj.weight']; copy the folder"),
    ],
)
def test_a_model_that_cannot_be_used(
    with_tools: Arguments,
    material: Path,
    tutelage: Command,
    damage: Callable[[Path], None],
    told: str,
) -> None:
    shutil.copytree(material / "parrot", tutelage.cwd / "model")
    damage(tutelage.cwd / "model")
    err = refused(tutelage, with_tools(model="model"), told)
    assert "Loading weights" not in err
    err = tutelage.here("ask", "model", "What?", "--tools", "").check(2).err
    assert told in err


def test_a_dry_run_refuses_and_writes_nothing_either(
    with_tools: Arguments, tutelage: Command
) -> None:
    refused(tutelage, [*with_tools(model="no/such/folder"), "--dry-run"], "folder not found:")
    done = tutelage.here(*with_tools(), "--dry-run").check()
    assert "one task was played and nothing was trained" in done.out
    assert not (tutelage.cwd / "run").exists()


@pytest.mark.full
def test_the_same_command_again_goes_on_and_another_is_refused(
    with_tools: Arguments, references: Any, tutelage: Command
) -> None:
    reference = references["with_tools"]
    job = tutelage.start(*reference.arguments)
    assert job.until(lambda: job.says("reinforcement learning"))
    job.kill()
    told = tutelage(*with_tools({"actor.optim.lr": 0.5})).check(2).err
    assert "differs in actor" in told
    assert "tutelage resume run" in told
    tutelage(*reference.arguments).check()
    reference.check(tutelage)


@pytest.mark.full
def test_a_named_run_that_was_cut_off_goes_on_where_no_folder_is_given(
    with_tools: Arguments, tutelage: Command
) -> None:
    """`trainer.resume_mode=auto` as the guide has it: the same command again, and nothing else."""
    named = {"trainer.experiment_name": "mine"}
    args = with_tools(named)
    at = args.index("--output")
    args = [*args[:at], *args[at + 2 :]]
    job = tutelage.start(*args)
    assert job.until(lambda: job.says("reinforcement learning"))
    job.kill()
    (folder,) = (tutelage.cwd / "runs").iterdir()
    anew = tutelage.start(*args, "trainer.resume_mode=disable")
    assert anew.until(lambda: anew.says("measure before"))
    anew.kill()
    again = tutelage(*args).check()
    assert f"Continuing {folder.relative_to(tutelage.cwd)}" in again.err
    assert json.loads((folder / "result.json").read_text())["status"] == "finished"
    # What is finished is not continued, and what is begun beside it is said.
    assert "a run of the name 'mine' already, so this is runs/mine-3" in tutelage(*args).check().err
