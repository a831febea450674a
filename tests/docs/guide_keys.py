"""The agent-RL guide's keys with the values that it shows, and what becomes of each here.

`python tests/docs/guide_keys.py` writes the page, `docs/agent-rl-keys.md`; nothing of a verdict is
written by hand: each value is resolved in contexts in which keys of its kind wake up, on a CPU and
on a GPU. `test_guide_keys.py` compares the page and shows by training that what works is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

from tutelage.config import Machine
from tutelage.config.aliases import canonical_key
from tutelage.errors import ConfigError
from tutelage.weights.config import resolve

PAGE = Path(__file__).parents[2] / "docs" / "agent-rl-keys.md"

GUIDE = {
    "Agent": """
        agent.use_agent=True,False
        agent.init_args.model_name_or_path=Qwen/Qwen2.5-3B-Instruct
        agent.model_name_or_path=Qwen/Qwen2.5-3B-Instruct
        agent.init_args.template=qwen2.5,qwen2.5-vl
        agent.template=qwen2.5,qwen2.5-vl
        agent.init_args.agent_type=hf,react,code,gui
        agent.agent_type=hf,react,code,gui
        agent.init_args.tools=[calculator],[google_search,answer],[python_executor],[]
        agent.tools=[calculator],[google_search,answer],[python_executor],[]
        agent.init_args.reward_name=math_reward_string_equal,qa_f1_reward,code_reward
        agent.reward_name=math_reward_string_equal,qa_f1_reward,code_reward
        agent.init_args.backend=async_verl,openai
        agent.max_turns=3
        agent.num_chains=8
        agent.max_tokens_per_turn=128
    """,
    "Algorithm": """
        algorithm.adv_estimator=gae,grpo,reinforce_plus_plus,rloo,remax
        algorithm.gamma=1.0
        algorithm.lam=1.0
        algorithm.use_kl_in_reward=False,True
        algorithm.kl_penalty=kl,abs,mse,low_var_kl,full
        algorithm.kl_ctrl.type=fixed,adaptive
        algorithm.kl_ctrl.kl_coef=0.001
        algorithm.kl_ctrl.target_kl=0.1
        algorithm.kl_ctrl.horizon=10000
    """,
    "Trainer": """
        trainer.project_name=AgentRL
        trainer.experiment_name=test_gsm8k
        trainer.logger=['console'],['wandb'],['console','wandb']
        trainer.total_training_steps=100
        trainer.total_epochs=1
        trainer.nnodes=1,2
        trainer.n_gpus_per_node=1,8
        trainer.save_freq=-1,50
        trainer.test_freq=-1,10
        trainer.val_before_train=True,False
        trainer.critic_warmup=0,3
        trainer.resume_mode=auto,disable,resume_path
        trainer.resume_from_path=runs/RUN/checkpoints/step_000050
    """,
    "Data": """
        data.train_files=./data/rlhf/math/gsm8k_train.json
        data.val_files=./data/rlhf/math/gsm8k_test.json
        data.train_batch_size=64
        data.val_batch_size=512
    """,
    "Actor, rollout, reference": """
        actor_rollout_ref.actor.optim.lr=5e-7
        actor_rollout_ref.actor.ppo_mini_batch_size=64
        actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8
        actor_rollout_ref.actor.use_kl_loss=True,False
        actor_rollout_ref.actor.kl_loss_coef=0.001
        actor_rollout_ref.actor.kl_loss_type=mse,kl
        actor_rollout_ref.actor.entropy_coeff=0.001
        actor_rollout_ref.actor.fsdp_config.param_offload=False,True
        actor_rollout_ref.actor.fsdp_config.optimizer_offload=False,True
        actor_rollout_ref.model.path=Qwen/Qwen2.5-3B-Instruct
        actor_rollout_ref.model.enable_gradient_checkpointing=False,True
        actor_rollout_ref.rollout.name=vllm
        actor_rollout_ref.rollout.response_length=256
        actor_rollout_ref.rollout.tensor_model_parallel_size=1,2
        actor_rollout_ref.rollout.gpu_memory_utilization=0.5
        actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8
        actor_rollout_ref.ref.fsdp_config.param_offload=False,True
    """,
    "Critic": """
        critic.model.path=Qwen/Qwen2.5-3B-Instruct
        critic.ppo_mini_batch_size=32
        critic.ppo_micro_batch_size_per_gpu=8
    """,
}
"""By section of the guide: its keys in its spelling, each with the values to try."""

MACHINES = {
    "a CPU, `trainer.device=cpu`": (Machine(cuda_devices=0, cores=2), "cpu"),
    "one GPU": (Machine(cuda_devices=1, cores=8), "auto"),
}
_BASE = {
    "model.path": "m",
    "data.train_files": "a.json",
    "agent.reward_name": "math",
    "data.train_batch_size": 64,
    "trainer.logger": "[wandb]",
}
CONTEXTS: tuple[dict[str, object], ...] = (
    {},
    {"agent.agent_type": "react"},
    {"algorithm.adv_estimator": "grpo", "agent.num_chains": 8},
    {"algorithm.use_kl_in_reward": True},
    {"algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.type": "adaptive"},
    {"rollout.vllm_python": "/opt/vllm/bin/python"},
    {"rollout.name": "vllm", "rollout.vllm_python": "/opt/vllm/bin/python"},
    {"rollout.name": "vllm", "rollout.servers": "[http://10.0.0.5:8000]"},
    {"rollout.servers": "[http://10.0.0.5:8000]"},
    {"ray_kwargs.ray_init.address": "auto"},
    {"trainer.resume_mode": "resume_path"},
    {"trainer.resume_from_path": "runs/RUN/checkpoints/step_000050"},
)
"""Settings under which a key may have an effect that it has not by itself."""


class Row(NamedTuple):
    """One value of a key, and what becomes of it on each machine."""

    section: str
    keys: tuple[str, ...]
    here: str
    value: str
    verdicts: tuple[str, ...]


@cache
def rows() -> list[Row]:
    """All of them, those of one meaning once."""
    found: dict[tuple[str, str], Row] = {}
    for section, key, value in _values():
        here = canonical_key(key, None)
        row = Row(section, (key,), here, value, tuple(verdicts(key, value)))
        same = found.get((here, value), row)  # a key that the guide spells in two ways
        assert same.verdicts == row.verdicts, f"{key} is not what {same.keys} is"
        found[here, value] = row._replace(keys=tuple(dict.fromkeys((*same.keys, key))))
    return list(found.values())


def _values() -> Iterator[tuple[str, str, str]]:
    """Section, key and value."""
    for section, text in GUIDE.items():
        for line in text.split():
            key, _, values = line.partition("=")
            for value in re.findall(r"\[[^]]*\]|[^,]+", values):
                yield section, key, value


def verdicts(key: str, value: str) -> Iterator[str]:
    """What becomes of a value on each machine: the best of all contexts."""
    here = canonical_key(key, None)
    for machine, device in MACHINES.values():
        first, best = "", ""
        for context in CONTEXTS:
            if here not in context and not best.startswith("works"):
                found = _verdict(key, here, value, machine, context | {"trainer.device": device})
                first = first or found
                best = min(best or found, found, key=_rank)
        plain = best == first or first.startswith("works")
        yield best if plain else f"{best} ({first})"


def _rank(verdict: str) -> int:
    return ("works", "native", "unused", "refused").index(verdict.partition(":")[0])


def _verdict(key: str, here: str, value: str, machine: Machine, context: dict[str, object]) -> str:
    base = {k: v for k, v in (_BASE | context).items() if k != here}
    words = [f"{k}={v}" for k, v in base.items()]
    try:
        resolved = resolve("rl", [*words, f"{key}={value}"], machine=machine)
    except ConfigError as error:
        told = next(
            (line for line in str(error).splitlines() if here in line or key in line), str(error)
        )
        return f"refused: {told.split('): ', 1)[-1]}"
    if here in resolved.unused:
        return f"unused: {resolved.unused[here]}"
    asked = here == "rollout.name" and value != "native"
    replaced = asked and resolved.config.rollout.name == "native"
    return "native: with a warning, where no vLLM is named" if replaced else "works"


def page() -> str:
    """The page as it stands in the documents."""
    lines = [
        "# Keys of the agent-RL guide",
        "",
        "Each key of the guide with its values, and what `tutelage train rl` makes of it: it",
        "**works**, is **unused** (with the reason) or **refused** (with the way on), or the",
        "**native** engine takes the place of another one; in brackets what it is by itself.",
        "`python tests/docs/guide_keys.py` writes this page; a test compares it.",
    ]
    for section in GUIDE:
        values: dict[Row, list[str]] = {}  # one row for the values that fare alike
        for row in rows():
            if row.section == section:
                values.setdefault(row._replace(value=""), []).append(f"`{row.value}`")
        works, table = list[str](), list[str]()
        for row, alike in values.items():
            keys, found = ", ".join(f"`{key}`" for key in row.keys), ", ".join(alike)
            here = "" if (row.here,) == row.keys else f"`{row.here}`"
            if set(row.verdicts) == {"works"}:
                works.append(f"{keys}{here and f' (here {here})'}: {found}")
            else:
                cells = (keys, here or "the same", found, *row.verdicts)
                table.append(f"| {' | '.join(cells)} |")
        lines += ["", f"## {section}", ""]
        lines += wrap(f"These work on both: {'; '.join(works)}.", 118, break_on_hyphens=False)
        if table:
            head = " | ".join(f"on {name}" for name in MACHINES)
            lines += ["", f"| key | here | value | {head} |"]
            lines += ["|---|---|---|" + "---|" * len(MACHINES), *table]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
