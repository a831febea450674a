"""Keys without effect are listed when someone sets them, and only then."""

from tests.in_one_item import in_one_item

from tutelage.algorithms.extensions import ESTIMATORS, LOSSES
from tutelage.config import Machine
from tutelage.config.keys import leaf_fields, section_names
from tutelage.weights.config import resolve

LAPTOP = Machine(cuda_devices=0, cores=2)


@in_one_item(
    ("overrides", "unused"),
    [
        (("rollout.gpu_memory_utilization=0.5",), "rollout.gpu_memory_utilization"),
        (("rollout.tensor_model_parallel_size=1",), "rollout.tensor_model_parallel_size"),
        (
            ("rollout.log_prob_micro_batch_size_per_gpu=4",),
            "rollout.log_prob_micro_batch_size_per_gpu",
        ),
        (("critic.model.path=x",), "critic.model.path"),
        (("trainer.critic_warmup=3",), "trainer.critic_warmup"),
        (("algorithm.kl_ctrl.kl_coef=0.1",), "algorithm.kl_ctrl.kl_coef"),
        (
            ("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.horizon=5"),
            "algorithm.kl_ctrl.horizon",
        ),
        (("actor.kl_loss_coef=0.1",), "actor.kl_loss_coef"),
        (("algorithm.gamma=0.9",), "algorithm.gamma"),
        (("algorithm.lam=0.9",), "algorithm.lam"),
        (("actor.clip_ratio=0.1",), "actor.clip_ratio"),
        (("actor.policy_loss.loss_mode=gspo", "actor.clip_ratio_c=4"), "actor.clip_ratio_c"),
        (("rollout.correction_cap=3",), "rollout.correction_cap"),
        (("model=x", "model.size=s"), "model.size"),
        (("model=x", "sft.lr=1e-3"), "sft.lr"),
        (("train=x.json", "level=hard"), "data.level"),
        (("agent.use_agent=false", "agent.tools=[a]"), "agent.tools"),
        (("actor.policy_loss.tau_pos=2",), "actor.policy_loss.tau_pos"),
        (("actor.policy_loss.clip_cov_ub=2",), "actor.policy_loss.clip_cov_ub"),
        (("actor.policy_loss.ppo_kl_coef=2",), "actor.policy_loss.ppo_kl_coef"),
        (
            ("algorithm.filter_groups.max_num_gen_batches=2",),
            "algorithm.filter_groups.max_num_gen_batches",
        ),
        (("ref.path=x",), "ref.path"),
        (("steps=3", "epochs=1"), "trainer.total_epochs"),
        (("trainer.project_name=p",), "trainer.project_name"),
        (("algorithm=sft", "lr=1e-3"), "actor.optim.lr"),
        (("actor.fsdp_config.param_offload=true",), "actor.fsdp_config.param_offload"),
        (("trainer.nnodes=1",), "trainer.nnodes"),
        (("critic.ppo_mini_batch_size=5",), "critic.ppo_mini_batch_size"),
        (("actor.fsdp_config.optimizer_offload=true",), "actor.fsdp_config.optimizer_offload"),
    ],
)
def test_listed(overrides: tuple[str, ...], unused: str) -> None:
    resolved = resolve("math", overrides, machine=LAPTOP)
    assert list(resolved.unused) == [unused]
    assert resolved.unused[unused]


@in_one_item(
    "overrides",
    [
        ("adv_estimator=gae", "algorithm.gamma=0.9", "algorithm.lam=0.9", "critic.model.path=x"),
        ("actor.use_kl_loss=true", "actor.kl_loss_coef=0.1"),
        ("model.size=s", "sft.lr=1e-3", "level=hard"),
        ("steps=3", "minutes=1"),
        ("algorithm=sft", "sft.lr=1e-3"),
    ],
)
def test_not_listed(overrides: tuple[str, ...]) -> None:
    resolved = resolve("math", overrides, machine=LAPTOP)
    assert resolved.unused == {}


@in_one_item("name", [*ESTIMATORS, *LOSSES])
def test_what_an_estimator_or_a_loss_reads_is_a_key(name: str) -> None:
    entry = ESTIMATORS[name] if name in ESTIMATORS else LOSSES[name]
    given = ("selection_BT", "generator")  # by the trainer
    read = [key for key in entry.config_keys if key.rpartition(".")[2] not in given]
    for key in (*read, *entry.defaults):
        assert key in leaf_fields() or key.removesuffix(".") in section_names(), key


def test_deadlines_are_for_agents_of_the_users() -> None:
    keys = ("agent.timeout=5", "agent.group_deadline=3")
    unused = resolve("math", keys, machine=Machine(cuda_devices=0, cores=2)).unused
    assert {*unused} == {"agent.timeout", "agent.group_deadline"}
    assert "limited by agent.max_turns" in unused["agent.timeout"]
    own = resolve("math", keys, machine=Machine(cuda_devices=0, cores=2), own_agent=True)
    assert not {"agent.timeout", "agent.group_deadline"} & {*own.unused}
