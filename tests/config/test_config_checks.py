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


def refusal(*overrides: str, recipe: str = "math", **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(recipe, overrides, **({"machine": LAPTOP} | options))
    return str(caught.value)


def accepted(*overrides: str, **options: Any) -> Resolved:
    return resolve("math", overrides, **({"machine": LAPTOP} | options))


@in_one_item(
    ("override", "key"),
    [
        ("rollout.top_p=0.9", "rollout.top_p=0.9"),
        ("rollout.top_k=5", "rollout.top_k=5"),
        ("actor.ulysses_sequence_parallel_size=2", "actor.ulysses_sequence_parallel_size=2"),
    ],
)
def test_what_is_not_built_is_refused(override: str, key: str) -> None:
    message = refusal(override)
    assert key in message
    assert "not supported yet" in message
    assert "Use " in message


@in_one_item(
    "override",
    [
        "actor.fsdp_config.param_offload=true",
        "actor.fsdp_config.optimizer_offload=true",
        "ref.fsdp_config.param_offload=true",
    ],
)
def test_gpu_memory_keys(override: str) -> None:
    message = refusal(override, machine=ONE_GPU)
    assert "only a model sharded over several ranks can be offloaded" in message
    key = override.partition("=")[0]
    assert key in accepted(override).unused
    accepted(override, machine=Machine(cuda_devices=2, cores=8, ranks=2))


@in_one_item(
    ("override", "reason"),
    [
        ("algorithm.adv_estimator=remax", "greedy rollout"),
        ("algorithm.filter_groups.enable=true", "cannot be replaced"),
        ("rollout.schedule=deterministic", "wait for the slowest"),
        ("rollout.correction=none", "importance weights"),
        ("agent.placement=ray", "cannot update weights during rollouts"),
    ],
)
def test_what_rollouts_ahead_of_their_step_cannot_give(override: str, reason: str) -> None:
    message = refusal("async_training.staleness_threshold=2", override)
    assert override.partition("=")[0] in message
    assert reason in message
    assert "async_training.staleness_threshold=0" in message
    accepted("async_training.staleness_threshold=0", override)


def test_an_agent_that_plays_in_another_thread_is_not_played_ahead() -> None:
    message = refusal("async_training.staleness_threshold=2", own_agent=True)
    assert "partly updated" in message
    accepted("async_training.staleness_threshold=0", own_agent=True)
    ranks = Machine(cuda_devices=0, cores=2, ranks=2)
    assert "training with several ranks is not supported" in refusal(
        "async_training.staleness_threshold=2", machine=ranks
    )


@in_one_item("override", ["agent.backend=openai", "rollout.name=openai"])
def test_an_endpoint_is_refused_because_nothing_would_be_trained(override: str) -> None:
    message = refusal(override)
    assert "the weights of a model at an endpoint cannot be trained" in message
    assert "tutelage train prompt" in message


def test_a_gpu_by_its_number_is_refused_with_the_way_to_take_it() -> None:
    for machine in (LAPTOP, EIGHT_GPUS):
        message = refusal("trainer.device=cuda:1", machine=machine)
        assert "Use CUDA_VISIBLE_DEVICES=1 and trainer.device=cuda" in message
    assert "no CUDA device is available. Use trainer.device=cpu." in refusal("trainer.device=cuda")
    assert "CUDA_VISIBLE" not in refusal("trainer.device=gpu")


def test_the_number_of_gpus_is_resolved() -> None:
    here = accepted(machine=EIGHT_GPUS)
    assert here.config.trainer.n_gpus_per_node == 1
    assert here.notes["trainer.n_gpus_per_node"] == "one of the 8 here is used"
    for none in (accepted(), accepted("trainer.device=cpu", machine=EIGHT_GPUS)):
        assert none.config.trainer.n_gpus_per_node is None
        assert "on the CPU" in none.notes["trainer.n_gpus_per_node"]


@in_one_item(
    "override",
    ["trainer.nnodes=2", "trainer.n_gpus_per_node=1", "rollout.tensor_model_parallel_size=2"],
)
def test_devices_that_are_not_there(override: str) -> None:
    message = refusal(override)
    assert "than available" in message
    assert "trainer.device=cpu" in message
    resolved = accepted(override, "trainer.device=cpu")
    assert "CPU" in resolved.unused[override.partition("=")[0]]


def test_devices_that_are_there_and_not_built() -> None:
    message = refusal("trainer.n_gpus_per_node=4", machine=EIGHT_GPUS)
    assert "torchrun --nproc-per-node=4 -m tutelage" in message
    assert "not supported yet" in refusal(
        "rollout.tensor_model_parallel_size=2", machine=EIGHT_GPUS
    )
    two_nodes = Machine(cuda_devices=8, cores=64, nodes=2, ranks=4)
    assert "torchrun --nnodes=1" in refusal("trainer.nnodes=1", machine=two_nodes)
    assert "torchrun started 4 here" in refusal("trainer.n_gpus_per_node=8", machine=two_nodes)
    for override in ("trainer.nnodes=2", "trainer.n_gpus_per_node=4"):
        config = accepted(override, machine=two_nodes).config
        assert (config.trainer.nnodes, config.trainer.n_gpus_per_node) == (2, 4)
    accepted("trainer.n_gpus_per_node=1", machine=EIGHT_GPUS)


def test_cuda_without_a_gpu() -> None:
    assert "trainer.device='cuda'" in refusal("trainer.device=cuda")
    accepted("trainer.device=cuda", machine=ONE_GPU)


def test_mini_batch_must_divide() -> None:
    message = refusal("actor.ppo_mini_batch_size=60")
    for part in ("actor.ppo_mini_batch_size=60", "128 rollouts", "actor.ppo_mini_batch_size=32"):
        assert part in message
    assert "ppo_mini_batch_size=128" in refusal("actor.ppo_mini_batch_size=256")
    accepted("actor.ppo_mini_batch_size=64")


def test_critic_mini_batch_counts_only_with_a_critic() -> None:
    assert "critic.ppo_mini_batch_size" in refusal(
        "adv_estimator=gae", "critic.ppo_mini_batch_size=5"
    )
    assert "critic.ppo_mini_batch_size" in accepted("critic.ppo_mini_batch_size=5").unused


@in_one_item(
    "estimator",
    [
        "grpo",
        "rloo",
        "reinforce_plus_plus_baseline",
        "opo",
        "gpg",
        "grpo_passk",
        "maxrl",
        "best_of_n",
        "advantage_filtered",
    ],
)
def test_groups_of_one(estimator: str) -> None:
    asked = (f"adv_estimator={estimator}", "num_chains=1")
    assert "every advantage would be 0" in refusal(*asked)
    if estimator not in ("grpo_passk", "maxrl", "best_of_n"):
        accepted(*asked, "algorithm.single_member=verl")


def test_greedy_training() -> None:
    assert "rollout.temperature=0.0" in refusal("temperature=0")
    accepted("temperature=0", "algorithm=sft")


@in_one_item(
    ("switch", "coefficient"),
    [
        ("actor.use_kl_loss", "actor.kl_loss_coef"),
        ("algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef"),
    ],
)
def test_kl_with_coefficient_zero(switch: str, coefficient: str) -> None:
    message = refusal(f"{switch}=true", f"{coefficient}=0")
    assert f"{coefficient}=0.0" in message
    assert f"{switch}=false" in message
    accepted(f"{switch}=false", f"{coefficient}=0")


@in_one_item(("kind", "warned"), [("kl", 1), ("k1", 1), ("kl+", 0), ("mse", 0)])
def test_kl_without_gradient_is_warned_of(kind: str, warned: int) -> None:
    resolved = accepted("actor.use_kl_loss=true", f"actor.kl_loss_type={kind}")
    assert len(resolved.warnings) == warned


def test_a_run_must_end() -> None:
    assert "never end" in refusal("trainer.total_training_steps=null")
    accepted("trainer.total_training_steps=null", "algorithm=sft")


def test_recipe_rl_brings_nothing_of_its_own() -> None:
    message = refusal("adv_estimator=grpo", recipe="rl")
    assert "data.train_files" in message
    assert "agent.reward_name" in message


def test_the_code_agent_calls_no_tools() -> None:
    message = refusal("agent.agent_type=code", "agent.tools=[calculator,python_executor]")
    assert "'calculator'" in message
    assert "agent.tools=[python_executor]" in message
    accepted("agent.agent_type=code", "agent.tools=[python_executor]")
    accepted("agent.agent_type=code")


def test_gui_is_refused() -> None:
    message = refusal("agent.agent_type=gui")
    assert "agent.agent_type='gui'" in message
    assert "Use one of hf, react, code" in message


def test_resume() -> None:
    assert "resume_from_path" in refusal("trainer.resume_mode=resume_path")
    assert "would ignore it" in refusal("trainer.resume_from_path=x")
    accepted("trainer.resume_mode=resume_path", "trainer.resume_from_path=x")


def test_answer_must_fit_the_context() -> None:
    assert "rollout.max_len" in refusal("rollout.response_length=2000")
    accepted("rollout.response_length=2000", "rollout.max_len=4000")


def test_a_warm_up_that_never_ends() -> None:
    asked = ("adv_estimator=gae", "trainer.critic_warmup=5")
    assert "never be trained" in refusal(*asked, "steps=5")
    accepted(*asked, "steps=6")
    accepted("steps=5", "trainer.critic_warmup=5")  # no critic: listed as unused


def test_a_selection_that_selects_nothing() -> None:
    keys = ("actor.policy_loss.clip_cov_lb=6",)
    assert "no token could be selected" in refusal(*keys, "actor.policy_loss.loss_mode=clip_cov")
    accepted(*keys)


def test_the_critics_optimizer_batch_must_divide_the_batch() -> None:
    asked = ("adv_estimator=gae", "critic.ppo_mini_batch_size=7")
    assert "critic.ppo_mini_batch_size=7" in refusal(*asked)
    accepted("critic.ppo_mini_batch_size=7")
