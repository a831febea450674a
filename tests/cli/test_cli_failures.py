"""How failures are formatted, and the exit codes."""

import pytest
import typer

from tutelage.cli.failures import report_errors
from tutelage.errors import ConfigError, FailureBudgetError, RunError, TutelageError


def run(error: BaseException) -> int:
    """The exit code of a verb that raises `error`."""

    @report_errors
    def verb() -> None:
        raise error

    with pytest.raises(typer.Exit) as caught:
        verb()
    return caught.value.exit_code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("seed='x': expected an integer"), 2),
        (RunError("no run 'x'"), 2),
        (FailureBudgetError("too many rollouts failed"), 1),
    ],
)
def test_a_users_mistake_is_told_without_traceback(
    error: TutelageError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(error) == code
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"Error: {error}\n")


def test_a_note_follows_the_message(capsys: pytest.CaptureFixture[str]) -> None:
    error = RunError("cannot write")
    error.add_note("What was done is saved.")
    run(error)
    assert capsys.readouterr().err == "Error: cannot write\nWhat was done is saved.\n"


def test_a_bug_prints_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ZeroDivisionError("oops")) == 1
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert "ZeroDivisionError: oops" in told
    assert "This is a bug" in told


def test_a_missing_extra_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")) == 69
    told = capsys.readouterr().err
    assert told.startswith("Error: this command needs torch")
    assert "pip install 'tutelage[train]'" in told
    assert "Traceback" not in told


def test_interruptions(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "Stopped. The same command begins again.\n"
    assert run(BrokenPipeError()) == 141
    assert capsys.readouterr().err == ""


def test_control_characters_of_a_message_do_not_reach_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(ConfigError("bad name \x1b[2J\ud800"))
    assert capsys.readouterr().err == "Error: bad name \\x1b[2J\\ud800\n"
