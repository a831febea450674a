"""Make the trained artefacts of the package, or measure what decides them.

    make artefacts                                          # about 8 minutes
    python -m benchmarks.house.artefacts [NAME ...]         # some: math, prompts, planner

`math` is the start of `tutelage train math`: the same command with `--from-scratch`, stopped before
reinforcement. `prompts` is the policy of a prompt search without an endpoint, `planner` the planner
over the built-in tools. Each is trained in float32 and stored in bfloat16 in
`src/tutelage/artefacts`, beside `artefact.json`: the recipe, the chat template and the tools'
schemas as hashes, what a training of three steps gives (losses, and a hash of the weights), and the
machine. `tests/recipes/test_artefacts.py` compares these with the code.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from benchmarks.house.planner_recipe import RECIPE, PlannerRecipe, save_shipped, train
from benchmarks.house.prompt_recipe import PolicyRecipe, train_policy
from safetensors.torch import load_file, save_file

from tutelage.orchestration.data.synthetic import builtin_graph
from tutelage.orchestration.planner import saving
from tutelage.policy.model import Policy, load_policy
from tutelage.policy.sources import artefact
from tutelage.policy.template import CHAT_TEMPLATE
from tutelage.recipes.prompted import PROMPTED_TOOLS
from tutelage.runs.inputs import EMBEDDED_TOOLS
from tutelage.runs.progress import Progress
from tutelage.tools.registry import resolve_tools
from tutelage.weights.config.presets import recipe_preset

NAMES = ("math", "prompts", "planner")
POSITIONS = 2048
"""Longest sequence that the start of the math job says it is made for: agents of one's own have
longer prompts than the job's."""
SHORT = (
    "sft.max_steps=3",
    "sft.cooldown_steps=0",
    "sft.mixed_steps=0",
    "trainer.val_tasks=1",
    "trainer.test_tasks=1",
)
SMALL_PLANNER = PlannerRecipe(workflows=120, held_out=24, epochs=3)


class Losses(Progress):
    """Keeps the loss of each step."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def step(self, done: int, values: Any) -> None:
        self.values.append(values["loss/sft"])


def hashed(value: object) -> str:
    """Hash what JSON can say."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Hash the bytes of tensors."""
    data = b"".join(
        tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors
    )
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def machine() -> dict[str, str]:
    """Name what bits depend on."""
    from tutelage.policy.machine import cpu_vendor

    capability = torch.backends.cpu.get_cpu_capability()
    return {"cpu": cpu_vendor(), "capability": capability, "torch": torch.__version__}


def train_math(output: Path, *more: str) -> dict[str, Any]:
    """Run the cold start of the job through the public command; returns its result."""
    command = [str(Path(sys.executable).parent / "tutelage"), "train", "math", "--algorithm", "sft"]
    words = [*command, "--output", str(output), *more]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return json.loads((output / "result.json").read_text(encoding="utf-8"))


def recipe_of(name: str) -> dict[str, Any]:
    """Return what the training of an artefact is configured with, as plain data."""
    if name == "math":
        values = recipe_preset("math", level="default", algorithm="rl", own_start=True)[1]
        from tutelage.config.keys import defaults

        keys = {
            key: value for key, value in defaults().items() if key.startswith(("sft.", "model."))
        }
        return {**keys, **{k: v for k, v in values.items() if k in keys or k == "rollout.max_len"}}
    return asdict(PolicyRecipe() if name == "prompts" else RECIPE)


def fingerprint(name: str) -> dict[str, Any]:
    """Measure what decides an artefact: recipe, template, tools, and a training of three steps."""
    tools: Any = EMBEDDED_TOOLS if name == "math" else PROMPTED_TOOLS
    schemas: Any = [asdict(tool.spec) for tool in resolve_tools(tools).values()]
    if name == "planner":
        schemas = [asdict(tool) for tool in builtin_graph().catalog.tools]
    told = Losses()
    if name == "math":
        with tempfile.TemporaryDirectory() as place:
            train_math(Path(place) / "run", *SHORT)
            lines = (Path(place) / "run" / "metrics.jsonl").read_text(encoding="utf-8").split("\n")
            told.values = [
                row["loss/sft"] for row in map(json.loads, filter(None, lines)) if "loss/sft" in row
            ]
            weights = digest(
                load_file(Path(place) / "run" / "policy" / "model.safetensors").values()
            )
    elif name == "prompts":
        policy = train_policy(replace(PolicyRecipe(), steps=3, cooldown=1), told)
        weights = digest(tensor for _, tensor in policy.named_tensors())
    else:
        fitting = train(SMALL_PLANNER)
        told.values = [float(fitting.at.best_loss)]
        weights = digest(fitting.model.state_dict().values())
    return {
        "recipe": hashed(recipe_of(name)),
        "template": None if name == "planner" else hashed(CHAT_TEMPLATE),
        "tools": hashed(schemas),
        "losses": told.values,
        "weights": weights,
    }


def store_policy(folder: Path, policy: Policy) -> None:
    """Write a policy with its weights in bfloat16."""
    policy.save(folder, replace=True)
    (folder / "chat_template.jinja").unlink()  # `policy/template.py` has it
    file = folder / "model.safetensors"
    save_file({k: t.bfloat16() for k, t in load_file(file).items()}, file, {"format": "pt"})


def make(name: str) -> None:
    """Train an artefact and write it into the package."""
    folder, facts = artefact(name), dict[str, Any]()
    folder.mkdir(parents=True, exist_ok=True)
    cpu = time.process_time()
    if name == "math":
        with tempfile.TemporaryDirectory() as place:
            result = train_math(
                Path(place) / "run", "sft.mixed_steps=300", "trainer.test_tasks=200"
            )
            store_policy(folder, load_policy(str(Path(place) / "run" / "policy")))
        file = folder / "config.json"
        config = json.loads(file.read_text(encoding="utf-8")) | {
            "max_position_embeddings": POSITIONS
        }
        file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        file = folder / "tokenizer_config.json"
        config = json.loads(file.read_text(encoding="utf-8")) | {"model_max_length": POSITIONS}
        file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        facts = {
            "minutes": round(result["phases"]["cold_start"] / 60, 1),
            "clean_success": result["success_clean_greedy"],
            "guess_share": result["guess_share"],
            "sampled": result["success_after_sampled"],
            "greedy": result["success_after_greedy"],
        }
    elif name == "prompts":
        store_policy(folder, train_policy(PolicyRecipe(), Progress()))
    else:
        fitting = train()
        content = saving.make_checkpoint(
            fitting.model, {}, fitting.at.best_epoch, fitting.at.best_loss
        )
        save_shipped(content, folder / saving.SHIPPED)
    if name != "math":
        facts["cpu_minutes"] = round((time.process_time() - cpu) / 60, 1)
    record = facts | {"machine": machine(), "fingerprint": fingerprint(name)}
    (folder / "artefact.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(
        name, facts, f"{sum(f.stat().st_size for f in folder.iterdir()) / 1e6:.2f} MB", flush=True
    )


if __name__ == "__main__":
    for chosen in sys.argv[1:] or NAMES:
        make(chosen)
