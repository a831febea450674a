"""Each platform works or is refused in words, whatever this one is."""

from __future__ import annotations

import platform

import pytest
from typer.testing import CliRunner

from tutelage.cli import build_app, main
from tutelage.errors import ConfigError
from tutelage.platforms import Accelerator, check_platform, platform_support


@pytest.mark.parametrize(
    ("system", "accelerator", "device", "told"),
    [
        ("Linux", "none", "cpu", ""),
        ("Linux", "cuda", "cuda", ""),
        ("Linux", "rocm", "cuda", "ROCm, on which Tutelage is not tested"),
        ("Darwin", "none", "cpu", ""),
        ("Darwin", "mps", "cpu", "Apple's GPU (mps) is not supported"),
        ("Windows", "none", None, "WSL 2"),
        ("Windows", "cuda", None, "WSL 2"),
    ],
)
def test_what_a_platform_does(
    system: str, accelerator: Accelerator, device: str | None, told: str
) -> None:
    found, remark = platform_support(system, accelerator)
    assert found == device
    assert told in remark
    assert bool(remark) == bool(told)
    if device is not None:
        check_platform(system)
        return
    with pytest.raises(ConfigError, match="does not run on Windows"):
        check_platform(system)


def test_the_command_is_refused_in_words_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    with pytest.raises(SystemExit) as refused:
        main()
    assert str(refused.value).startswith("Error: Tutelage does not run on Windows")
    assert "WSL 2" in str(refused.value)


def test_mps_is_refused_with_the_device_that_works() -> None:
    done = CliRunner().invoke(build_app(), ["train", "math", "trainer.device=mps", "--dry-run"])
    assert done.exit_code == 2
    assert "Apple's GPU (mps) is not supported" in done.stderr
    assert "trainer.device=cpu" in done.stderr
