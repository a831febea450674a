"""SmolLM2-135M-Instruct with reasoning-gym, an agent framework, the guide's command, and a search.

    python -m benchmarks.real_model.others FOLDER framework

Each measurement is a run of the public command below FOLDER. One that was stopped goes on when it
is called again. `cold` comes before `framework` and `guide`: the 64 demonstrations of the job
`word-problems`, once, four a step, so in 16 updates where the job makes 64. `gym-cold` comes before
`gym`: 64 tasks with their answers, shown once. Further KEY=VALUE are passed on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from benchmarks.guide.commands import swapped

from tutelage.tasks.word_problems import make_word_problems

HERE = Path(__file__).resolve().parent
COLD = """train word-problems --algorithm sft sft.batch_size=4 sft.max_steps=8 sft.cooldown_steps=8
    trainer.test_tasks=14 trainer.val_tasks=7 trainer.max_actor_ckpt_to_keep=1"""
KEYS = """model.dtype=bfloat16 rollout.correction=token_tis
    actor.optim.lr_scheduler_type=linear agent.num_chains=8 actor.entropy_coeff=0
    actor.use_kl_loss=false actor.loss_agg_mode=token-mean trainer.test_freq=-1
    trainer.save_freq=-1 trainer.max_actor_ckpt_to_keep=1"""
"""What `framework` and `gym` have in common. The job `word-problems` (`tutelage config`) plays 2
rollouts a task, at temperature 0.7, and takes off for calls that fail."""
CONTROL = f"trainer.control={HERE / 'shuffled.py'}:shuffled"
SMALLER = {
    "agent.template": "smollm2",
    "data.train_batch_size": "4",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "4",
    "trainer.total_training_steps": "30",
    "trainer.logger": "console",
    "trainer.test_freq": "-1",
    "trainer.max_actor_ckpt_to_keep": "1",
    "trainer.test_tasks": "56",
    "trainer.device": "cpu",
    "model.dtype": "bfloat16",
}
"""What is changed of the guide's command: sizes (8 updates a step, as there), and the machine."""
GYM_COLD = """--steps 8 batch_size=8 lr=1e-4 actor.optim.warmup_steps=2
    trainer.test_freq=-1 trainer.save_freq=-1 trainer.max_actor_ckpt_to_keep=1"""
GYM = ("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2})


NAMES = ("cold", "framework", "guide", "gym-cold", "gym", "search")


def command(name: str, folder: Path) -> list[str]:
    """The words after `tutelage` of a measurement; its tasks are written."""
    cold, data = folder / "cold" / "policy", folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    if name == "cold":
        return COLD.split()
    if name == "framework":
        files = words(data, "share", "groups", "exchange", "shop")
        own = f"--model {cold} --reward math --algorithm advantage_filtered --steps 24 --runners 32"
        own += " agent.max_tokens_per_turn=48 rollout.max_len=640 data.train_batch_size=4 lr=3e-5"
        return ["train", f"{HERE}/sdk_agent.py", *files, *own.split(), *KEYS.split(), CONTROL]
    if name == "guide":
        _, train, *_, test = words(data, "share", "groups", "exchange", "pages")
        guide = dict(word.split("=", 1) for word in swapped("math", str(cold), train, test))
        return ["train", "rl", *(f"{key}={value}" for key, value in (guide | SMALLER).items())]
    demonstrated, *files = puzzles(data)
    if name == "gym-cold":
        return ["train", "sft", "--model", "smollm2", "--train", demonstrated, *GYM_COLD.split()]
    files += ["--reward", f"{HERE}/gym_reward.py:score"]
    if name == "search":
        own = "--model smollm2 --algorithm screen --rollouts 400 --runners 32"
        return ["train", f"{HERE}/search_agent.py", *files, *own.split()]
    own = f"--model {folder}/gym-cold/policy --algorithm grpo --steps 16 lr=5e-5"
    own += " --tools [] agent.max_turns=1 rollout.response_length=16 data.train_batch_size=8"
    return ["train", "rl", *files, *own.split(), *KEYS.split(), CONTROL]


def options(files: dict[str, str]) -> list[str]:
    """Files by split as options of the command."""
    return [word for split, file in files.items() for word in (f"--{split}", file)]


def words(data: Path, *kinds: str) -> list[str]:
    """Files of word problems, as options."""
    files: dict[str, str] = {}
    for split, count in {"train": 400, "val": 4, "test": 56}.items():
        file = data / f"{'-'.join(kinds)}-{split}.jsonl"
        tasks = make_word_problems(split, count, 0, kinds)
        lines = ({k: v for k, v in task.fields.items() if k != "calls"} for task in tasks)
        file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        files[split] = str(file)
    return options(files)


def puzzles(data: Path) -> list[str]:
    """Files of reasoning-gym tasks, no task in two of them: demonstrations, and options."""
    from benchmarks.real_model.gym_reward import write

    family, settings = GYM
    counts = {"demonstrated": 64, "train": 400, "val": 40, "test": 100}
    files = write(data, family, counts, **settings)
    return [files.pop("demonstrated"), *options(files)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.usage = f"%(prog)s [-h] FOLDER {{{','.join(NAMES)}}} [KEY=VALUE ...]"
    parser.add_argument("folder", type=Path)
    parser.add_argument("name", choices=NAMES)
    args, more = parser.parse_known_args()
    words_ = [*command(args.name, args.folder), "--output", str(args.folder / args.name), *more]
    print("tutelage", *words_, flush=True)
    raise SystemExit(subprocess.call([sys.executable, "-m", "tutelage", *words_]))


if __name__ == "__main__":
    main()
