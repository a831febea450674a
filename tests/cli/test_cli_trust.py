"""Code that a run folder names: whose it is, and which verbs would run it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import Tutelage
from tests.cli.sample_run import make_run

from tutelage.config import Machine
from tutelage.errors import ConfigError
from tutelage.runs.folder import RunFolder
from tutelage.types import JSON
from tutelage.weights.config import resolve

EVIL = """
from pathlib import Path
Path(__file__).with_name("ran").write_text("x")


def look(query: str) -> str:
    '''Look something up.

    Args:
        query: What.
    '''
    return "x"


def score(prediction, answer):
    return 1.0
"""


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run folder with a file beside it, as it came in an archive."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text(EVIL)
    (tmp_path / "test.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n')
    folder = make_run(tmp_path / "runs" / "theirs")
    keys = ["tools=[evil.py:look]", "reward=evil.py:score", "data.train_files=[test.jsonl]"]
    text = resolve("math", keys, machine=Machine(0, 2)).to_json()
    folder.config.write_text(text)
    return folder


VERBS = {
    "ask": ("ask", "theirs", "hello"),
    "eval": ("eval", "theirs", "--test", "test.jsonl"),
    "eval with tools": ("eval", "theirs", "--test", "test.jsonl", "--tools", "calculator"),
    "resume": ("resume", "theirs"),
    "prompts confirm": ("prompts", "confirm", "theirs"),
    "export sft": ("export", "theirs", "--format", "sft"),
    "export jsonl": ("export", "theirs"),
    "export otlp": ("export", "theirs", "--format", "otlp"),
    "show": ("show", "theirs"),
    "serve": ("serve", "theirs", "--port", "0"),
    "compare": ("compare", "theirs", "theirs"),
}


@pytest.mark.parametrize("verb", [name for name in VERBS if name != "serve"])
def test_no_verb_runs_the_code_that_a_foreign_run_names(
    verb: str, foreign: RunFolder, tutelage: Tutelage, tmp_path: Path
) -> None:
    if verb in ("ask", "eval", "eval with tools"):
        from tutelage.testing import tiny_policy

        shutil.rmtree(foreign.policy, ignore_errors=True)
        tiny_policy().save(foreign.policy)
    if verb == "resume":
        foreign.result.unlink(missing_ok=True)
    done = tutelage(*VERBS[verb])
    assert not (tmp_path / "ran").exists(), done.output
    if verb.startswith("export"):
        assert done.exit_code == 0, done.output
    if verb in ("ask", "eval", "eval with tools", "resume"):
        assert done.exit_code == 2
        assert "'evil.py:" in done.output
        assert "--trust" in done.output


@pytest.mark.full
@pytest.mark.parametrize("way", ["trusted", "begun here"])
def test_with_trust_or_in_a_run_that_was_begun_here_it_runs(
    way: str, foreign: RunFolder, tutelage: Tutelage, tmp_path: Path
) -> None:
    from tutelage.testing import tiny_policy

    shutil.rmtree(foreign.policy, ignore_errors=True)
    tiny_policy().save(foreign.policy)
    if way == "begun here":
        from tutelage.runs import trust

        trust.record_trust(foreign)
    tutelage("ask", "theirs", "hello", *(["--trust"] if way == "trusted" else []))
    assert (tmp_path / "ran").exists()


def test_what_is_remembered_is_this_configuration_in_this_place(
    foreign: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a changed configuration nor the same one beside another file."""
    from tutelage.runs import trust

    code = trust.find_code(foreign)
    assert code == ["evil.py:look", "evil.py:score"]
    trust.record_trust(foreign)
    trust.check_trusted(foreign, code, trust=False)
    (tmp_path / "elsewhere").mkdir()
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path / "elsewhere")
        with pytest.raises(ConfigError, match="was not started on this machine"):
            trust.check_trusted(foreign, code, trust=False)
    trust.check_trusted(foreign, code, trust=False)
    told: JSON = json.loads(foreign.config.read_text())
    told["config"]["agent"]["tools"] = ["mcp:rm -rf x"]
    foreign.config.write_text(json.dumps(told))
    with pytest.raises(ConfigError, match="'mcp:rm -rf x'"):
        trust.check_trusted(foreign, trust.find_code(foreign), trust=False)
    trust.check_trusted(foreign, ["calculator", "math"], trust=False)
