"""The agent-RL guide's three commands at their full sizes, on models made on the spot.

`python -m benchmarks.guide.run [math] [react] [code] [--folder runs/guide]`

For each: a fresh model of 0.6 million parameters with a context of 1,024 tokens is taught the form
by `tutelage train sft`, then `tutelage train rl` runs with the guide's own words, in which only the
model's and the data's paths are swapped, and `trainer.device=cpu` is added. The guide's learning
rate is meant for a model of 3 billion parameters, so no reward is promised: what is shown is that
every key works at its full size and how long that takes. RESULTS.md has the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.guide.commands import swapped
from benchmarks.guide.tasks import MATERIAL, Material

from tutelage.policy.codec import Codec
from tutelage.policy.model import Policy, build_policy
from tutelage.policy.named_templates import set_template
from tutelage.testing import tiny_policy
from tutelage.types import Message, ToolSpec

TUTELAGE = str(Path(sys.executable).with_name("tutelage"))
CONTEXT = 1024
TEMPLATE = "qwen2.5"


def fresh(material: Material) -> Policy:
    """Untrained, with a tokenizer made from what the agent will be shown."""
    probe = tiny_policy(max_positions=1 << 14)
    set_template(probe.codec.tokenizer, TEMPLATE)
    codec = Codec(probe.codec.tokenizer)
    texts = [_text(codec, row) for row in material.shown[:400]]
    policy = build_policy(texts, size="xs", max_positions=CONTEXT)
    set_template(policy.codec.tokenizer, TEMPLATE)
    return Policy(policy.network, policy.config, Codec(policy.codec.tokenizer))


def _text(codec: Codec, row: dict[str, Any]) -> str:
    messages = [Message.from_dict(m) for m in row["messages"]]
    tools = [ToolSpec(**t["function"]) for t in row.get("tools", ())]
    return codec.render_text(messages, tools, open_turn=False)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=[*MATERIAL])
    parser.add_argument("--folder", type=Path, default=Path("runs/guide"))
    parser.add_argument("--demonstrations", type=int, default=6000)
    parser.add_argument("--sft-steps", type=int, default=600)
    arguments = parser.parse_args()
    for name in arguments.names:
        folder = (arguments.folder / name).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        material = MATERIAL[name](folder, arguments.demonstrations)
        files = {key: folder / f"{key}.json" for key in ("train", "val")}
        files["train"].write_text(json.dumps(material.train))
        files["val"].write_text(json.dumps(material.val))
        shown = folder / "demonstrations.jsonl"
        shown.write_text("".join(json.dumps(row) + "\n" for row in material.shown))
        fresh(material).save(folder / "fresh")
        environment = {**os.environ, "TUTELAGE_SEARCH_INDEX": str(folder / "corpus.db")}
        words = [
            "--model",
            str(folder / "fresh"),
            "--train",
            str(shown),
            f"agent.template={TEMPLATE}",
        ]
        words += [
            "actor.optim.lr=3e-3",
            "--steps",
            str(arguments.sft_steps),
            "--output",
            str(folder / "start"),
        ]
        timed("sft", [TUTELAGE, "train", "sft", *words, "trainer.device=cpu"], environment)
        model = str(folder / "start" / "policy")
        words = swapped(name, model, str(files["train"]), str(files["val"]))
        output = ["trainer.device=cpu", "--output", str(folder / "rl")]
        timed("rl", [TUTELAGE, "train", "rl", *words, *output], environment)


def timed(name: str, command: list[str], environment: dict[str, str]) -> None:
    """Run a command and print what it took, its children included."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    clock = time.perf_counter() - start
    print(f"{name}: {clock:.0f} s by the clock, {seconds:.0f} CPU s", flush=True)


if __name__ == "__main__":
    main()
