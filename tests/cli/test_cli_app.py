"""The command itself: help, versions, verbs and options that do not exist, what it loads."""

import os
import pty
import re
import subprocess
import sys
from contextlib import suppress

import pytest

from tutelage.cli.app import VERBS as LISTED

from .conftest import Tutelage

VERBS = (
    "init", "train", "resume", "eval", "ask", "serve", "runs", "rm", "show", "compare", "export",
    "index", "validate", "config", "doctor", "prompts", "orchestrate"
)  # fmt: skip


@pytest.mark.parametrize("args", [(), ("--help",), ("-h",)])
def test_help_lists_every_verb(tutelage: Tutelage, args: tuple[str, ...]) -> None:
    result = tutelage(*args)
    assert result.exit_code == 0
    listed = [line.split()[0] for line in result.stdout.partition("Commands:")[2].splitlines()[1:]]
    assert tuple(listed) == VERBS


@pytest.mark.parametrize("args", [(), *((verb,) for verb in VERBS), ("train", "planner")])
def test_help_fits_eighty_columns_and_nothing_is_cut(
    tutelage: Tutelage, args: tuple[str, ...]
) -> None:
    lines = tutelage(*args, "--help").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines[1:] if line.endswith("...")]


@pytest.mark.parametrize("args", [*((verb,) for verb in VERBS), ("train", "planner")])
def test_help_has_no_null_which_only_files_have(tutelage: Tutelage, args: tuple[str, ...]) -> None:
    assert not re.search(r"\b[Nn]ull\b", tutelage(*args, "--help").stdout)


def test_the_help_of_train_says_what_a_word_of_it_is(tutelage: Tutelage) -> None:
    shown = " ".join(tutelage("train", "--help").stdout.split()).replace("- ", "-")
    for words in (
        "search for a better prompt, or train a planner.",
        "tutelage train math --steps 20 lr=1e-4",
        "`screen` tries ready phrases, `apo`, `gepa` and `reflect` ask an LLM for edits",
        "in a search, `smollm2` for word-problems, a new small one",
        "a GGUF file",
        "Tools of the agent, by name or as FILE.py:function",
        "Reward, by name or as FILE.py:function",
        "Validation tasks. Default: some of --train,",
        "--level default|hard",
        "--runners N Rollouts played at once. Default: 64",
        "--iterations N Training steps, or rounds of a search. Default of a search: no limit",
        "What counts as success: a part of the reward that is 1 (`right`), a least reward",
    ):
        assert words in shown
    for unexplained in ("estimator", "embedded policy", "hub name", "Prompts:"):
        assert unexplained not in shown
    trust = " ".join(tutelage("eval", "--help").stdout.split())
    assert "agent, reward and tools that a run's folder names" in trust
    assert "How often each task is played; more make the result surer. Default: 1." in trust
    assert "[default:" not in trust
    assert "that answers the model calls of AGENT.py." in " ".join(
        tutelage("ask", "-h").stdout.split()
    )


def test_the_help_of_train_tells_weights_from_prompts(tutelage: Tutelage) -> None:
    shown = tutelage("train", "--help").stdout
    assert tutelage("train", "prompt", "--help").stdout == shown
    told = " ".join(shown.split())
    assert "train AGENT.py Weights: the model that your agent asks." in told
    one = "train AGENT.py --algorithm screen|apo|gepa|reflect Prompt: of your agent"
    assert one in told
    assert "train prompt AGENT.py Prompt: the same search" in told
    assert "For prompts: maximum rollouts of the search" in told
    assert "For weights: training steps" in told


def test_config_has_what_each_recipe_starts_from(tutelage: Tutelage) -> None:
    told = " ".join(tutelage("config", "actor.optim.lr").stdout.split())
    assert "actor.optim.lr=1e-06" in told
    assert re.search(r"In math: 0[.]0002[.] In word-problems: \S+ In sft: 0[.]003[.]", told)
    assert "In math with your own model: 1e-06. In sft with your own model: 1e-05." in told
    told = " ".join(tutelage("config", "actor.optim.warmup_steps").stdout.split())
    assert "In math with your own model: 5. In rl with your own model: 5." in told


@pytest.mark.full
def test_config_is_paged_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "from tutelage.cli import main; main()", "config"]
    environment = {**os.environ, "PAGER": "head -3", "TERM": "xterm", "COLUMNS": "80"}
    child = subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=environment)
    os.close(theirs)
    told = b""
    with suppress(OSError):  # the terminal is gone once the command has ended
        while read := os.read(ours, 1 << 16):
            told += read
    os.close(ours)
    assert child.wait(30) == 0
    assert 1 <= told.count(b"\n") <= 3
    assert b"seed=0" in told


@pytest.mark.parametrize("verb", VERBS)
def test_the_list_says_of_a_verb_what_its_help_begins_with(tutelage: Tutelage, verb: str) -> None:
    shown = " ".join(tutelage(verb, "--help").stdout.split())
    assert list(LISTED) == list(VERBS)
    assert LISTED[verb] in shown.partition("Options:")[0]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_its_options(tutelage: Tutelage, verb: str) -> None:
    result = tutelage(verb, "--help")
    assert result.exit_code == 0
    options = result.stdout.partition("Options:")[2].splitlines()[1:]
    assert options
    # A long option puts its help on the next line, so the section as a whole is looked at.
    assert all("  " in line.strip() or not line.lstrip().startswith("-") for line in options)
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_version(tutelage: Tutelage) -> None:
    from tutelage import __version__

    assert tutelage("--version").stdout == f"{__version__}\n"


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("trian",), "Did you mean 'train'?"),
        (("train", "math", "--setps", "3"), "--steps"),
        (("train", "math", "--lr", "1"), "Did you mean lr=VALUE"),
        (("train", "math", "--lerning-rate", "1"), "Did you mean learning_rate=VALUE"),
        (("train",), "Missing argument 'RECIPE'"),
        (("eval", "shipped"), "Missing option '--test'"),
        (("ask", "x", "y", "--seed", "many"), "--seed='many': expected an integer, at least 0"),
    ],
)
def test_a_wrong_command_is_answered_with_the_nearest(
    tutelage: Tutelage, args: tuple[str, ...], told: str
) -> None:
    result = tutelage(*args)
    assert result.exit_code == 2
    assert told in result.stderr
    assert "Traceback" not in result.output


def test_it_is_a_module_too() -> None:
    from tutelage import __version__

    line = [sys.executable, "-m", "tutelage", "--version"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (0, f"{__version__}\n"), done.stderr


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from tutelage.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert end.code == 0, end.code\n"
        "heavy = {'torch', 'transformers', 'sqlalchemy', 'hydra', 'sympy', 'pydantic'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True
    )
    assert "doctor" in done.stdout
    assert done.stderr.strip() == "[]"
