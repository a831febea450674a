"""The command itself: help, versions, verbs and options that do not exist, what it loads."""

import re
import subprocess
import sys

import pytest

from tutelage.cli.app import VERBS as LISTED

from .conftest import Tutelage

VERBS = (
    "init", "train", "resume", "eval", "ask", "serve", "runs", "rm", "show", "compare", "export",
    "index", "validate", "config", "doctor", "prompts", "orchestrate"
)  # fmt: skip


def test_config_has_what_each_recipe_starts_from(tutelage: Tutelage) -> None:
    told = " ".join(tutelage("config", "actor.optim.lr").stdout.split())
    assert "actor.optim.lr=1e-06" in told
    assert re.search(r"In math: 0[.]0002[.] In word-problems: \S+ In sft: 0[.]003[.]", told)
    assert "In math with your own model: 1e-06. In sft with your own model: 1e-05." in told
    told = " ".join(tutelage("config", "actor.optim.warmup_steps").stdout.split())
    assert "In math with your own model: 5. In rl with your own model: 5." in told


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


def test_every_verb_is_listed_and_has_its_help(tutelage: Tutelage) -> None:
    for args in ((), ("--help",), ("-h",)):
        lines = tutelage(*args).stdout.partition("Commands:")[2].splitlines()[1:]
        assert tuple(line.split()[0] for line in lines) == VERBS == tuple(LISTED)
    for args in (*((verb,) for verb in VERBS), ("train", "planner")):
        result = tutelage(*args, "--help")
        assert result.exit_code == 0
        lines = result.stdout.splitlines()
        assert max(map(len, lines)) <= 80
        assert not [line for line in lines[1:] if line.endswith("...")], "nothing is cut"
        words, _, options = result.stdout.partition("Options:")
        assert LISTED[args[0]] in " ".join(words.split()) or len(args) > 1
        assert options.strip()
        assert not re.search(r"\b[Nn]ull\b", result.stdout), "only files have it"
