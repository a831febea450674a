"""The model that plans, trained by the rewards of its plans: before, after, and with a control.

    python -m benchmarks.orchestration.training.run FOLDER demonstrations
    python -m benchmarks.orchestration.training.run FOLDER rewards
    python -m benchmarks.orchestration.kit FOLDER/after --planner llm --model FOLDER/rewards

`demonstrations` shows SmolLM2 plans of the kit's tools, once each, which is the start; `rewards`
trains it by reinforcement with `agent.py` on requests that were not shown, and a control with it.
Each is a run of the public command below FOLDER, and goes on when it is called again. Further
KEY=VALUE are passed on. The last command measures a policy on the thirty requests.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from benchmarks.orchestration.training.agent import folder
from benchmarks.orchestration.training.tasks import requests, write_tasks

from tutelage.orchestration.planner.llm import demonstration

HERE = Path(__file__).resolve().parent
CONTROL = HERE.parents[1] / "real_model" / "shuffled.py"
SHOWN, TRAINED, TESTED = (10_000, 111), (20_000, 800), (30_000, 74)
"""Seeds that begin, and how many requests: of demonstrations, of training, of the held-out test."""
DEMONSTRATIONS = """sft --model smollm2 --steps 37 batch_size=3 lr=2e-4 actor.optim.warmup_steps=4
    actor.optim.lr_scheduler_type=linear model.dtype=bfloat16 agent.template=smollm2
    trainer.test_freq=-1 trainer.save_freq=-1"""
REWARDS = """--algorithm advantage_filtered --steps 16 --runners 32 agent.template=smollm2
    data.train_batch_size=8 agent.num_chains=4 lr=3e-5 actor.optim.lr_scheduler_type=linear
    rollout.temperature=0.7 rollout.correction=token_tis model.dtype=bfloat16 rollout.max_len=2048
    actor.entropy_coeff=0 actor.use_kl_loss=false actor.loss_agg_mode=token-mean
    trainer.test_freq=-1 trainer.save_freq=-1 trainer.max_actor_ckpt_to_keep=1"""


def demonstrations(path: Path) -> None:
    """Write the conversations that the model is shown."""
    with path.open("w", encoding="utf-8") as file:
        for request in requests(*SHOWN):
            with folder(request.seed) as (tools, _):
                said = demonstration(request.sentence, request.plan, tools)
            rows = [{"role": m.role, "content": m.content} for m in said]
            file.write(json.dumps({"messages": rows}, ensure_ascii=False) + "\n")


def command(name: str, place: Path) -> list[str]:
    """The words after `tutelage` of a step; its data are written."""
    place.mkdir(parents=True, exist_ok=True)
    if name == "demonstrations":
        shown = place / "demonstrations.jsonl"
        demonstrations(shown)
        return ["train", *DEMONSTRATIONS.split(), "--train", str(shown)]
    files = {"train": TRAINED, "val": (TESTED[0] - 100, 8), "test": TESTED}
    for split, (first, count) in files.items():
        write_tasks(place / f"{split}.jsonl", first, count)
    given = [word for split in files for word in (f"--{split}", str(place / f"{split}.jsonl"))]
    own = ["--model", str(place / "demonstrations" / "policy"), "--success", "right"]
    control = f"trainer.control={CONTROL}:shuffled"
    return ["train", str(HERE / "agent.py"), *given, *own, *REWARDS.split(), control]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("name", choices=("demonstrations", "rewards"))
    args, more = parser.parse_known_args()
    output = ["--output", str(args.folder / args.name), *more]
    words = [*command(args.name, args.folder), *output]
    print("tutelage", *words, flush=True)
    raise SystemExit(subprocess.call([sys.executable, "-m", "tutelage", *words]))


if __name__ == "__main__":
    main()
