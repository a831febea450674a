"""What stops a run before it starts: each with key, value, reason and fix."""

from typing import Any

import pytest
from tests.in_one_item import in_one_item

from tutelage.config import Machine, Resolved
from tutelage.errors import ConfigError
from tutelage.weights.config import resolve

LAPTOP = Machine(cuda_devices=0, cores=2)
ONE_GPU = Machine(cuda_devices=1, cores=8)
EIGHT_GPUS = Machine(cuda_devices=8, cores=64)
TWO_NODES = Machine(cuda_devices=8, cores=64, nodes=2, ranks=4)
AHEAD = "async_training.staleness_threshold=2"
GAE = "adv_estimator=gae"


def refusal(*overrides: str, recipe: str = "math", **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(recipe, overrides, **({"machine": LAPTOP} | options))
    return str(caught.value)


def accepted(*overrides: str, **options: Any) -> Resolved:
    return resolve("math", overrides, **({"machine": LAPTOP} | options))


@in_one_item(
    ("wrong", "told", "right"),
    [
        ("rollout.top_p=0.9", ("rollout.top_p=0.9", "not supported yet. Use "), ""),
        ("rollout.top_k=5", ("rollout.top_k=5", "not supported yet. Use "), ""),
        (
            "actor.ulysses_sequence_parallel_size=2",
            ("actor.ulysses_sequence_parallel_size=2", "not supported yet. Use "),
            "",
        ),
        (
            "agent.backend=openai",
            ("the weights of a model at an endpoint cannot be trained", "tutelage train prompt"),
            "",
        ),
        ("trainer.device=cuda", ("trainer.device='cuda'", "Use trainer.device=cpu."), ""),
        (
            "actor.ppo_mini_batch_size=60",
            ("actor.ppo_mini_batch_size=60", "128 rollouts", "Use actor.ppo_mini_batch_size=32."),
            "actor.ppo_mini_batch_size=64",
        ),
        ("actor.ppo_mini_batch_size=256", ("ppo_mini_batch_size=128",), ""),
        (f"{GAE} critic.ppo_mini_batch_size=5", ("critic.ppo_mini_batch_size=5",), ""),
        ("temperature=0", ("rollout.temperature=0.0",), "temperature=0 algorithm=sft"),
        (
            "trainer.total_training_steps=null",
            ("never end",),
            "trainer.total_training_steps=null algorithm=sft",
        ),
        (
            "agent.agent_type=code agent.tools=[calculator,python_executor]",
            ("'calculator'", "agent.tools=[python_executor]"),
            "agent.agent_type=code agent.tools=[python_executor]",
        ),
        ("trainer.resume_mode=resume_path", ("Set both, or neither",), ""),
        (
            "trainer.resume_from_path=x",
            ("Set both, or neither",),
            "trainer.resume_mode=resume_path trainer.resume_from_path=x",
        ),
        (
            "rollout.response_length=2000",
            ("rollout.max_len",),
            "rollout.response_length=2000 rollout.max_len=4000",
        ),
        (
            f"{GAE} trainer.critic_warmup=5 steps=5",
            ("never be trained",),
            f"{GAE} trainer.critic_warmup=5 steps=6",
        ),
        (
            "actor.policy_loss.clip_cov_lb=6 loss_mode=clip_cov",
            ("no token could be selected",),
            "actor.policy_loss.clip_cov_lb=6",
        ),
        *(
            (
                f"{AHEAD} {override}",
                (override.partition("=")[0], reason, "async_training.staleness_threshold=0"),
                f"async_training.staleness_threshold=0 {override}",
            )
            for override, reason in (
                ("algorithm.adv_estimator=remax", "greedy rollout"),
                ("algorithm.filter_groups.enable=true", "cannot be replaced"),
                ("rollout.schedule=deterministic", "wait for the slowest"),
                ("rollout.correction=none", "importance weights"),
                ("agent.placement=ray", "cannot update weights during rollouts"),
            )
        ),
        *(
            (
                f"adv_estimator={estimator} num_chains=1",
                ("every advantage would be 0",),
                f"adv_estimator={estimator} num_chains={learns}",
            )
            for estimator, learns in {
                **dict.fromkeys(
                    ("grpo", "rloo", "reinforce_plus_plus_baseline", "opo", "gpg"),
                    "1 algorithm.single_member=verl",
                ),
                **dict.fromkeys(("grpo_passk", "maxrl", "best_of_n"), "2"),
                "advantage_filtered": "1 algorithm.single_member=verl",
            }.items()
        ),
    ],
)
def test_refused_with_key_and_fix(wrong: str, told: tuple[str, ...], right: str) -> None:
    message = refusal(*wrong.split())
    assert [part for part in told if part not in message] == []
    accepted(*right.split())


@in_one_item(
    ("override", "machine", "told"),
    [
        ("rollout.tensor_model_parallel_size=2", EIGHT_GPUS, "not supported yet"),
        ("trainer.n_gpus_per_node=4", EIGHT_GPUS, "torchrun --nproc-per-node=4 -m tutelage"),
        ("trainer.nnodes=1", TWO_NODES, "torchrun --nnodes=1"),
        ("trainer.n_gpus_per_node=8", TWO_NODES, "torchrun started 4 here"),
        (AHEAD, Machine(0, 2, ranks=2), "training with several ranks is not supported"),
        *(
            (f"{key}=true", ONE_GPU, "only a model sharded over several ranks can be offloaded")
            for key in (
                "actor.fsdp_config.param_offload",
                "actor.fsdp_config.optimizer_offload",
                "ref.fsdp_config.param_offload",
            )
        ),
    ],
)
def test_refused_on_a_machine(override: str, machine: Machine, told: str) -> None:
    assert told in refusal(override, machine=machine)


def test_accepted_on_a_machine() -> None:
    accepted("trainer.device=cuda", machine=ONE_GPU)
    accepted("trainer.n_gpus_per_node=1", machine=EIGHT_GPUS)
    for override in ("trainer.nnodes=2", "trainer.n_gpus_per_node=4"):
        config = accepted(override, machine=TWO_NODES).config
        assert (config.trainer.nnodes, config.trainer.n_gpus_per_node) == (2, 4)
    offload = "actor.fsdp_config.param_offload=true"
    accepted(offload, machine=Machine(cuda_devices=2, cores=8, ranks=2))
    assert accepted(machine=EIGHT_GPUS).config.trainer.n_gpus_per_node == 1
    for none in (accepted(), accepted("trainer.device=cpu", machine=EIGHT_GPUS)):
        assert none.config.trainer.n_gpus_per_node is None


@in_one_item(
    "override",
    ["trainer.nnodes=2", "trainer.n_gpus_per_node=1", "rollout.tensor_model_parallel_size=2"],
)
def test_devices_that_are_not_there(override: str) -> None:
    assert "trainer.device=cpu trains on the CPU" in refusal(override)
    resolved = accepted(override, "trainer.device=cpu")
    assert "CPU" in resolved.unused[override.partition("=")[0]]


def test_an_agent_that_plays_in_another_thread_is_not_played_ahead() -> None:
    assert "partly updated" in refusal(AHEAD, own_agent=True)
    accepted("async_training.staleness_threshold=0", own_agent=True)


@in_one_item(("kind", "warned"), [("kl", 1), ("k1", 1), ("kl+", 0), ("mse", 0)])
def test_kl_without_gradient_is_warned_of(kind: str, warned: int) -> None:
    resolved = accepted("actor.use_kl_loss=true", f"actor.kl_loss_type={kind}")
    assert len(resolved.warnings) == warned


def test_recipe_rl_brings_nothing_of_its_own() -> None:
    message = refusal("adv_estimator=grpo", recipe="rl")
    assert "data.train_files" in message
    assert "agent.reward_name" in message


@in_one_item(
    ("key", "value", "told"),
    [
        ("store", "postgresql://me:secret@db/x", "contains a password"),
        ("store", "postgresql://me@db/x?password=secret", "contains a password"),
        ("store", "postgresql://db", "not the URL of a PostgreSQL database"),
        ("store", "mysql://me:secret@db/x", "not the URL of a PostgreSQL database"),
        ("store", "runs/store.db", "not the URL of a PostgreSQL database"),
        ("otlp", "localhost:4318", "expected text such as http"),
        ("otlp", "grpc://localhost:4317", "expected text such as http"),
    ],
)
def test_what_is_no_address_or_holds_a_secret(key: str, value: str, told: str) -> None:
    message = refusal(flags={key: value})
    assert told in message
    assert "secret" not in message
    accepted(flags={"store": "postgresql://me@db/x", "otlp": "http://localhost:4318"})
