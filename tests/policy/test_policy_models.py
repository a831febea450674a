"""The fused decoder against transformers: values, gradients, folders; and who gets the fallback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from tests.marks import long
from transformers import AutoModelForCausalLM

from tutelage.errors import ModelError
from tutelage.policy import model as policy_model
from tutelage.policy.hf_model import HFNetwork
from tutelage.policy.model import Policy, build_policy, load_codec, load_policy
from tutelage.policy.network import FusedNetwork
from tutelage.policy.row import Row
from tutelage.policy.weights import DecoderShape, DecoderWeights
from tutelage.testing import tiny_policy
from tutelage.tools.builtin import calculator
from tutelage.types import Message

SMALL: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}
LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32, "rope_theta": 10000.0,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
    "rope_theta": 10000.0,
}  # fmt: skip

FUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2, tied, biases": ("Qwen2Config", {}),
    "qwen2, own head": ("Qwen2Config", {"tie_word_embeddings": False}),
    "qwen2, yarn": ("Qwen2Config", {"rope_parameters": YARN}),
    "qwen3, wide heads, q/k norms": ("Qwen3Config", {"head_dim": 16}),
    "qwen3, biases": ("Qwen3Config", {"head_dim": 8, "num_key_value_heads": 4}),
    "llama, own head, no biases": ("LlamaConfig", {"tie_word_embeddings": False}),
    "llama, one kv head": ("LlamaConfig", {"num_key_value_heads": 1}),
    "llama, scaled positions": ("LlamaConfig", {"rope_parameters": LLAMA3}),
}
FALLBACK: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2, sliding window": (
        "Qwen2Config",
        {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0},
    ),
    "llama, biases everywhere": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama, dynamic positions": (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
    ),
    "llama, another activation": ("LlamaConfig", {"hidden_act": "gelu"}),
}


def random_model(kind: str, options: dict[str, Any]) -> Any:
    """A transformers model with every parameter drawn, norms and biases included."""
    config = getattr(transformers, kind)(**{**SMALL, **options})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(0.2 * noise if parameter.dim() > 1 else parameter + 0.1 * noise)
    return model


def saved(tmp_path: Path, model: Any) -> str:
    """A model folder with the tiny tokenizer."""
    model.save_pretrained(tmp_path / "model")
    tiny_policy().codec.tokenizer.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def rows() -> list[Row]:
    """Ragged rows, two of one prompt, with observations in between."""
    generator = torch.Generator().manual_seed(1)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, 320, (count,), generator=generator).tolist())

    prompt = ids(9)
    return [
        Row(prompt + ids(30), (0,) * 9 + (1,) * 5 + (0,) * 7 + (1,) * 18),
        Row(prompt + ids(4), (0,) * 9 + (1,) * 4),
        Row(ids(60), (0,) * 20 + (1,) * 40),
    ]


def reference_logp(model: Any, row: Row) -> torch.Tensor:
    """Log-probabilities of the trained tokens by a plain forward of one unpadded row."""
    logp = model(torch.tensor([row.ids])).logits[0].float().log_softmax(-1)
    at = [c for c in range(1, len(row.ids)) if row.mask[c]]
    return torch.stack([logp[c - 1, row.ids[c]] for c in at])


def check_forward_and_gradients(policy: Policy, model: Any) -> None:
    weight = torch.linspace(-1, 1, sum(sum(r.mask) for r in rows()))
    scores = policy.score(rows())
    wanted = torch.cat([reference_logp(model, row) for row in rows()])
    torch.testing.assert_close(scores.logp_K, wanted, atol=2e-5, rtol=1e-5)
    model.zero_grad()
    (wanted * weight).sum().backward()
    grads = torch.autograd.grad((scores.logp_K * weight).sum(), policy.parameters())
    ours = hf_named(policy, grads)
    theirs = {n: p.grad for n, p in model.named_parameters()}
    assert ours.keys() == theirs.keys()
    for name, grad in theirs.items():
        torch.testing.assert_close(ours[name], grad, atol=2e-5, rtol=1e-3, msg=name)


def hf_named(policy: Policy, grads: Any) -> dict[str, torch.Tensor]:
    """Gradients under the names of the transformers model."""
    network = policy.network
    if not isinstance(network, FusedNetwork):
        return dict(zip([n for n, _ in network.named()], grads, strict=True))
    holder = network.weights.to(network.device, torch.float32)
    for tensor, grad in zip(holder.parameters(), grads, strict=True):
        tensor.copy_(grad)
    return {name: tensor.clone() for name, tensor in holder.hf_tensors()}


@pytest.mark.parametrize("name", FUSED)
def test_the_fused_decoder_computes_what_transformers_computes(
    name: str, tmp_path: Path, one_thread: None
) -> None:
    model = random_model(*FUSED[name])
    policy = load_policy(saved(tmp_path, model))
    assert isinstance(policy.network, FusedNetwork)
    check_forward_and_gradients(policy, model)


@pytest.mark.parametrize("name", FALLBACK)
def test_what_the_fused_decoder_would_compute_wrongly_runs_on_its_own_forward(
    name: str, tmp_path: Path, one_thread: None
) -> None:
    model = random_model(*FALLBACK[name])
    policy = load_policy(saved(tmp_path, model))
    assert isinstance(policy.network, HFNetwork)
    check_forward_and_gradients(policy, model)


def test_gpt2_runs_on_its_own_forward(tmp_path: Path, one_thread: None) -> None:
    config = transformers.GPT2Config(
        vocab_size=320, n_positions=128, n_embd=32, n_layer=2, n_head=4
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    policy = load_policy(saved(tmp_path, model))
    assert isinstance(policy.network, HFNetwork)
    check_forward_and_gradients(policy, model)


@pytest.mark.parametrize("name", FUSED)
def test_fusing_and_cutting_the_tensors_gives_them_back_bit_for_bit(name: str) -> None:
    model = random_model(*FUSED[name])
    state = model.state_dict()
    rotary = model.model.rotary_emb
    weights = DecoderWeights.from_hf(
        dict(state), DecoderShape.of(model.config), rotary.inv_freq, rotary.attention_scaling
    )
    back = dict(weights.hf_tensors())
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    assert back.keys() == state.keys() - tied
    assert all(torch.equal(back[name], state[name]) for name in back)


@pytest.mark.parametrize("layout", ["qwen2", "gpt2", *long("qwen3", "llama", "sliding")])
def test_a_saved_policy_is_an_ordinary_model_folder(layout: str, tmp_path: Path, tiny: Any) -> None:
    policy: Policy = tiny(layout)
    policy.save(tmp_path / "policy")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "policy").eval()
    again = load_policy(str(tmp_path / "policy"))
    with torch.no_grad():
        wanted = torch.cat([reference_logp(model, row) for row in rows()])
        torch.testing.assert_close(policy.score(rows()).logp_K, wanted, atol=2e-5, rtol=1e-5)
    assert all(
        torch.equal(a, b) for a, b in zip(policy.parameters(), again.parameters(), strict=True)
    )
    assert again.codec.eos_ids == policy.codec.eos_ids
    text = "12+34 isn't\tsum_1_to_n(5)?\n\n cafe\u0301 \u0663"
    assert again.codec.tokenizer.get_vocab() == policy.codec.tokenizer.get_vocab()
    assert again.codec.encode(text) == policy.codec.encode(text)
    assert again.codec.decode(again.codec.encode(text)) == text
    generation = json.loads((tmp_path / "policy" / "generation_config.json").read_text())
    assert generation["eos_token_id"] == sorted(policy.codec.eos_ids)
    assert generation["pad_token_id"] == policy.codec.tokenizer.pad_token_id


@pytest.mark.parametrize("layout", ["qwen2", "qwen3", "llama", "gpt2", "sliding"])
def test_a_saved_config_names_the_class_that_generates(
    layout: str, tmp_path: Path, tiny: Any
) -> None:
    """Where it names none, vLLM serves a pooling model; so also of a folder written without."""
    tiny(layout).save(tmp_path / "without")
    file = tmp_path / "without" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"architectures": None}))
    load_policy(str(file.parent)).save(tmp_path / "policy")
    written = json.loads((tmp_path / "policy" / "config.json").read_text())["architectures"]
    assert written == [type(AutoModelForCausalLM.from_pretrained(tmp_path / "policy")).__name__]


@pytest.mark.parametrize("layout", ["qwen2", "llama", "gpt2"])
def test_tensors_come_one_by_one_under_the_names_that_are_saved(layout: str, tiny: Any) -> None:
    """What a server is sent: the policy's own tensors, as they are after an update."""
    policy: Policy = tiny(layout)
    saved = policy.network.state()
    pairs = list(policy.hf_tensors())
    assert [name for name, _ in pairs] == list(saved)
    assert all(torch.equal(tensor, saved[name]) for name, tensor in pairs)
    assert not any(tensor.requires_grad for _, tensor in pairs)
    own = {t.untyped_storage().data_ptr() for _, t in policy.named()}
    assert {t.untyped_storage().data_ptr() for _, t in pairs} <= own


def test_saving_refuses_a_folder_that_holds_anything(tmp_path: Path, tiny: Any) -> None:
    """A model of the user's and notes about it, in a folder named as the output."""
    mine = tmp_path / "mine"
    mine.mkdir()
    for name, text in {"model.safetensors": "weights", "config.json": "{}", "n.md": "x"}.items():
        (mine / name).write_text(text)
    (tmp_path / "mine.tmp").mkdir()
    (tmp_path / "mine.tmp" / "draft.md").write_text("a name that we could have taken")
    before = {p: p.read_text() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(ModelError, match=r"'config\.json'.*would be lost.*new or empty"):
        tiny("qwen2").save(mine)
    assert {p: p.read_text() for p in tmp_path.rglob("*") if p.is_file()} == before
    with pytest.raises(ModelError, match="it is a file"):
        tiny("qwen2").save(mine / "n.md")
    (tmp_path / "empty").mkdir()
    tiny("qwen2").save(tmp_path / "empty")
    assert (tmp_path / "empty" / "model.safetensors").is_file()
    assert (tmp_path / "mine.tmp" / "draft.md").is_file()


def test_saving_again_replaces_the_policy_and_leaves_other_files(
    tmp_path: Path, tiny: Any, fresh: Any
) -> None:
    policy = tmp_path / "policy"
    tiny("qwen2").save(policy)
    (policy / "notes.md").write_text("mine")
    other = fresh("qwen2", 3)
    other.save(policy, replace=True)
    assert (policy / "notes.md").read_text() == "mine"
    pairs = zip(load_policy(str(policy)).parameters(), other.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert [p.name for p in tmp_path.iterdir()] == ["policy"]


def test_building_is_a_function_of_the_seed() -> None:
    first, same, other = (build_policy(["a b c"], size="test", seed=seed) for seed in (1, 1, 2))
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), same.parameters(), strict=True)
    )
    assert not torch.equal(first.parameters()[0], other.parameters()[0])


def test_building_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    build_policy(["a"], size="test")
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(1))


def test_tensors_are_loaded_by_name(fresh: Any, tiny: Any) -> None:
    policy, other = fresh("qwen3", 3), tiny("qwen3")
    policy.load_tensors({n: t.detach().clone() for n, t in other.named()})
    assert all(
        torch.equal(a, b) for a, b in zip(policy.parameters(), other.parameters(), strict=True)
    )


def test_a_broken_folder_is_refused_with_what_is_wrong(tmp_path: Path, tiny: Any) -> None:
    with pytest.raises(ModelError, match="folder not found"):
        load_policy(str(tmp_path / "nowhere" / "at" / "all"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"config\.json"):
        load_policy(str(tmp_path / "empty"))
    tiny("qwen2").save(tmp_path / "mute")
    (tmp_path / "mute" / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="chat template"):
        load_policy(str(tmp_path / "mute"))
    tiny("qwen2").save(tmp_path / "torn")
    (tmp_path / "torn" / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(ModelError, match="weights"):
        load_policy(str(tmp_path / "torn"))


PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_a_template_that_leaves_tools_out_is_refused_where_there_are_some(
    tmp_path: Path, tiny: Any
) -> None:
    """Else the model is trained, evaluated or served as if it had them, and never hears of one."""
    tiny("qwen2").save(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(PLAIN)
    (tmp_path / "model.safetensors").write_bytes(b"torn")  # it is refused before this is read
    tools = [calculator.spec]
    said = r"ignores tools.*'calculator'.*agent\.template=qwen2\.5 or .*qwen3"
    with pytest.raises(ModelError, match=said):
        load_policy(str(tmp_path), tools=tools)
    _, codec = load_codec(str(tmp_path))
    ask = [Message("user", "What is 6 * 7?")]
    assert "6 * 7" in codec.render_text(ask)
    with pytest.raises(ModelError, match=said):
        codec.render(ask, tools)
    _, named = load_codec(str(tmp_path), template="qwen3", tools=tools)
    assert "calculator" in named.render_text(ask, tools)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("MixtralConfig", "'mixtral'.*mixture of experts.*\"num_local_experts\": 8"),
        ("Qwen2MoeConfig", "'qwen2_moe'.*mixture of experts.*\"num_experts\": 60"),
        ("Qwen3MoeConfig", "'qwen3_moe'.*mixture of experts"),
        ("DbrxConfig", "'dbrx'.*mixture of experts.*\"moe_num_experts\": 4"),
        ("DeepseekV3Config", "'deepseek_v3'.*mixture of experts.*\"n_routed_experts\": 256"),
        ("Llama4TextConfig", "'llama4_text'.*mixture of experts"),
        ("MambaConfig", r"'mamba'.*has layers \(linear_attention\) without keys and values"),
        ("RwkvConfig", "'rwkv'.*has layers without keys and values"),
        ("T5Config", "'t5'.*has an encoder"),
        ("Qwen2_5_VLConfig", "'qwen2_5_vl'.*needs vision, which is not supported"),
        ("DistilBertConfig", "'distilbert'.*does not generate text"),
    ],
)
def test_a_layout_that_is_not_supported_is_refused_by_name_with_those_that_are(
    kind: str, why: str, tmp_path: Path
) -> None:
    """A folder with a config, and neither tokenizer nor weights: none is asked for."""
    getattr(transformers, kind)().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=why + ".*Llama, Qwen2 and Qwen3.*GPT-2, Gemma") as refusal:
        load_policy(str(tmp_path))
    assert str(tmp_path) in str(refusal.value)


@pytest.mark.parametrize(
    "kind", ["GPT2Config", "Gemma2Config", "Gemma3TextConfig", "PhiConfig", "Phi3Config",
             "MistralConfig", "GPTNeoXConfig", "BloomConfig", "FalconConfig", "OPTConfig"]
)  # fmt: skip
def test_dense_layouts_are_not_refused(kind: str, tmp_path: Path, tiny: Any) -> None:
    getattr(transformers, kind)().save_pretrained(tmp_path)
    tiny("qwen2").codec.tokenizer.save_pretrained(tmp_path)
    assert load_codec(str(tmp_path))[0].model_type == getattr(transformers, kind).model_type


def test_a_model_with_a_missing_tensor_is_refused(tmp_path: Path, tiny: Any) -> None:
    tiny("qwen2").save(tmp_path / "part")
    state = tiny("qwen2").network.state()
    del state["model.norm.weight"]
    save_file(state, tmp_path / "part" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"model\.norm\.weight"):
        load_policy(str(tmp_path / "part"))


def test_an_unknown_layout_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ModelError, match=r"'gpt9'.*qwen2"):
        tiny_policy("gpt9")


def test_every_layout_has_a_tiny_policy_on_the_fused_decoder() -> None:
    for layout in policy_model.LAYOUTS:
        policy = tiny_policy(layout)
        assert isinstance(policy.network, FusedNetwork)
        assert policy.count() < 50_000


def test_tiny_policies_repeat_and_are_far_from_uniform() -> None:
    first, second = tiny_policy(seed=4), tiny_policy(seed=4)
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    entropy = first.score(rows()).entropy_K
    assert entropy.mean() < 0.9 * torch.tensor(320.0).log()
