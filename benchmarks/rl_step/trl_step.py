"""TRL's `GRPOTrainer(tools=[...])` on one checkpoint and task file: the baseline of this folder.

It owns the measurement of TRL, at the settings at which TRL is fastest here; which settings were
tried, and what each cost, is in `TRL_SETTINGS.md`. It loads any Hugging Face folder whose tokenizer
has a ChatML template with `<tool_call>` JSON (what `tutelage` saves), trains on `{"question",
"answer"}` rows with TRL's own loop, and writes one JSON record: for each step the CPU seconds of
the process (all its threads), wall seconds, sampled tokens, reward and turns.

A step is everything between the ends of two optimizer steps, evaluations left out. The reward is 1
when the last assistant message, free of tool calls, is the answer.

Tools and reward are the project's own. It runs in an environment apart from the project's:

    python -m venv venv-trl && . venv-trl/bin/activate
    pip install torch==2.13.0 && pip install 'trl==1.16.*' datasets jmespath && pip install -e .

    python benchmarks/rl_step/trl_step.py --model DIR --tasks train.jsonl --steps 20 --out trl.json
    python benchmarks/rl_step/trl_step.py --model DIR --tasks train.jsonl --steps 300 \\
        --until-success 0.9 --eval-tasks held-out.jsonl --lr 2e-4 --out trl-to-90.json
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import math
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

JSON = dict[str, Any]
PATHS = ("model", "tasks", "eval_tasks", "out")
"""Arguments of which the record keeps the last part only."""

# --- tools and reward: the project's own --------------------------------------------------------


def plain_tools(names: Sequence[str]) -> list[Callable[..., Any]]:
    """The project's tools as TRL takes them: functions that return text and never raise.

    TRL reads name, type hints and Google-style docstring, which `wraps` keeps. A failure gives the
    same kind of observation that the project's runner gives.
    """
    from tutelage.tools import ToolError, resolve_tools

    def plain(tool: Any) -> Callable[..., Any]:
        @functools.wraps(tool.fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return tool.fn(*args, **kwargs)
            except ToolError as error:
                return f"Error: {error}"
            except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
                return f"Error: {tool.name}: {error}"

        return call

    return [plain(tool) for tool in resolve_tools(names).values()]


def score(completion: list[JSON], answer: str) -> float:
    """1.0 when the last assistant message answers rightly and asks for no further tool."""
    from tutelage.rewards.builtin import exact_number

    last = completion[-1]
    if last.get("role") != "assistant" or last.get("tool_calls"):
        return 0.0
    return float(exact_number(last.get("content") or "", answer))


# --- measuring ---------------------------------------------------------------------------------


class Phases:
    """CPU seconds by phase; a phase entered inside another takes its time away from it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._stack = ["rest"]
        self._since = time.process_time()

    def _charge(self) -> None:
        now = time.process_time()
        self.seconds[self._stack[-1]] += now - self._since
        self._since = now

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Charge the time inside to `name`."""
        self._charge()
        self._stack.append(name)
        try:
            yield
        finally:
            self._charge()
            self._stack.pop()

    def take(self) -> dict[str, float]:
        """What was charged since the last call, rounded; starts again."""
        self._charge()
        taken = {name: round(s, 4) for name, s in self.seconds.items()}
        self.seconds.clear()
        return taken


class Record:
    """Steps and evaluations of one run, and the clocks they are measured with."""

    def __init__(self) -> None:
        self.phases = Phases()
        self.steps: list[JSON] = []
        self.evaluations: list[JSON] = []
        self.rewards: list[float] = []
        self.turns: list[int] = []
        self.reset_clock()

    def reset_clock(self) -> None:
        """A new step begins now."""
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def reward(self, completions: list[Any], answer: list[str], **_: Any) -> list[float]:
        """TRL's reward function; remembers what it saw for the step's or evaluation's record."""
        rewards = [score(c, a) for c, a in zip(completions, answer, strict=True)]
        self.rewards += rewards
        self.turns += [sum(m.get("role") == "assistant" for m in c) for c in completions]
        return rewards

    def take_rewards(self) -> tuple[float | None, float | None]:
        """Mean reward and mean turns since the last call; None where nothing was scored."""
        if not self.rewards:
            return None, None
        means = statistics.fmean(self.rewards), statistics.fmean(self.turns)
        self.rewards, self.turns = [], []
        return round(means[0], 4), round(means[1], 3)

    def end_step(self, step: int, sampled: int | None) -> JSON:
        """Close the step that ran since the clock was reset."""
        cpu, wall = time.process_time() - self._cpu, time.perf_counter() - self._wall
        reward, turns = self.take_rewards()
        row: JSON = {
            "step": step,
            "cpu_s": round(cpu, 4),
            "wall_s": round(wall, 4),
            "sampled_tokens": sampled if reward is not None else 0,
            "reward": reward,
            "turns": turns,
            "phases_cpu_s": self.phases.take(),
        }
        self.steps.append(row)
        return row


def summary(rows: list[JSON], skip: int) -> JSON:
    """Medians over the steps after the first `skip`, which warm up."""
    warm = rows[skip:] or rows
    sampled = sum(r["sampled_tokens"] or 0 for r in warm)
    names = sorted({n for r in warm for n in r["phases_cpu_s"]})
    rewards = [r["reward"] for r in warm if r["reward"] is not None]
    cpu = statistics.median(r["cpu_s"] for r in warm)
    return {
        "steps_measured": len(warm),
        "cpu_s": round(cpu, 4),
        "cpu_s_mean": round(statistics.fmean(r["cpu_s"] for r in warm), 4),
        "cpu_s_min": min(r["cpu_s"] for r in warm),
        "wall_s": round(statistics.median(r["wall_s"] for r in warm), 4),
        "sampled_tokens_per_step": round(sampled / len(warm)),
        "sampled_tokens_per_cpu_s": round(sampled / sum(r["cpu_s"] for r in warm)),
        "reward": round(statistics.fmean(rewards), 4) if rewards else None,
        "phases_cpu_s": {
            n: round(statistics.median(r["phases_cpu_s"].get(n, 0.0) for r in warm), 4)
            for n in names
        },
    }


# --- TRL ---------------------------------------------------------------------------------------


def read_tasks(path: str, system: str) -> Any:
    """A `datasets.Dataset` of `prompt` (chat messages) and `answer` from a JSONL task file."""
    from datasets import Dataset

    head = [{"role": "system", "content": system}] if system else []
    prompts: list[Any] = []
    answers: list[str] = []
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        if not line.strip():
            continue
        row = json.loads(line)
        if "question" not in row or "answer" not in row:
            sys.exit(f"{path}:{number}: a task needs question and answer, got {sorted(row)!r}")
        prompts.append([*head, {"role": "user", "content": row["question"]}])
        answers.append(str(row["answer"]))
    return Dataset.from_dict({"prompt": prompts, "answer": answers})


def config(args: argparse.Namespace, output: str) -> Any:
    """`GRPOConfig` with the chosen settings."""
    from trl import GRPOConfig

    batch = args.prompts * args.group
    micro = args.micro_batch or math.gcd(batch, 64 if args.dtype == "fp32" else 32)
    if batch % micro:
        sys.exit(f"--micro-batch {micro} does not divide {args.prompts} x {args.group} = {batch}")
    # A generation covers `--generate-batches` optimizer steps. `max_completion_length` bounds the
    # whole conversation after the prompt; `max_new_tokens` bounds each turn, so that one rambling
    # turn does not hold the other 127 rollouts longer than it would in the project's own engine.
    return GRPOConfig(
        output_dir=output,
        use_cpu=True,
        bf16=args.dtype == "bf16" and args.bf16_mode == "autocast",
        fp16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=batch // micro,
        steps_per_generation=batch // micro * args.generate_batches,
        num_iterations=args.num_iterations,
        num_generations=args.group,
        per_device_eval_batch_size=args.eval_batch,
        num_generations_eval=1,
        eval_strategy="no",
        max_completion_length=args.max_completion,
        generation_kwargs={"max_new_tokens": args.max_tokens, **json.loads(args.generation)},
        max_tool_calling_iterations=args.max_turns - 1,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        cache_implementation=args.cache or None,
        use_transformers_continuous_batching=args.continuous_batching,
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.28,
        loss_type=args.loss,
        scale_rewards="group",
        mask_truncated_completions=False,
        disable_dropout=True,
        pad_to_multiple_of=args.pad_to or None,
        learning_rate=args.lr,
        lr_scheduler_type="constant_with_warmup" if args.warmup else "constant",
        warmup_steps=args.warmup,
        adam_beta1=0.9,
        adam_beta2=args.adam_beta2,
        weight_decay=0.0,
        max_grad_norm=1.0,
        optim=args.optim,
        torch_compile=args.compile,
        max_steps=args.steps,
        seed=args.seed,
        logging_steps=max(args.steps, 1),
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
    )


def load_tokenizer(folder: str) -> Any:
    """The tokenizer exactly as saved: for `qwen2`, AutoTokenizer would split texts by other rules
    than the folder's own `tokenizer.json`."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    own = ("TokenizersBackend", "PreTrainedTokenizerFast")
    declared = get_tokenizer_config(folder).get("tokenizer_class")
    kind = PreTrainedTokenizerFast if declared in own else AutoTokenizer
    return kind.from_pretrained(folder, padding_side="left")


def build(args: argparse.Namespace, record: Record, output: str) -> Any:
    """The trainer, its phases timed; the model and tokenizer come from `--model`."""
    import torch
    from transformers import AutoModelForCausalLM
    from trl import GRPOTrainer
    from trl.chat_template_utils import qwen3_template

    phases = record.phases

    class TimedTrainer(GRPOTrainer):
        """TRL's trainer; only the clock is added."""

        def _generate_and_score_completions(self, *a: Any, **k: Any) -> Any:
            with phases("scoring and padding"):
                return super()._generate_and_score_completions(*a, **k)

        def _generate(self, *a: Any, **k: Any) -> Any:
            with phases("tokenize, parse, tools"):
                return super()._generate(*a, **k)

        def _generate_single_turn(self, *a: Any, **k: Any) -> Any:
            with phases("generate"):
                return super()._generate_single_turn(*a, **k)

        def _get_per_token_logps_and_entropies(self, *a: Any, **k: Any) -> Any:
            with phases("forward"):
                return super()._get_per_token_logps_and_entropies(*a, **k)

        def _compute_loss(self, *a: Any, **k: Any) -> Any:
            with phases("loss"):
                return super()._compute_loss(*a, **k)

    pure = args.dtype == "bf16" and args.bf16_mode == "pure"
    model = AutoModelForCausalLM.from_pretrained(
        args.model,
        dtype=torch.bfloat16 if pure else torch.float32,
        attn_implementation=args.attn,
    )
    tokenizer = load_tokenizer(args.model)
    if getattr(tokenizer, "response_template", None) is None:
        tokenizer.response_template = qwen3_template
    trainer = TimedTrainer(
        model=model,
        reward_funcs=record.reward,
        args=config(args, output),
        train_dataset=read_tasks(args.tasks, args.system),
        eval_dataset=read_tasks(args.eval_tasks, args.system) if args.eval_tasks else None,
        processing_class=tokenizer,
        tools=plain_tools(args.tools.split(",")),
    )
    backward = trainer.accelerator.backward

    def timed_backward(*a: Any, **k: Any) -> None:
        with phases("backward"):
            backward(*a, **k)

    trainer.accelerator.backward = timed_backward
    return trainer


def meter(args: argparse.Namespace, record: Record, trainer: Any) -> Any:
    """The callback that closes a step, and evaluates outside of the clock."""
    from transformers import TrainerCallback

    batch = args.prompts * args.group * args.generate_batches

    def evaluate(step: int, cpu: float, wall: float) -> float:
        cpu0, wall0 = time.process_time(), time.perf_counter()
        trainer.evaluate()
        success, turns = record.take_rewards()
        row = {
            "step": step,
            "success": success,
            "turns": turns,
            "train_cpu_s": round(cpu, 3),
            "train_wall_s": round(wall, 3),
            "eval_cpu_s": round(time.process_time() - cpu0, 3),
            "eval_wall_s": round(time.perf_counter() - wall0, 3),
        }
        record.evaluations.append(row)
        print(json.dumps({"event": "eval", **row}), flush=True)
        record.phases.take()
        return success or 0.0

    class Meter(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            if args.eval_tasks:
                evaluate(0, 0.0, 0.0)
            record.phases.take()
            record.reset_clock()

        def on_step_end(self, _: Any, state: Any, control: Any, **__: Any) -> None:
            lengths = trainer._metrics["train"]["completions/mean_length"]
            row = record.end_step(
                state.global_step, round(lengths[-1] * batch) if lengths else None
            )
            print(json.dumps({"event": "step", **row}), flush=True)
            due = state.global_step % args.eval_every == 0 or state.global_step == args.steps
            if args.eval_tasks and due:
                cpu = sum(r["cpu_s"] for r in record.steps)
                wall = sum(r["wall_s"] for r in record.steps)
                success = evaluate(state.global_step, cpu, wall)
                if args.until_success and success >= args.until_success:
                    control.should_training_stop = True
            record.reset_clock()

    return Meter()


def reached(record: Record, target: float) -> JSON | None:
    """Steps, CPU and wall seconds to the first evaluation at `target`, or None."""
    for row in record.evaluations:
        if target and (row["success"] or 0.0) >= target:
            return {
                "success": row["success"],
                "steps": row["step"],
                "cpu_s": row["train_cpu_s"],
                "wall_s": row["train_wall_s"],
                "sampled_tokens": sum(
                    r["sampled_tokens"] or 0 for r in record.steps if r["step"] <= row["step"]
                ),
            }
    return None


def machine() -> JSON:
    """What the figures were measured on."""
    cpu = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [x for x in info.read_text().splitlines() if x.startswith("model name")]
        cpu = names[0].split(":", 1)[1].strip() if names else cpu
    return {"cpu": cpu, "cores": os.cpu_count(), "python": platform.python_version()}


def parse_args() -> argparse.Namespace:
    """The command line; the defaults of the second group are TRL's best settings here."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--model", required=True, help="Hugging Face folder")
    p.add_argument("--tasks", required=True, help="JSONL with question and answer")
    p.add_argument("--steps", type=int, default=20, help="optimizer steps, or their limit")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    p.add_argument("--prompts", type=int, default=16)
    p.add_argument("--group", type=int, default=8)
    p.add_argument("--max-tokens", type=int, default=40, help="new tokens of one turn")
    p.add_argument("--max-completion", type=int, default=208, help="tokens after the prompt")
    p.add_argument("--max-turns", type=int, default=4)
    p.add_argument("--lr", type=float, default=2e-4)
    p.add_argument("--warmup", type=int, default=0)
    p.add_argument("--adam-beta2", type=float, default=0.95)
    p.add_argument("--loss", default="dapo")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--tools", default="calculator,sum_1_to_n,lookup")
    p.add_argument("--system", default="", help="system message of the agent")
    p.add_argument("--until-success", type=float, default=0.0)
    p.add_argument("--eval-tasks", default="")
    p.add_argument("--eval-every", type=int, default=1, help="steps")
    p.add_argument("--eval-batch", type=int, default=128)
    p.add_argument("--skip", type=int, default=2, help="warm-up steps left out of the medians")
    p.add_argument("--out", default="")

    best = p.add_argument_group("TRL settings (TRL_SETTINGS.md)")
    best.add_argument("--attn", choices=["auto", "eager", "sdpa"], default="auto")
    best.add_argument("--sdpa", choices=["flash", "math"], default="flash", help="kernel of sdpa")
    best.add_argument("--micro-batch", type=int, default=0, help="0: 64 in fp32, 32 in bf16")
    best.add_argument("--generate-batches", type=int, default=1, help="steps fed by one generation")
    best.add_argument("--num-iterations", type=int, default=1)
    best.add_argument("--optim", default="adamw_torch_fused")
    best.add_argument("--matmul", choices=["auto", "highest", "medium"], default="auto")
    best.add_argument("--bf16-mode", choices=["pure", "autocast"], default="pure")
    best.add_argument("--cache", default="", help="cache_implementation")
    best.add_argument("--continuous-batching", action="store_true")
    best.add_argument("--compile", action="store_true")
    best.add_argument("--pad-to", type=int, default=0)
    best.add_argument("--generation", default="{}", help="more generation_kwargs, as JSON")
    best.add_argument("--malloc", choices=["keep", "default"], default="keep")
    best.add_argument("--flush-denormal", action="store_true")
    return p.parse_args()


def prepare(args: argparse.Namespace) -> None:
    """Process-wide settings, before torch is imported."""
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    warnings.filterwarnings("ignore")
    if args.malloc == "keep" and sys.platform == "linux":
        # Large tensors come back from the heap instead of being mapped and faulted in each time.
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        libc.mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD


def choose_matmul(wanted: str) -> JSON:
    """Set the kernels of float32 products, and say which and how exact they are.

    "medium" lets torch take oneDNN's, which are twice as fast as MKL's on an AMD processor and
    still compute in float32 where there is no AMX. "auto" takes them where that is measured to be
    so: an error of 1e-7 relative to the largest value is float32, 1e-3 would be bfloat16.
    """
    import torch

    random = torch.Generator().manual_seed(0)
    x = torch.randn(256, 384, generator=random)
    w = torch.randn(384, 256, generator=random)
    exact = x.double() @ w.double()

    def error(precision: str) -> float:
        torch.set_float32_matmul_precision(precision)
        return ((x @ w).double() - exact).abs().max().item() / exact.abs().max().item()

    chosen = wanted
    if wanted == "auto":
        chosen = "medium" if error("medium") < 1e-5 else "highest"
    return {"precision": chosen, "relative_error": error(chosen)}


def main() -> None:
    """Measure, print each step as a JSON line, write the record to `--out`."""
    args = parse_args()
    if args.until_success and not args.eval_tasks:
        sys.exit("--until-success needs --eval-tasks FILE")
    prepare(args)

    import torch
    import transformers
    import trl
    from transformers import PrinterCallback

    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(args.flush_denormal)
    torch.backends.cuda.enable_flash_sdp(args.sdpa == "flash")  # governs the CPU kernel as well
    matmul = choose_matmul(args.matmul)
    if args.attn == "auto":
        # Through MKL in float32 torch's fused attention is the faster one; everywhere else its
        # many small products cost more than plain batched ones.
        mkl = args.dtype == "fp32" and matmul["precision"] == "highest"
        args.attn = "sdpa" if mkl else "eager"

    record = Record()
    with tempfile.TemporaryDirectory() as output:
        trainer = build(args, record, output)
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(meter(args, record, trainer))
        trainer.train()
    result: JSON = {
        "system": f"trl {trl.__version__}",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d"),
        "args": {k: Path(v).name if k in PATHS and v else v for k, v in vars(args).items()},
        "matmul": matmul,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "summary": summary(record.steps, args.skip),
        "reached": reached(record, args.until_success),
        "evaluation_cpu_s": round(sum(r["eval_cpu_s"] for r in record.evaluations), 3),
        "evaluations": record.evaluations,
        "steps": record.steps,
    }
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
    brief = {k: result[k] for k in ("system", "summary", "reached", "evaluation_cpu_s")}
    print(json.dumps({"event": "done", **brief}), flush=True)


if __name__ == "__main__":
    main()
