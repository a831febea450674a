"""Layers, origins, conflicts and what is derived."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.in_one_item import in_one_item

from tutelage.algorithms.extensions import METHOD_DEFAULTS, METHODS
from tutelage.config import Machine, Resolved
from tutelage.errors import ConfigError
from tutelage.runs.inputs import load_tasks
from tutelage.tasks.word_problems import LEVELS
from tutelage.weights.config import resolve

LAPTOP = Machine(cuda_devices=0, cores=2)


def math(*overrides: str, **options: Any) -> Resolved:
    return resolve("math", overrides, machine=LAPTOP, **options)


@in_one_item(
    ("devices", "overrides", "correction", "origin"),
    [
        (0, (), "none", "default"),
        (0, ("model.dtype=bfloat16",), "token_tis", "derived from model.dtype"),
        (0, ("model.dtype=bfloat16", "rollout.correction=none"), "none", "override"),
        (0, ("model.dtype=bfloat16", "algorithm.name=sft"), "none", "default"),
        (1, (), "token_tis", "derived from model.dtype"),
        (1, ("model.dtype=float32",), "none", "default"),
        (1, ("trainer.device=cpu",), "none", "default"),
    ],
)
def test_rounding_between_sampler_and_trainer_is_corrected_unless_a_key_says_how(
    devices: int, overrides: tuple[str, ...], correction: str, origin: str
) -> None:
    own = ("data.train_files=tasks.jsonl", "agent.reward_name=math_reward_string_equal")
    recipes = {"math": (), "rl": own}
    if "algorithm.name=sft" in overrides:
        del recipes["rl"]
    for recipe, needed in recipes.items():
        machine = Machine(cuda_devices=devices, cores=2)
        resolved = resolve(recipe, (*needed, *overrides), machine=machine)
        assert resolved.config.rollout.correction == correction
        assert resolved.origin["rollout.correction"] == origin


@in_one_item(
    ("devices", "overrides", "dtype"),
    [(0, (), "float32"), (0, ("model.dtype=bfloat16",), "bfloat16"), (1, (), "bfloat16")],
)
def test_word_problems_train_in_float32_on_a_cpu(
    devices: int, overrides: tuple[str, ...], dtype: str
) -> None:
    machine = Machine(cuda_devices=devices, cores=2)
    assert resolve("word-problems", overrides, machine=machine).config.model.dtype == dtype


def test_a_level_of_another_recipe_is_refused_with_those_that_there_are() -> None:
    steps = {"default": 24, "full": 96}
    for level, number in steps.items():
        config = resolve("word-problems", flags={"level": level}, machine=LAPTOP).config
        assert config.trainer.total_training_steps == number
        assert {str(t.fields["family"]) for t in load_tasks(config).test} == {*LEVELS[level]}
    for recipe, level, known in (("word-problems", "hard", "full"), ("math", "full", "hard")):
        with pytest.raises(ConfigError, match=f"'{level}' .flag --level.*Use default or {known}"):
            resolve(recipe, flags={"level": level, "algorithm": "grpo"}, machine=LAPTOP)


def test_origins() -> None:
    resolved = math(
        "actor_rollout_ref.actor.entropy_coeff=0.01",
        "rollout.slots=8",
        flags={"steps": 3, "seed": None, "max_turns": "2"},
    )
    assert resolved.origin["seed"] == "default"
    assert resolved.origin["recipe"] == "train math"
    assert resolved.origin["rollout.max_len"] == "preset math/default"
    assert resolved.origin["trainer.total_training_steps"] == "flag --steps"
    assert resolved.origin["agent.max_turns"] == "flag --max-turns"
    assert resolved.origin["rollout.slots"] == "override"
    said = resolved.origin["actor.entropy_coeff"]
    assert said == "override actor_rollout_ref.actor.entropy_coeff"
    assert resolved.config.agent.max_turns == 2


def test_recipe_cannot_be_contradicted() -> None:
    with pytest.raises(ConfigError, match=r"'math' \(train math\), 'rl' \(recipe\)"):
        math("recipe=rl")
    assert math("recipe=math").config.recipe == "math"


class TestConflicts:
    def test_spellings_agree_by_typed_value(self) -> None:
        resolved = math("lr='3e-4'", "learning_rate=0.0003", flags={"lr": "3e-4"})
        assert resolved.config.actor.optim.lr == 3e-4

    def test_disagreeing_name_both(self) -> None:
        with pytest.raises(ConfigError, match=r"0\.0002 \(learning_rate\), 0\.0001 \(lr\)"):
            math("lr=1e-4", flags={"learning_rate": 2e-4})
        with pytest.raises(ConfigError, match=r"'vllm' \(rollout.name\), 'native'"):
            math("rollout.name=vllm", "agent.backend=native")

    def test_of_the_same_override_the_last_counts(self) -> None:
        """As in Hydra; also where a method stands for several keys."""
        resolved = math("lr=x", "algorithm=dr_grpo", "lr=1e-4", "algorithm=grpo", "lr=2e-4")
        assert resolved.config.actor.optim.lr == 2e-4
        assert resolved.config.algorithm.norm_adv_by_std_in_grpo
        assert not math("algorithm=grpo", "algorithm=dr_grpo").config.actor.use_kl_loss
        with pytest.raises(ConfigError, match=r"0\.0003 \(lr\)"):
            math("lr=1e-4", "lr=3e-4", "actor.optim.lr=2e-4")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("lerning_rate=1", r"lerning_rate=1 .*unknown.*'learning_rate'"),
        ("zzqqxx=1", r"unknown key\. `tutelage config` lists every key"),
        ("algorithm.adv_estimator=grppo", "Did you mean 'grpo'"),
        ("trainer.logger=[console,wandbb]", "Did you mean 'wandb'"),
        ("algorithm=react", r"Did you mean agent\.agent_type=react"),
        ("lr=-1", "a number, above 0"),
        ("~lr", "deletes a key, which is not supported"),
    ],
)
def test_mistakes(given: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        math(given)


def test_all_mistakes_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        math("lerning_rate=1", "agent.max_turns=x", "rollout.slots=0", flags={"steps": "ten"})
    message = str(caught.value)
    parts = ("4 problems", "lerning_rate", "agent.max_turns", "rollout.slots", "flag --steps")
    assert all(part in message for part in parts)
    with pytest.raises(ConfigError, match=r"\(flag --minutes\): expected a number, above 0\."):
        math(flags={"minutes": "null"})  # a key takes null, and an option is left out


class TestMethods:
    @pytest.mark.parametrize("name", [n for n in METHODS if n not in METHOD_DEFAULTS])
    def test_a_name_is_its_estimator_and_its_loss(self, name: str) -> None:
        written = [f"{key}={value}" for key, value in METHODS[name].items()]
        assert math(f"algorithm={name}").config == math(*written).config
        assert math(flags={"algorithm": name}).config == math(*written).config

    def test_ppo_has_a_critic_and_a_loss_takes_groups(self) -> None:
        assert math("algorithm=ppo").config.algorithm.adv_estimator == "gae"
        gspo = math("algorithm=gspo").config
        assert gspo.algorithm.adv_estimator == "grpo"
        assert gspo.actor.policy_loss.loss_mode == "gspo"
        assert gspo.actor.loss_agg_mode == math("loss_mode=gspo").config.actor.loss_agg_mode

    @pytest.mark.parametrize("recipe", ["math", "rl"])
    def test_what_goes_with_a_method_gives_way_to_the_user(self, recipe: str) -> None:
        own = [] if recipe == "math" else ["model=m", "train=a.jsonl", "reward=math"]
        dapo = resolve(recipe, [*own, "algorithm=dapo"], machine=LAPTOP)
        assert dapo.config.algorithm.filter_groups.enable
        assert not dapo.config.actor.use_kl_loss
        assert dapo.origin["actor.clip_ratio_high"] == "algorithm dapo"
        own += ["actor.clip_ratio_high=0.3"]
        changed = resolve(recipe, own, flags={"algorithm": "dapo"}, machine=LAPTOP)
        assert changed.config.actor.clip_ratio_high == 0.3
        plain = math("algorithm=dr_grpo").config
        assert not plain.algorithm.norm_adv_by_std_in_grpo
        assert plain.actor.loss_agg_mode == "seq-mean-token-sum-norm"

    def test_a_key_that_says_otherwise_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"set twice.*gae.*rloo"):
            math("adv_estimator=rloo", flags={"algorithm": "ppo"})
        with pytest.raises(ConfigError, match="demonstrations only"):
            resolve("sft", ["algorithm=grpo", "train=a.jsonl"], machine=LAPTOP)


class TestPresets:
    def test_level_and_algorithm(self) -> None:
        resolved = math(flags={"level": "hard"})
        assert resolved.config.data.level == "hard"
        assert resolved.origin["rollout.max_len"] == "preset math/hard"
        resolved = math("algorithm=sft")
        assert resolved.config.sft.mixed_steps == 0
        assert resolved.origin["sft.mixed_steps"] == "preset math/default/sft"
        with pytest.raises(ConfigError, match="rewards only"):
            resolve("rl", ["algorithm=sft"], machine=LAPTOP)


class TestFile:
    def test_json_and_toml(self, tmp_path: Path) -> None:
        as_json, as_toml = tmp_path / "c.json", tmp_path / "c.toml"
        as_json.write_text(json.dumps({"actor": {"optim": {"lr": 1e-3}}, "rollout.slots": 4}))
        as_toml.write_text("[actor.optim]\nlr = 1e-3\n[rollout]\nslots = 4\n")
        for path in (as_json, as_toml):
            resolved = math("rollout.slots=5", file=path)
            assert resolved.config.actor.optim.lr == 1e-3
            assert resolved.origin["actor.optim.lr"] == f"file {path.name}"
            assert resolved.config.rollout.slots == 5

    @pytest.mark.parametrize("text", ["{", "[1]", '{"actor": {"lerning_rate": 1}}'])
    def test_broken(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "c.json"
        path.write_text(text)
        with pytest.raises(ConfigError):
            math(file=path)


class TestEngine:
    @pytest.mark.parametrize(
        "overrides",
        [
            ("rollout.name=vllm",),
            ("agent.backend=async_verl",),
            ("agent.init_args.backend=async_verl", "actor_rollout_ref.rollout.name=vllm"),
        ],
    )
    def test_vllm_becomes_native(self, overrides: tuple[str, ...]) -> None:
        resolved = math(*overrides)
        assert resolved.config.rollout.name == "native"
        assert len(resolved.warnings) == 1
        assert "vLLM is not available" in resolved.warnings[0]
        assert "vllm" in resolved.origin["rollout.name"]

    @pytest.mark.parametrize(
        "place", ["rollout.servers=[http://10.0.0.5:8000]", "rollout.vllm_python=/opt/vllm/python"]
    )
    def test_a_vllm_elsewhere_is_used(self, place: str) -> None:
        resolved = math("actor_rollout_ref.rollout.name=vllm", place)
        assert resolved.config.rollout.name == "vllm"
        assert not resolved.warnings
        assert not {"rollout.servers", "rollout.vllm_python"} & set(resolved.unused)

    def test_a_micro_batch_is_larger_on_a_gpu(self) -> None:
        one, key = Machine(cuda_devices=1, cores=8), "actor.max_tokens_per_micro_batch"
        given = ((), ("trainer.device=cpu",), (f"{key}=2048",))
        found = [resolve("math", keys, machine=one) for keys in given]
        assert [r.config.actor.max_tokens_per_micro_batch for r in found] == [8192, 2048, 2048]
        assert found[0].origin[key] == "derived from trainer.device"

    def test_a_server_of_the_runs_own_on_its_gpu_is_refused(self) -> None:
        keys = ["rollout.name=vllm", "rollout.vllm_python=/opt/vllm/python"]
        with pytest.raises(ConfigError, match="would share the GPU"):
            resolve("math", keys, machine=Machine(cuda_devices=1, cores=8))
        keys[1] = "rollout.servers=[http://10.0.0.5:8000]"
        resolved = resolve("math", keys, machine=Machine(cuda_devices=1, cores=8))
        assert resolved.config.rollout.name == "vllm"


class TestDerived:
    @pytest.mark.parametrize("estimator", ["gae", "reinforce_plus_plus", "remax"])
    def test_single_rollout(self, estimator: str) -> None:
        resolved = math(f"algorithm.adv_estimator={estimator}")
        assert resolved.config.agent.num_chains == 1
        assert resolved.origin["agent.num_chains"] == "derived from algorithm.adv_estimator"
        assert math(f"adv_estimator={estimator}", "num_chains=3").config.agent.num_chains == 3


@in_one_item(
    ("overrides", "schedule", "correction"),
    [
        ((), "free", "token_tis"),
        (("rollout.correction=icepop",), "free", "icepop"),
        (("async_training.staleness_threshold=0",), "deterministic", "none"),
        (("algorithm.name=sft",), "deterministic", "none"),
    ],
)
def test_rollouts_ahead_of_their_step_are_played_freely_and_corrected(
    overrides: tuple[str, ...], schedule: str, correction: str
) -> None:
    known = () if "staleness" in str(overrides) else ("async_training.staleness_threshold=2",)
    resolved = math(*known, *overrides)
    assert resolved.config.rollout.schedule == schedule
    assert resolved.config.rollout.correction == correction
    if schedule == "free":
        origin = resolved.origin["rollout.schedule"]
        assert origin == "derived from async_training.staleness_threshold"
