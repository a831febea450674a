"""Names to tools: built-in ones, and functions in users' files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tutelage.agents.loading import load_agent
from tutelage.errors import ConfigError, ToolDefinitionError
from tutelage.tools import resolve_tools


def write(folder: Path, text: str, name: str = "mine.py") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_built_in_tools_by_name() -> None:
    assert list(resolve_tools(["lookup", "calculator"])) == ["lookup", "calculator"]
    with pytest.raises(ConfigError, match=r"did you mean 'calculator'\?"):
        resolve_tools(["calculater"])
    with pytest.raises(ConfigError, match="duplicate tool name"):
        resolve_tools(["lookup", "lookup"])


def test_tools_and_plain_functions_from_a_file(tmp_path: Path) -> None:
    write(tmp_path, "VALUE = 5\n", "beside_tutelage_test.py")
    file = write(
        tmp_path,
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from beside_tutelage_test import VALUE\n"
        "from tutelage.tools import tool\n"
        "@dataclass\n"
        "class P:\n"
        "    x: int\n"
        "@tool('other')\n"
        "def one(p: P) -> int: return p.x + VALUE\n"
        "def two(n: int) -> int: return n\n"
        "def three(n): return n\n"
        "number = 3\n",
    )
    path = list(sys.path)
    tools = resolve_tools([f"{file}:one", f"{file}:two"])
    assert sys.path == path
    assert list(tools) == ["other", "two"]
    assert tools["other"](**tools["other"].signature.read('{"p": {"x": 1}}')) == 6
    assert tools["two"].fn.__module__ == tools["other"].fn.__module__
    with pytest.raises(ConfigError, match="did you mean 'two'"):
        resolve_tools([f"{file}:twoo"])
    with pytest.raises(ConfigError, match="is a int"):
        resolve_tools([f"{file}:number"])
    with pytest.raises(ToolDefinitionError, match="no type hint"):
        resolve_tools([f"{file}:three"])
    assert list(resolve_tools([file])) == ["other"]
    plain = write(tmp_path, "from math import sqrt\ndef two(n: int) -> int: return n\n", "plain.py")
    with pytest.raises(ConfigError, match="no @tool in this file; to use a function"):
        resolve_tools([plain])


def test_a_changed_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the same second too, and of the same size, where Python keeps what it compiled."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = write(tmp_path, "def f(n: int) -> int: return 1\n")
    assert resolve_tools([f"{file}:f"])["f"](0) == 1
    before = Path(file).stat()
    write(tmp_path, "def f(n: int) -> int: return 2\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert resolve_tools([f"{file}:f"])["f"](0) == 2


@pytest.mark.parametrize(
    "text", ["def f(:\n", "raise ValueError('no')\n", "import sys; sys.exit(1)\n"]
)
def test_a_file_that_fails_is_a_config_error(tmp_path: Path, text: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError, match="failed to load"):
        resolve_tools([f"{file}:f"])


def test_a_misspelled_agent_is_told_by_its_name_without_what_all_files_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompted.py").write_text("def f(:\n")
    with pytest.raises(ConfigError, match=r"agent file not found: 'zero.py'; pass the path of one"):
        load_agent("zero.py")
    with pytest.raises(ConfigError, match=r"did you mean 'prompted.py'"):
        load_agent("promted.py")
    with pytest.raises(ConfigError, match=r"agent 'prompted.py': failed to load .*prompted.py"):
        load_agent("prompted.py")


def test_a_folder_is_no_file_that_could_be_meant(tmp_path: Path) -> None:
    (tmp_path / "tools.py").mkdir()
    with pytest.raises(ConfigError, match=r"file not found: '.*tools\.py'$"):
        resolve_tools([f"{tmp_path}/tools.py:add"])


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="file not found"):
        resolve_tools([f"{tmp_path}/none.py:f"])
