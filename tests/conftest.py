"""Shared by all tests: one thread, so that numbers repeat, and the tiny policies, made once.

A test marked `full` is a long one that tells little which a shorter one does not: it is left out
unless `TUTELAGE_TEST_FULL` is set, as `make test-full` does.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from tests import real_model
from tests.skips import pytest_sessionfinish  # noqa: F401  (a hook of pytest)
from tests.spread import pytest_addoption, pytest_runtestloop  # noqa: F401
from tests.tiny_policies import fresh_policy

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Torch keeps the last thousand kernels that it compiled: 300 MB in a process that trains much.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
# Each thread that frees memory otherwise keeps it for itself; processes of tests read this.
os.environ.setdefault("MALLOC_ARENA_MAX", "2")
# Which runs were begun here is noted outside of their folders, and policies that are made once are
# kept outside too: neither in the places of whoever runs the tests, nor taken from there.
STATE = tempfile.TemporaryDirectory(prefix="tutelage-test-state-")
os.environ["XDG_STATE_HOME"] = os.environ["XDG_CACHE_HOME"] = STATE.name
# A client of HTTP reads the certificates of 140 authorities when it is made, which takes a tenth of
# a second; nothing here leaves the machine.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = STATE.name
# What is tested is the width that a pipe gets.
os.environ.pop("COLUMNS", None)


def pytest_configure(config: pytest.Config) -> None:
    """Property tests draw the same examples each time, and no clock judges them, unless other
    examples are asked for. Tests and the programs that they start hear SIGHUP and SIGINT, also
    under nohup and in the background of a script: what is ignored is inherited, what has a handler
    is not."""
    config.pluginmanager.register(real_model, "real-model")
    others = os.environ.get("TUTELAGE_TEST_FULL") or config.getoption("--hypothesis-seed", None)
    hypothesis.settings.register_profile(
        "repeatable",
        deadline=None,
        derandomize=not others,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("repeatable")
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure() -> None:
    """Nothing of the tests stays on the machine."""
    STATE.cleanup()


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """See `pytest_collection_finish`."""
    gc.disable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the long tests, and two of three examples of the property tests, unless other
    examples are asked for."""
    if os.environ.get("TUTELAGE_TEST_FULL"):
        return
    properties: set[Any] = set()
    for item in items:
        if item.get_closest_marker("full"):
            item.add_marker(pytest.mark.skip(reason="long: set TUTELAGE_TEST_FULL=1"))
        test = getattr(item, "obj", None)
        if hypothesis.is_hypothesis_test(test):
            properties.add(getattr(test, "__func__", test))
    for test in () if config.getoption("--hypothesis-seed", None) else properties:
        whole = test._hypothesis_internal_use_settings
        fewer = hypothesis.settings(whole, max_examples=-(-whole.max_examples // 3))
        test._hypothesis_internal_use_settings = fewer


def pytest_collection_finish() -> None:
    """The tests and the modules that they came from stay: no collection of garbage looks at them
    again, nor while they are made."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """What is written here need not survive the machine: a checkpoint waits for no disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="module", autouse=True)
def give_memory_back() -> Iterator[None]:
    """After each file what it freed goes back: a worker lives through a hundred files. What it left
    alive is frozen, or each collection would look through all files before it."""
    yield
    if "tutelage.rewards.worker" in sys.modules:
        # What judges answers waits for more of them, with all that a reward's file imports.
        sys.modules["tutelage.rewards.worker"].POOL.close()
    if "torch" in sys.modules:
        from tutelage.policy.machine import trim_memory

        gc.collect()
        gc.freeze()  # what is left stays: modules and what is made once; no later file looks at it
        trim_memory()


@pytest.fixture(scope="session")
def cut_or_random(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of two layers of the real model, and `cut`; or `random`, see `real_model.py`."""
    cut = real_model.given_cut()
    if cut is not None:
        return cut, real_model.ON_CUT
    return real_model.random_model(tmp_path_factory.mktemp("random") / "model"), "random"


@pytest.fixture
def small_real_model(request: pytest.FixtureRequest, cut_or_random: tuple[Path, str]) -> Path:
    """The folder of the small real model; a test that takes it is counted."""
    request.node.user_properties.append((real_model.PROPERTY, cut_or_random[1]))
    return cut_or_random[0]


@pytest.fixture(scope="session")
def one_thread() -> None:
    """Torch on a single thread; a fixture, so that tests without torch never import it."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny(one_thread: None) -> Callable[[str], Any]:
    """`tiny("qwen2")`, a cached policy: tests must not change it (see `fresh` for one they may).

    Beside the layouts of the fused decoder there are `gpt2`, `gemma` (Gemma 3: windows in some of
    its layers), `phi` and `sliding`, which run on the fallback.
    """
    return functools.cache(fresh_policy)


@pytest.fixture
def fresh(one_thread: None) -> Callable[..., Any]:
    """A policy of the test's own, with a layout and a seed."""
    return fresh_policy
