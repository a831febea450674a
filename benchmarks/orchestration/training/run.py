"""The model that plans, trained by the rewards of its plans: before, after, and with a control.

    python -m benchmarks.orchestration.training.run FOLDER demonstrations
    python -m benchmarks.orchestration.training.run FOLDER rewards
    python -m benchmarks.orchestration.kit FOLDER/after --planner llm --model FOLDER/rewards

`demonstrations` shows SmolLM2 plans of the kit's tools, once each, which is the start; `rewards`
trains it by reinforcement with `agent.py` on requests with other values, and with `--control` a
control with it; its test are the requests of a stranger. Each is a run of the public command below
FOLDER, and goes on when it is called again. Further words are passed on, and KEY=VALUE replace
those here. The last command measures a policy on the thirty requests. Both want a GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from benchmarks.orchestration.kit import make_tools
from benchmarks.orchestration.training.agent import succeeds
from benchmarks.orchestration.training.tasks import requests, strangers, write_tasks

from tutelage.orchestration.planner.llm import demonstration

HERE = Path(__file__).resolve().parent
CONTROL = HERE.parents[1] / "real_model" / "shuffled.py"
SHOWN, TRAINED, BATCH = (10_000, 7680), (20_000, 1600), 32
"""Seeds that begin, and how many requests: of demonstrations and of training; in a step of one."""
DEMONSTRATIONS = f"""sft --model smollm2 --steps {SHOWN[1] // BATCH} batch_size={BATCH} lr=5e-4
    actor.optim.warmup_steps=10 actor.optim.lr_scheduler_type=linear model.dtype=bfloat16
    agent.template=smollm2 trainer.test_freq=-1 trainer.save_freq=-1"""
REWARDS = """--algorithm advantage_filtered --steps 100 --runners 64 agent.template=smollm2
    data.train_batch_size=16 agent.num_chains=8 lr=3e-5 actor.optim.lr_scheduler_type=linear
    rollout.temperature=0.7 rollout.correction=token_tis model.dtype=bfloat16 rollout.max_len=2048
    actor.entropy_coeff=0 actor.use_kl_loss=false actor.loss_agg_mode=token-mean
    trainer.test_freq=-1 trainer.save_freq=-1 trainer.max_actor_ckpt_to_keep=1"""


def demonstrations(path: Path) -> None:
    """Write the conversations that the model is shown."""
    tools = make_tools(path.parent, "http://127.0.0.1", "2026-03-02")
    with path.open("w", encoding="utf-8") as file:
        for request in requests(*SHOWN):
            said = demonstration(request.sentence, request.plan, tools)
            rows = [{"role": m.role, "content": m.content} for m in said]
            file.write(json.dumps({"messages": rows}, ensure_ascii=False) + "\n")


def tasks(place: Path) -> None:
    """Write the tasks of the training by rewards, without those whose plan cannot be run in their
    folder, and the stranger's."""
    trained = (each for each in requests(*TRAINED) if succeeds(each.nodes, each.seed))
    test = strangers()
    for split, rows in {"train": trained, "val": test[:8], "test": test}.items():
        write_tasks(place / f"{split}.jsonl", rows)


def command(name: str, place: Path, control: bool) -> list[str]:
    """The words after `tutelage` of a step; its data are written, once."""
    place.mkdir(parents=True, exist_ok=True)
    if name == "demonstrations":
        shown = place / "demonstrations.jsonl"
        if not shown.exists():
            demonstrations(shown)
        return ["train", *DEMONSTRATIONS.split(), "--train", str(shown)]
    if not (place / "test.jsonl").exists():
        tasks(place)
    splits = ("train", "val", "test")
    given = [word for split in splits for word in (f"--{split}", str(place / f"{split}.jsonl"))]
    own = ["--model", str(place / "demonstrations" / "policy"), "--success", "right"]
    controlled = [f"trainer.control={CONTROL}:shuffled"] * control
    return ["train", str(HERE / "agent.py"), *given, *own, *REWARDS.split(), *controlled]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("name", choices=("demonstrations", "rewards"))
    parser.add_argument("--control", action="store_true")
    args, more = parser.parse_known_args()
    output = ["--output", str(args.folder / args.name), *more]
    given = {word.partition("=")[0] for word in more if "=" in word}
    own = command(args.name, args.folder, args.control)
    words = [*(word for word in own if word.partition("=")[0] not in given), *output]
    print("tutelage", *words, flush=True)
    raise SystemExit(subprocess.call([sys.executable, "-m", "tutelage", *words]))


if __name__ == "__main__":
    main()
