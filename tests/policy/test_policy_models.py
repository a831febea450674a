"""Both decoders against transformers: values, gradients, folders, files; who gets which."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.marks import long
from torch import nn
from transformers import AutoModelForCausalLM

from tutelage.errors import ModelError
from tutelage.policy.hf_model import HFNetwork
from tutelage.policy.model import Policy, build_policy, load_codec, load_policy
from tutelage.policy.network import FusedNetwork
from tutelage.policy.row import Row
from tutelage.policy.weights import DecoderShape, DecoderWeights
from tutelage.testing import tiny_policy

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
        return dict(zip([n for n, _ in network.named_tensors()], grads, strict=True))
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


@pytest.mark.parametrize("layout", ["qwen2", "gpt2"])
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


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("MixtralConfig", "'mixtral'.*mixture of experts.*\"num_local_experts\": 8"),
        ("MambaConfig", r"'mamba'.*has layers \(linear_attention\) without keys and values"),
        ("T5Config", "'t5'.*has an encoder"),
        ("Qwen2_5_VLConfig", "'qwen2_5_vl'.*needs vision, which is not supported"),
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


@pytest.mark.parametrize("kind", ["Gemma3TextConfig", "Phi3Config", "MistralConfig"])
def test_dense_layouts_are_not_refused(kind: str, tmp_path: Path, tiny: Any) -> None:
    getattr(transformers, kind)().save_pretrained(tmp_path)
    tiny("qwen2").codec.tokenizer.save_pretrained(tmp_path)
    assert load_codec(str(tmp_path))[0].model_type == getattr(transformers, kind).model_type


# ------------------------------------------------------------ a model's weights from its files


Fresh = Callable[..., Policy]


def saved_as(policy: Policy, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    policy.save(folder)
    tensors = load_file(folder / "model.safetensors")
    meta = {"format": "pt"}
    save_file({n: t.to(dtype) for n, t in tensors.items()}, folder / "model.safetensors", meta)
    return folder


@pytest.mark.parametrize("dtype", [torch.bfloat16, *long(torch.float32)])
@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_the_bits_are_those_that_transformers_loads(
    fresh: Fresh, kind: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    folder = saved_as(fresh(kind), tmp_path / "model", dtype)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rotary = model.model.rotary_emb
    wanted = DecoderWeights.from_hf(
        model.state_dict(),
        DecoderShape.from_config(model.config),
        rotary.inv_freq,
        rotary.attention_scaling,
    )
    found = load_policy(str(folder))
    for (name, mine), (known, theirs) in zip(
        found.named_tensors(), wanted.named_tensors(), strict=True
    ):
        assert name == known
        assert torch.equal(mine, theirs)
        assert mine.is_leaf
        assert mine.requires_grad
    mine = found.network.weights  # type: ignore[union-attr]
    assert torch.equal(mine.inv_freq, wanted.inv_freq)
    assert mine.rope_scale == wanted.rope_scale


def test_files_in_parts_are_read_by_their_index(fresh: Fresh, tmp_path: Path) -> None:
    policy = fresh("llama")
    folder = saved_as(policy, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names, places = sorted(tensors), dict[str, str]()
    for part in range(2):
        file = f"model-{part}.safetensors"
        save_file({n: tensors[n] for n in names[part::2]}, folder / file, {"format": "pt"})
        places |= dict.fromkeys(names[part::2], file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    loaded = load_policy(str(folder))
    assert all(
        torch.equal(a, b) for a, b in zip(loaded.parameters(), policy.parameters(), strict=True)
    )


# ------------------------------------------------------------ an ordinary module


LAYOUTS = ("qwen2", "qwen3", "llama")
ROWS = [
    Row(tuple(range(20, 40)), (0,) * 8 + (1,) * 12),
    Row((*range(20, 30), 7), (0,) * 8 + (1,) * 3),
]


def logp(policy: Any) -> torch.Tensor:
    return policy.score(ROWS).logp_K


@pytest.mark.parametrize("name", LAYOUTS)
def test_its_parameters_are_the_tensors_that_are_trained(fresh: Fresh, name: str) -> None:
    policy = fresh(name)
    network = policy.network
    assert isinstance(network, FusedNetwork)
    named = dict(network.named_parameters())
    assert {n: id(t) for n, t in policy.named_tensors()} == {n: id(t) for n, t in named.items()}
    assert sum(p.numel() for p in network.parameters()) == policy.count()
    logp(policy).sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in network.parameters())
    assert float(nn.utils.clip_grad_norm_(network.parameters(), 1.0)) > 1.0
